from experiments.bench.spread import spread


def test_spread():
    low, median, high = sorted(row.value for row in spread("x", [1, 2, 3, 4, 9], "s"))
    assert (low, median, high) == (2, 3, 4)
