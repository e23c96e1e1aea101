"""OpenVINO or ONNX Runtime in int8 as a contender, for an interpreter without this project.

    python -m experiments.bench.rivals.onnx_forward SETTINGS

Weights are int8 numbers with a scale for each output; if `joined`, queries, keys and values are one
product, and gate and up another. Both programs round activations while they run: ONNX Runtime with
one scale for all rows, OpenVINO with one for each group of 128 inputs of a row.
"""

import importlib
import json
import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx  # pyright: ignore[reportMissingImports]
from onnx import TensorProto, helper, numpy_helper  # pyright: ignore[reportMissingImports]

from experiments.bench.random_matrix import normal_matrix
from experiments.bench.rivals.answers import LayerClock, answer_lines

THREADS = len(os.sched_getaffinity(0))
EPS = 1e-5


class _Graph:
    """A graph of ONNX under construction; each method adds a node and returns its output."""

    def __init__(self, options: Any):
        self._options, self._nodes, self._constants = options, [], []

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.several(kind, 1, *inputs, **attributes)[0]

    def several(self, kind: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        outputs = [f"t{len(self._nodes)}_{i}" for i in range(count)]
        self._nodes.append(helper.make_node(kind, inputs, outputs, **attributes))
        return outputs

    def constant(self, value: Any) -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def linear(self, x: str, *names: str) -> list[str]:
        """Adds the products with int8 matrices, joined or one for each."""
        if len(names) > 1 and not self._options.joined:
            return [product for name in names for product in self.linear(x, name)]
        matrices = self._options.matrices
        numbers = np.concatenate([normal_matrix(name, *matrices[name]) for name in names])
        scales = np.abs(numbers).max(1) / 127
        matrix = np.rint(numbers / scales[:, None]).astype(np.int8)
        scale = self.constant(scales)
        if self._options.runtime == "openvino":
            wide = self.add("DequantizeLinear", self.constant(matrix), scale, axis=0)
            product = self.add("Gemm", x, wide, transB=1)
        else:
            transposed = self.constant(np.ascontiguousarray(matrix.T))
            kind = "DynamicQuantizeMatMul"
            product = self.add(kind, x, transposed, scale, domain="com.microsoft")
        if len(names) == 1:
            return [product]
        return self.several("Split", len(names), product, axis=-1, num_outputs=len(names))

    def norm(self, x: str) -> str:
        """Adds the root-mean-square norm, with weights of one."""
        squares = self.add("ReduceMean", self.add("Mul", x, x), self.constant([-1]), keepdims=1)
        wide = self.add("Add", squares, self.constant(np.float32(EPS)))
        return self.add("Div", x, self.add("Sqrt", wide))

    def save(self, path: Path, inputs: dict[str, tuple[Any, ...]], outputs: list[str]) -> None:
        """Writes the model, with its weights in a file of their own."""

        def info(name: str, shape: Any) -> Any:
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

        graph = helper.make_graph(
            self._nodes, "step", [info(*item) for item in inputs.items()],
            [info(name, None) for name in outputs], self._constants,
        )  # fmt: skip
        versions = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=versions, ir_version=10)
        onnx.save_model(model, path, save_as_external_data=True, location=f"{path.name}.data")


def _write_body(path: Path, options: Any, shape: Any) -> None:
    """Writes the layers: rows that see all cached positions and each other."""
    graph, hidden = _Graph(options), "hidden"
    heads, width = [0, shape.n_heads, shape.head_dim], shape.n_heads * shape.head_dim
    inputs: dict[str, tuple[Any, ...]] = {"hidden": ("rows", shape.width)}
    inputs |= dict.fromkeys(("cos", "sin"), ("rows", 1, shape.head_dim // 2))

    def of_heads(x: str, rotated: bool) -> str:
        split = graph.add("Reshape", x, graph.constant(np.array(heads)))
        if rotated:
            left, right = graph.several("Split", 2, split, axis=-1, num_outputs=2)
            turned = [
                graph.add(sign, graph.add("Mul", a, "cos"), graph.add("Mul", b, "sin"))
                for sign, a, b in (("Sub", left, right), ("Add", right, left))
            ]
            split = graph.add("Concat", *turned, axis=-1)
        return graph.add("Transpose", split, perm=[1, 0, 2])

    for layer in range(shape.n_layers):
        cache = [f"keys{layer}", f"values{layer}"]
        inputs |= dict.fromkeys(cache, (shape.n_heads, "cached", shape.head_dim))
        names = (f"layers.{layer}.attention.{name}" for name in ("query", "key", "value"))
        parts = graph.linear(graph.norm(hidden), *names)
        query, key, value = (
            of_heads(part, rotated)
            for part, rotated in zip(parts, (True, True, False), strict=True)
        )
        keys, values = (
            graph.add("Concat", old, new, axis=1)
            for old, new in zip(cache, (key, value), strict=True)
        )
        scores = graph.add("MatMul", query, graph.add("Transpose", keys, perm=[0, 2, 1]))
        scaled = graph.add("Mul", scores, graph.constant(np.float32(shape.head_dim**-0.5)))
        mixed = graph.add("MatMul", graph.add("Softmax", scaled, axis=-1), values)
        rows = graph.add("Transpose", mixed, perm=[1, 0, 2])
        flat = graph.add("Reshape", rows, graph.constant(np.array([0, width])))
        (mixed,) = graph.linear(flat, f"layers.{layer}.attention.output")
        hidden = graph.add("Add", hidden, mixed)
        names = (f"layers.{layer}.ffn.{name}" for name in ("gate", "up"))
        gate, up = graph.linear(graph.norm(hidden), *names)
        gated = graph.add("Mul", graph.add("Mul", gate, graph.add("Sigmoid", gate)), up)
        (out,) = graph.linear(gated, f"layers.{layer}.ffn.down")
        hidden = graph.add("Add", hidden, out)
    graph.save(path, inputs, [hidden])


def _write_head(path: Path, options: Any, shape: Any) -> None:
    """Writes the product with the vocabulary: the highest logit's share of each row."""
    graph = _Graph(options)
    (logits,) = graph.linear(graph.norm("hidden"), "head")
    last = graph.constant([-1])
    highest = graph.add("ReduceMax", logits, last, keepdims=1)
    total = graph.add("ReduceLogSumExp", logits, last, keepdims=1)
    share = graph.add("Exp", graph.add("Sub", highest, total))
    token = graph.add("Cast", graph.add("ArgMax", logits, axis=-1), to=TensorProto.FLOAT)
    graph.save(path, {"hidden": ("rows", shape.width)}, [share, token])


def _opened(runtime: str, path: Path) -> Any:
    """Returns the model as a function of named arrays."""
    if runtime == "openvino":
        import openvino  # pyright: ignore[reportMissingImports]

        core = openvino.Core()
        properties = {
            "INFERENCE_NUM_THREADS": THREADS,
            "INFERENCE_PRECISION_HINT": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 128,  # 1.3 times as fast as 32, the default
        }
        compiled = core.compile_model(path, "CPU", properties)
        request = compiled.create_infer_request()
        return lambda arrays: [*request.infer(arrays, share_inputs=True).values()]
    import onnxruntime  # pyright: ignore[reportMissingImports]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    return lambda arrays: session.run(None, arrays)


def main(settings: str) -> None:
    """Writes and opens the models, and answers requests."""
    options, clock = SimpleNamespace(**json.loads(settings)), LayerClock()
    shape, runtime, rng = (
        SimpleNamespace(**options.model),
        options.runtime,
        np.random.default_rng(0),
    )
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        body_path, head_path = Path(folder, "body.onnx"), Path(folder, "head.onnx")
        _write_body(body_path, options, shape)
        _write_head(head_path, options, shape)
        body, head = _opened(runtime, body_path), _opened(runtime, head_path)
        frequencies = shape.rope_theta ** -np.arange(0, 1, 2 / shape.head_dim)

        @cache
        def inputs(rows: int, cached: int) -> dict[str, np.ndarray]:
            angles = np.arange(cached, cached + rows)[:, None, None] * frequencies
            arrays = {"cos": np.cos(angles), "sin": np.sin(angles)}
            size = (shape.n_heads, cached, shape.head_dim)
            for layer in range(shape.n_layers):
                arrays |= {f"{kind}{layer}": rng.random(size) for kind in ("keys", "values")}
            return {name: array.astype(np.float32) for name, array in arrays.items()}

        def forward(rows: int) -> None:
            arrays = inputs(rows, options.cached - rows)
            hidden = rng.standard_normal((rows, shape.width), np.float32)
            clock.start()
            (hidden,) = body({"hidden": hidden, **arrays})
            clock.stop()
            head({"hidden": hidden})

        def hidden(rows: int) -> None:
            _, std = options.matrices["embedding"]
            embedding = normal_matrix("embedding", (rows, shape.width), std)
            (out,) = body({"hidden": embedding, **inputs(rows, 0)})
            scale = np.sqrt((out**2).mean(-1, keepdims=True) + EPS)
            np.save(options.hidden, out / scale)

        module = importlib.import_module(runtime)
        answer_lines(
            f"{runtime} {module.__version__}", clock, {"forward": forward, "hidden": hidden}
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
