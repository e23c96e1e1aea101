"""PyTorch with SDPA on a GPU as a contender: forwards as CUDA graphs, without this project.

    python -m experiments.bench.rivals.torch_gpu SETTINGS

A task is a case, a number of canvases and of cached positions; a forward runs and scores the last
rows of each canvas, and writes their keys and values.
"""

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch  # pyright: ignore[reportMissingImports]

from experiments.bench.rivals.answers import LayerClock, answer_lines
from experiments.bench.rivals.torch_model import TorchLLaDA


class _Forwards:
    """The forwards of one case at a time."""

    def __init__(self, options: Any):
        self._options, self._case, self._replay = options, None, None
        self._model = TorchLLaDA(SimpleNamespace(**options.model), 0)

    def run(self, case: int) -> None:
        """Runs the forwards of a case; the first call captures it."""
        if case != self._case:
            self._replay = None  # frees the memory of the former graph
            self._case, self._replay = case, self._captured(*self._options.cases[case])
        for _ in range(self._options.calls):
            self._replay()  # pyright: ignore[reportOptionalCall]
        _wait()

    def _captured(self, batch: int, cached: int) -> Any:
        model, rows = self._model, self._options.rows
        model.make_angles(cached)
        cache = model.empty_cache(batch, cached)
        tokens = torch.zeros((batch, rows), dtype=torch.long)
        positions = torch.arange(cached - rows, cached)

        def forward() -> Any:
            logits = model.logits(model.hidden(tokens, positions, cache))
            return logits.float().softmax(-1).max(-1)

        if self._options.device == "cpu":
            return forward
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # libraries set themselves up before the capture
            forward()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            forward()
        return graph.replay


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main(settings: str) -> None:
    options = SimpleNamespace(**json.loads(settings))
    torch.set_default_device(options.device)
    torch.set_default_dtype(torch.bfloat16)
    with torch.inference_mode():
        forwards = _Forwards(options)
        answer_lines(f"PyTorch {torch.__version__}, SDPA", LayerClock(), {"forward": forwards.run})


if __name__ == "__main__":
    main(*sys.argv[1:])
