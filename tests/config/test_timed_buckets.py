"""Tables of latencies check themselves."""

import pytest

from llada_jax.config import LatencyTable


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"rows": (64, 32), "ms": (1.0, 2.0)},
            r"latency_table.rows is \[64, 32\]; allowed: ascend",
        ),
        ({"rows": (32, 32), "ms": (1.0, 2.0)}, "allowed: ascending"),
        ({"rows": (), "ms": ()}, "at least one"),
        ({"rows": (32.0,), "ms": (1.0,)}, r"rows is \[32.0\]; .* at least one whole number"),
        ({"rows": 32, "ms": 1.0}, "latency_table.rows is 32; allowed: ascending"),
        ({"rows": (32,), "ms": 1.0}, "latency_table.ms is 1.0; allowed: 1 numbers"),
        ({"rows": (32,), "ms": ("fast",)}, r"latency_table.ms is \['fast'\]; allowed: 1 numbers"),
        ({"rows": (32,), "ms": (float("inf"),)}, r"latency_table.ms is \[inf\]; allowed"),
        ({"rows": (32, 64), "ms": (1.0,)}, r"latency_table.ms is \[1.0\]; allowed: 2 numbers"),
        ({"rows": (32,), "ms": (0.0,)}, "allowed: 1 numbers above 0"),
    ],
)
def test_latency_tables(table, message):
    with pytest.raises(ValueError, match=message):
        LatencyTable(**table)


def test_the_draft_length_gives_most_tokens_per_time():
    table = LatencyTable(rows=(1, 2, 4, 8, 32), ms=(10.0, 11.0, 13.0, 26.0, 30.0))
    assert [table.draft_length(a) for a in (0, 0.5, 0.7, 0.95)] == [1, 4, 4, 32]
    with pytest.raises(ValueError, match="acceptance is 2; allowed: 0 to 1"):
        table.draft_length(2)
