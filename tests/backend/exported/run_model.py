"""Replaces LiteRT's run_model on this CPU: takes the flags of calibration.sh and writes its log."""

import math
import sys

import numpy as np
from ai_edge_litert.compiled_model import CompiledModel


def main(graph: str, signature_index: str, input_dir: str, sample_size: str, **_: str) -> None:
    number, sample = int(signature_index), int(sample_size)
    model = CompiledModel.from_file(graph)
    signature = model.get_signature_by_index(number)
    inputs, outputs = model.create_input_buffers(number), model.create_output_buffers(number)
    for name, buffer in zip(signature["inputs"], inputs, strict=True):
        buffer.write(np.fromfile(f"{input_dir}/{name}.raw", np.float32))
    model.run_by_index(number, inputs, outputs)
    for place, buffer in enumerate(outputs):
        log(f"Output buffer {place}:")
        details = buffer.get_tensor_details()
        values = buffer.read(math.prod(details["shape"]), np.dtype(details["dtype"]).type)
        middle = max(0, len(values) // 2 - sample // 2)
        for start in (0, middle, max(0, len(values) - sample)):
            for index in range(start, min(start + sample, len(values))):
                log(f"    {index}: {values[index]:.6g}")


def log(text: str) -> None:
    print(f"I0000 00:00:1700000000.123456    4321 run_model.cc:300] {text}", file=sys.stderr)


if __name__ == "__main__":
    main(**dict(flag.removeprefix("--").split("=", 1) for flag in sys.argv[1:]))
