"""Records of arrays: what is damaged is refused as such, wherever the damage is."""

import numpy as np
import pytest

from llada_jax.archive import load_archive, save_archive

ARRAYS = {"counts": np.arange(20)}


def test_a_picture_is_no_record(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    with pytest.raises(ValueError, match=r"a\.png is no record of llada_jax; allowed: .*\.npz"):
        load_archive(path, ARRAYS, 2, kind="record", short="record")


@pytest.mark.parametrize("flipped", [0x01, 0x80])
def test_a_damaged_byte_is_refused_or_changes_nothing(flipped, tmp_path):
    path = tmp_path / "a.npz"
    save_archive(path, ARRAYS, {"seed": 3}, version=2)
    whole, refused = path.read_bytes(), 0
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= flipped
        path.write_bytes(damaged)
        try:
            arrays, settings = load_archive(path, ARRAYS, 2, kind="record", short="record")
        except ValueError as error:
            assert "a.npz is no record of llada_jax" in str(error)
            refused += 1
        else:
            assert settings == {"seed": 3}
            for name, array in ARRAYS.items():
                np.testing.assert_array_equal(arrays[name], array)
    assert refused > len(whole) / 2
