"""Messages show values, which may have any length, and stay sentences."""

import pytest

from llada_jax.config import require


def test_a_value_of_any_length_leaves_a_sentence():
    with pytest.raises(ValueError) as caught:
        require(False, f"seconds is {'9' * 5000!r}; allowed: the file as it was written")
    message = str(caught.value)
    assert message.startswith("seconds is '999") and len(message) < 1100
    assert message.endswith("99'; allowed: the file as it was written")
    with pytest.raises(ValueError, match=f"^{'a' * 1000}$"):
        require(False, "a" * 1000)
