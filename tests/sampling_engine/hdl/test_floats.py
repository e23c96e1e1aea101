"""Gates convert elements of MX blocks like the interpreter's loads."""

import numpy as np

from llada_jax.sampling_engine.formats import StoredLogits, rounded, sanitized
from llada_jax.sampling_engine.hdl.floats import load_element
from tests.sampling_engine.hdl.cases import bits16, through


def test_every_element_with_every_scale() -> None:
    elements, scales = (each.reshape(-1) for each in np.mgrid[:256, :255])
    blocks = np.repeat(elements[:, None], 8, axis=1).astype(np.uint8)
    read = StoredLogits(blocks, scales[:, None].astype(np.uint8)).read(0, len(blocks))
    wanted = bits16(sanitized(rounded(read[:, 0], "bfloat16"), "bfloat16"))
    found = through(load_element, 8, elements, scales, cycles=0)
    np.testing.assert_array_equal(found, wanted)
