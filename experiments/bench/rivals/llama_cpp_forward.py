"""llama.cpp as a contender, for an interpreter with `llama_cpp` and without this project.

    python -m experiments.bench.rivals.llama_cpp_forward SETTINGS

It quantizes the GGUF file if needed. Its LLaDA has no KV cache: the rows of a forward see only each
other, and a decoding step is a forward of the whole canvas.
"""

import ctypes
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import llama_cpp as lib  # pyright: ignore[reportMissingImports]
import numpy as np

from experiments.bench.rivals.answers import LayerClock, answer_lines

THREADS = len(os.sched_getaffinity(0))
_FOLDER = Path(str(lib.__file__)).with_name("lib")
_name = ctypes.CDLL(str(_FOLDER / "libggml-base.so")).ggml_get_name
_name.argtypes, _name.restype = [ctypes.c_void_p], ctypes.c_char_p


def quantize(source: Path, target: Path, kind: str) -> None:
    """Quantizes a file to a kind such as `Q4_K_M`, by the package's quantizer."""
    params = lib.llama_model_quantize_default_params()
    params.ftype, params.nthread = getattr(lib, f"LLAMA_FTYPE_MOSTLY_{kind}"), THREADS
    part = target.with_suffix(".part")
    if lib.llama_model_quantize(bytes(source), bytes(part), params):
        raise RuntimeError(f"llama.cpp cannot quantize {source} to {kind}")
    part.rename(target)


class _LlamaCppModel:
    """A model, and a context for batches of at most `most_rows` rows."""

    def __init__(self, path: Path, most_rows: int, clock: LayerClock):
        self._model = lib.llama_model_load_from_file(bytes(path), lib.llama_model_default_params())
        params = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = most_rows
        params.n_threads = params.n_threads_batch = THREADS
        self._clock = clock
        self._watch = params.cb_eval = type(params.cb_eval)(self._after_node)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self._context = lib.llama_init_from_model(self._model, params)
        self._batch = lib.llama_batch_init(most_rows, 0, 1)

    def _after_node(self, tensor: Any, asked: bool, _: Any) -> bool:
        """Callback of llama.cpp: returns whether to observe a node, and stops the clock after
        it."""
        if not asked:
            self._clock.stop()
        return not asked or _name(tensor) == b"result_norm"

    def run(self, rows: int) -> None:
        """Scores all rows of one batch."""
        batch = self._batch
        batch.n_tokens = rows
        for i in range(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = i, i, 1
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        self._clock.start()
        if lib.llama_decode(self._context, batch):
            raise RuntimeError(f"llama.cpp cannot decode {rows} rows")
        lib.llama_get_logits(self._context)  # waits for the result

    def hidden(self, rows: int) -> np.ndarray:
        """Returns the normed outputs of the layers [rows, D]."""
        lib.llama_set_embeddings(self._context, True)
        self.run(rows)
        width = lib.llama_model_n_embd(self._model)
        hidden = np.ctypeslib.as_array(lib.llama_get_embeddings(self._context), (rows, width))
        copied = hidden.copy()
        lib.llama_set_embeddings(self._context, False)
        return copied


def main(settings: str) -> None:
    """Quantizes if needed, loads the model, and answers requests."""
    options = json.loads(settings)
    source, kind = Path(options["gguf"]), options["kind"]
    path = source.with_name(f"{kind}.gguf")
    if not path.exists():
        quantize(source, path, kind)
    clock = LayerClock()
    model = _LlamaCppModel(path, options["most_rows"], clock)
    units = re.findall(r"(\w+) = 1", lib.llama_print_system_info().decode())
    about = f"llama.cpp of llama-cpp-python {lib.__version__}: {' '.join(units)}"

    def hidden(rows: int) -> None:
        np.save(options["hidden"], model.hidden(rows))

    answer_lines(about, clock, {"forward": model.run, "hidden": hidden})


if __name__ == "__main__":
    main(*sys.argv[1:])
