"""Scores as text: one line per decoder, with aligned numbers."""

from dataclasses import replace

import pytest

from experiments.evaluate.score_table import suite_tables, thresholds_of
from experiments.harness.results import ResultRow
from llada_jax.evaluation.tally import Tally
from llada_jax.sampler.config import SamplerConfig

DECODERS = {"slow": SamplerConfig(), "fast": SamplerConfig.preset("staged")}
TALLIES = {
    name: Tally((True,) * right + (False,) * (10 - right), (128,) * 10, (64,) * 10, (2,) * 10)
    for name, right in (("slow", 9), ("fast", 0))
}


def rows(tasks, phones=()):
    for decoder, share in (("slow", 0.9), ("fast", 0.0)):
        for place in ("", *(f"/{task}" for task in tasks)):
            name = f"s/{decoder}{place}"
            yield ResultRow(
                name=f"{name}/exact_match", value=share, unit="of questions", interval=(0, 1),
                n=20 if place else 19 * len(tasks), items=25,
            )  # fmt: skip
            for soc in phones:
                yield ResultRow(
                    name=f"{name}/phone/{soc}", value=2.5, unit="s", kind="modelled",
                    trace_source="a toy",
                )  # fmt: skip
    yield ResultRow(
        name="s/fast/against/slow/difference",
        value=-0.9,
        unit="of questions",
        interval=(-0.95, 0.021),
    )


def test_each_decoder_has_one_line_over_all_tasks_and_one_by_task():
    tasks = ("yes_no", "choices")
    assert suite_tables("s", DECODERS, tasks, list(rows(tasks)), TALLIES).splitlines() == [
        "s: 25 items of yes_no, choices; 38 different questions",
        "decoder  thresholds     exact match (95 %)  forwards  forwards/block  tokens/forward"
        "  points against slow (95 %)",
        "slow                 90.0 % (59.6 to 98.2)    128.00           64.00            0.50",
        "fast     0.7, 0.9      0.0 % (0.0 to 27.8)    128.00           64.00            0.50"
        "       -90.0 (-95.0 to +2.1)",
        "",
        "exact / strict match by task (questions: yes_no 20, choices 20)",
        "decoder  yes_no  choices",
        "slow     90.0 %   90.0 %",
        "fast      0.0 %    0.0 %",
    ]


def test_strict_match_is_shown_next_to_exact_match():
    tallies = {
        name: one._replace(strict=(True,) * 5 + (False,) * 5) for name, one in TALLIES.items()
    }
    shown = [*rows(["a", "b"])]
    shown += [replace(row, name=row.name.replace("exact", "strict"), value=0.5) for row in shown
              if row.name.endswith("/a/exact_match")]  # fmt: skip
    last = replace(shown[-1], name="s/fast/against/slow/strict/difference", interval=(0.4, 0.6))
    head, slow, fast, *_, by_task = suite_tables(
        "s", DECODERS, ["a", "b"], [*shown, last], tallies
    ).splitlines()[1:]
    assert "exact match (95 %)    strict match (95 %)  " in head
    assert "90.0 % (59.6 to 98.2)  50.0 % (23.7 to 76.3)  " in slow
    assert head.endswith("strict points against slow (95 %)") and fast.endswith("(+40.0 to +60.0)")
    assert by_task.split() == "fast 0.0 % / 50.0 % 0.0 %".split()


def test_one_task_needs_one_table_and_phones_have_their_columns():
    lines = suite_tables("s", DECODERS, ["a"], list(rows(["a"], ("SM8750",))), TALLIES).splitlines()
    assert len(lines) == 5 and lines[1].endswith("SM8750") and lines[2].endswith("2.50 s")
    assert lines[-1] == "traces: a toy"


@pytest.mark.parametrize(
    ("sampler", "text"),
    [
        (SamplerConfig(), ""),
        (SamplerConfig.from_flat(threshold=0.9), "0.9"),
        (SamplerConfig.from_flat(threshold=0.9, confidence_dtype="float64"), "0.9"),
        (SamplerConfig.preset("llada_cpp", theta_visible=0.55), "0.55, 0.9"),
        (SamplerConfig.preset("wino"), "0.6, 0.9"),
        (SamplerConfig.preset("token_edit"), "0.7, 0.5"),
    ],
)
def test_thresholds_of_a_sampler_are_shown(sampler, text):
    assert thresholds_of(sampler) == text
