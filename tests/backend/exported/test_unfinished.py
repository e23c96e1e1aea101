"""What an interrupted export keeps."""

from llada_jax.backend.exported.contents import Export
from llada_jax.backend.exported.unfinished import UnfinishedExport
from llada_jax.config import ExportConfig
from tests.backend.models import GQA


def test_a_compiled_context_is_kept_with_its_binary(tmp_path):
    export = Export(GQA, None, ExportConfig(), "a test")
    begun = UnfinishedExport(tmp_path / "model", export)
    begun.begin()
    for name in ("context.bin", "context.tflite", "left.tmp"):
        (begun.folder / name).write_bytes(b"x")
    begun.add_context("context.bin", {"file": "context.bin", "compiled": "context.tflite"})
    UnfinishedExport(tmp_path / "model", export).begin()
    kept = {path.name for path in begun.folder.iterdir()}
    assert kept == {"context.bin", "context.tflite", "progress.json"}
