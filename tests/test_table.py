"""Tables of text and Markdown."""

from llada_jax.table import Table, aligned

ROWS = [{"name": "a", "n": "10", "empty": ""}, {"name": "long | `x`", "n": "9", "empty": ""}]


def test_a_table_is_text_and_markdown():
    table = Table(ROWS)
    assert repr(table).splitlines() == ["name        n", "a           10", "long | `x`  9"]
    assert table._repr_markdown_().splitlines() == [
        "| name | n | empty |",
        "| --- | --- | --- |",
        "| a | 10 |  |",
        r"| long \| \`x\` | 9 |  |",
    ]


def test_columns_are_aligned_on_either_side():
    assert aligned(ROWS, ("n",)).splitlines()[2] == "long | `x`   9"
    assert aligned([]) == ""
