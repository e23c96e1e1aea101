"""Rows of `results.json`: checked, with the error computed, and readable as a table."""

import json

import numpy as np
import pytest

from experiments.harness.results import ResultRow, table

LATENCY = ResultRow(
    name="latency", value=np.float32(7.5), unit="s", kind="modelled", reference=6, source="Table 3"
)


def test_a_row_is_plain_json_without_empty_fields():
    row = ResultRow(name="forwards", value=np.int64(128), unit="forwards")
    assert json.dumps(row.as_dict()) == (
        '{"name": "forwards", "value": 128, "unit": "forwards", "kind": "measured"}'
    )


def test_the_error_is_relative_to_the_reference():
    assert LATENCY.as_dict() == {
        "name": "latency",
        "value": 7.5,
        "unit": "s",
        "kind": "modelled",
        "reference": 6,
        "source": "Table 3",
        "error": 0.25,
    }
    assert ResultRow(name="a", value=-3.0, unit="s", reference=-2, source="b").error == -0.5
    assert ResultRow(name="a", value=3.0, unit="s", reference=0, source="b").error is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "name is ''; allowed: text"),
        ({"unit": ""}, "unit is ''; allowed: text"),
        ({"kind": "guessed"}, "kind is 'guessed'; allowed: 'measured', 'modelled', 'fitted'"),
        ({"value": float("nan")}, "value of speed is nan; allowed: a finite number"),
        ({"value": "fast"}, "value of speed is 'fast'; allowed: a finite number"),
        ({"reference": float("inf"), "source": "Table 3"}, "reference of speed is inf"),
        ({"reference": 2.0}, "source of speed is None; allowed: the publication of the number"),
        ({"kind": "published"}, "source of speed is None"),
    ],
)
def test_bad_rows_are_errors(changes, message):
    with pytest.raises(ValueError, match=message):
        ResultRow(**{"name": "speed", "value": 1.0, "unit": "tokens/s", **changes})


def test_a_table_is_aligned_and_has_no_empty_columns():
    rows = [
        ResultRow(name="forwards", value=12_345, unit="forwards"),
        LATENCY,
        ResultRow(
            name="accuracy", value=0.61234, unit="share", n=500, items=1000, interval=(0.57, 0.654)
        ),
        ResultRow(name="energy", value=98_765.4, unit="J"),
        ResultRow(name="change", value=0.0, unit="tokens"),
    ]
    assert table(rows).split("\n") == [
        "name       value  unit      kind      reference   error    n  items          interval"
        "  source",
        "forwards  12,345  forwards  measured",
        "latency    7.500  s         modelled          6  +25.0%                              "
        "  Table 3",
        "accuracy  0.6123  share     measured                     500  1,000  0.5700 to 0.6540",
        "energy    98,765  J         measured",
        "change         0  tokens    measured",
    ]
    assert table([]) == ""


def test_a_table_names_the_sources_of_its_traces_once():
    def row(name: str, source: str | None) -> ResultRow:
        return ResultRow(name=name, value=1, unit="s", kind="modelled", trace_source=source)

    rows = [row("a", "mine"), row("b", None), row("c", "theirs"), row("d", "mine")]
    assert table(rows).splitlines()[-1] == "traces: mine; theirs"
    assert "traces" not in table([rows[1]])
