"""llama.cpp's greedy decoding, by llama-cpp-python, and GGUF files with other weights for it.

llama.cpp multiplies quantized weights with activations that it rounds to 8 bits. A file of the same
weights in float32, with a float32 cache, is decoded without such rounding (`exact`), so its tokens
can be compared with this project's.
"""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from llada_jax.backend.resources import available_cores
from llada_jax.io import atomic

FLOAT32 = "F32"
_FILE_TYPES = {FLOAT32: 0, "Q8_0": 7}  # of `general.file_type`


def write_as(source: Path, target: Path, kind: str) -> Path:
    """Writes a GGUF file with the same metadata and vectors, and matrices of another kind, which is
    `F32` or one that the package `gguf` can quantize. Returns `target`."""
    import gguf

    quantization = gguf.GGMLQuantizationType[kind]
    reader = gguf.GGUFReader(source)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    architecture = fields.pop("general.architecture").contents()
    with atomic.new_file(target) as part:
        writer = gguf.GGUFWriter(part, architecture)
        for name, field in fields.items():
            value = _FILE_TYPES[kind] if name == "general.file_type" else field.contents()
            element = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, value, field.types[0], sub_type=element)
        for tensor in reader.tensors:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
            if len(tensor.shape) > 1:
                writer.add_tensor(
                    tensor.name, gguf.quantize(values, quantization), raw_dtype=quantization
                )
            else:
                writer.add_tensor(tensor.name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return target


class LlamaCpp:
    """A model in llama.cpp.

    Args:
      length: Tokens of the longest text.
      exact: Whether keys and values are cached in float32, not float16.
      every_row: Whether the logits of all tokens are kept, for `log_likelihood`.
      looks_up: Whether it drafts by llama-cpp-python's prompt look-up.
      threads: Default: one for each core.

    Raises ImportError without the package llama-cpp-python.
    """

    def __init__(
        self,
        path: Path,
        length: int,
        *,
        exact: bool = False,
        every_row: bool = False,
        looks_up: bool = False,
        threads: int | None = None,
    ) -> None:
        try:
            import llama_cpp  # pyright: ignore[reportMissingImports]
            from llama_cpp.llama_speculative import (  # pyright: ignore[reportMissingImports]
                LlamaPromptLookupDecoding,
            )
        except ImportError as error:
            raise ImportError(
                "llama-cpp-python is not installed; docs/cpu.md has the command"
            ) from error
        kind = llama_cpp.GGML_TYPE_F32 if exact else None
        threads = threads or available_cores()
        self._model: Any = llama_cpp.Llama(
            str(path),
            n_ctx=length,
            n_threads=threads,
            n_threads_batch=threads,
            logits_all=every_row,
            draft_model=LlamaPromptLookupDecoding() if looks_up else None,
            type_k=kind,
            type_v=kind,
            verbose=False,
        )
        self._last_logits = llama_cpp.llama_get_logits_ith

    def answer(self, prompt: Sequence[int], most: int, ends: Sequence[int]) -> list[int]:
        """Returns the greedy answer of up to `most` tokens; the last may be one of `ends`."""
        self._model.reset()
        answer: list[int] = []
        for token in islice(self._model.generate(prompt, temp=0.0, repeat_penalty=1.0), most):
            answer.append(token)
            if token in ends:
                break
        return answer

    def logits(self, text: Sequence[int]) -> Float[np.ndarray, " V"]:
        """Returns the logits of the token after a text."""
        self._model.reset()
        self._model.eval(text)
        row = self._last_logits(self._model.ctx, -1)
        return np.ctypeslib.as_array(row, shape=(self._model.n_vocab(),)).copy()

    def log_likelihood(self, text: Sequence[int]) -> float:
        """Returns log p(text | its first token) in nats. Needs `every_row`."""
        self._model.reset()
        self._model.eval(text)
        logits = self._model.scores[: len(text) - 1].astype(np.float64)
        own = logits[np.arange(len(text) - 1), text[1:]]
        highest = logits.max(axis=1)
        total = np.log(np.exp(logits - highest[:, None]).sum(axis=1)) + highest
        return float((own - total).sum())
