"""Products of the native backend are exact in integers, with all instructions of this machine."""

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="needs the extra revision")

from llada_jax.backend.native import kernel
from llada_jax.backend.native.kernel import ProductEmitter, best_instructions
from llada_jax.backend.native.product import Multiplier, aligned_floats, pack, rounded
from llada_jax.backend.weights import StoredPiece

ORDER = ("amx", "vnni", "plain")
HERE = ORDER[ORDER.index(best_instructions()) :] if best_instructions() in ORDER else ("plain",)


def drawn(rows: int, outputs: int, inputs: int):
    rng = np.random.default_rng(0)
    numbers = rng.integers(-127, 128, (outputs, inputs), dtype=np.int8)
    scales = rng.random((outputs, 1), np.float32)
    x = aligned_floats(rows, rounded(inputs))
    x[:, :inputs] = rng.standard_normal((rows, inputs))
    return x, numbers, scales


def product_of(x, numbers, scales):
    """The product by the formulas of `model.quantize.linear`."""
    units = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    integers = np.rint(x * (np.float32(1) / units)).astype(np.int32)
    exact = integers[:, : numbers.shape[1]] @ numbers.T.astype(np.int32)
    return exact.astype(np.float32) * units * scales[:, 0]


@pytest.mark.parametrize("instructions", HERE)
@pytest.mark.parametrize(
    ("rows", "outputs", "inputs"), [(1, 64, 64), (7, 600, 100), (33, 96, 1088), (50, 320, 576)]
)
def test_products_are_exact(instructions, rows, outputs, inputs) -> None:
    x, numbers, scales = drawn(rows, outputs, inputs)
    parts = [StoredPiece(numbers[:40], scales[:40]), StoredPiece(numbers[40:], scales[40:])]
    weight = pack([parts], [numbers.shape])
    out = aligned_floats(rows, weight.outputs)
    Multiplier(instructions)(x, weight, out)
    np.testing.assert_array_equal(out[:, :outputs], product_of(x, numbers, scales))
    assert not out[:, outputs:].any()


def test_forms_and_sums() -> None:
    """A norm or SwiGLU before the product, and the product added to what is there."""
    x, numbers, scales = drawn(5, 64, 100)
    second = np.random.default_rng(1).standard_normal(x.shape).astype(np.float32)
    weight, multiply = pack([[StoredPiece(numbers, scales)]], [numbers.shape]), Multiplier()
    normed = x * (1 / np.sqrt((x * x).sum(axis=1, keepdims=True) / 100 + 1e-5)) * second[0]
    gated = x / (1 + np.exp(-x)) * second
    for form, other, left in (("norm", second[0].copy(), normed), ("swiglu", second, gated)):
        out = np.ones((5, 64), np.float32)
        multiply(x, weight, out, form, other, adds=True, eps=1e-5)
        expected = 1 + product_of(left.astype(np.float32), numbers, scales)
        np.testing.assert_allclose(out, expected, rtol=0, atol=0.01 * np.abs(expected).max())


def test_nan_is_kept() -> None:
    x, numbers, scales = drawn(2, 64, 64)
    x[1, 3] = np.nan
    out = np.zeros((2, 64), np.float32)
    Multiplier()(x, pack([[StoredPiece(numbers, scales)]], [numbers.shape]), out)
    assert np.isfinite(out[0]).all() and np.isnan(out[1]).all()


def test_arm_code() -> None:
    """The kernel for ARM, which this machine may not run, is valid and uses its instruction."""
    llvm = kernel.llvm
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    emitter = ProductEmitter("plain", False, "sdot")
    emitter.module.triple = "aarch64-linux-gnu"
    target = llvm.Target.from_triple("aarch64-linux-gnu")
    machine = target.create_target_machine(features="+dotprod", opt=1)
    code = machine.emit_assembly(llvm.parse_assembly(str(emitter.module)))
    assert "sdot" in code
