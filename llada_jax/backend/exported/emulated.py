"""An exported folder as a compiled program, whose layers run on the emulated NPU of a phone."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from llada_jax.backend.exported.calibration_files import emulated_name
from llada_jax.backend.exported.manifest import Manifest
from llada_jax.backend.exported.opened import Exported
from llada_jax.backend.protocol import Bucket
from llada_jax.backend.qnn.context import read_context, require_qnn
from llada_jax.backend.qnn.emulated_npu import Emulator
from llada_jax.backend.session import Shard
from llada_jax.config import require


class EmulatedExport(Exported):
    """A `Program` from a calibration export: embedding and head on the CPU, layers on the NPU of
    the first phone that it was compiled for."""

    def __init__(self, folder: Path) -> None:
        """Raises the errors of `Exported`, and ValueError for a folder without single buckets."""
        manifest = Manifest.load(folder)
        require_qnn()
        require(
            manifest.settings.phones.calibration and bool(manifest.contexts),
            f"{folder} has no graphs that the emulator runs; allowed: an export with "
            "phones.calibration=true and phones.socs",
        )
        super().__init__(folder)
        soc = manifest.contexts[0]["soc"]
        mine = [each for each in manifest.contexts if each["soc"] == soc]
        self._layers = [range(each["start"], each["stop"]) for each in mine]

        def emulator(index: int, bucket: Bucket) -> Emulator:
            return Emulator(read_context(folder / emulated_name(soc, index, bucket)))

        self._emulator = cache(emulator)

    def body(self, rows: int, cache: int, canvases: int = 1) -> tuple[Bucket, Sequence[Shard]]:
        bucket, _ = super().body(rows, cache, canvases)
        shards = [Shard(each, self._emulator(i, bucket)) for i, each in enumerate(self._layers)]
        return bucket, shards
