"""`python -m experiments.report`: a page from decoded runs and from other runs."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.harness.pictures import (
    LINE_INCHES,
    ScorePoint,
    score_bars,
    score_curves,
    training_curve,
)
from experiments.report import __main__ as entry
from llada_jax.evaluation.environment import environment
from llada_jax.evaluation.generations import FORMAT, Generation, GenerationBatch, GenerationStore
from llada_jax.evaluation.task import Item
from tests.experiments.in_process import run_experiment

ITEMS = 20


def evaluation(
    folder: Path,
    name: str,
    right: int,
    nfe: int,
    items: int = ITEMS,
    questions: int = ITEMS,
    version: int = 1,
    **changes: Any,
) -> Path:
    """A stored run of `experiments.evaluate`. The first `right` questions are answered right;
    after the last item the items repeat from the first."""
    threshold = name.partition("@threshold:")[2]
    settings = {
        "model": "tiny",
        "task": {"name": "yes_no", "version": version, "difficulty": 1, "seed": 5},
        "sampler_name": name,
        "sampler": {"threshold": float(threshold)} if threshold else {"steps": 12},
        "backend": "xla",
        "seed": 0,
    }
    store = GenerationStore.begin(folder / "generations", settings | changes)
    asked = [i % questions for i in range(items)]
    generations = [
        Generation(i, Item(f"Is it {question}?", "#### yes", "yes"),
                   f"#### {'yes' if question < right else 'no'}", [1], 12, nfe)
        for i, question in enumerate(asked)
    ]  # fmt: skip
    store.add(GenerationBatch(generations, seconds=2.0, compiled=False))
    (folder / "env.json").write_text(json.dumps(environment()))
    return folder


def training(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "env.json").write_text(json.dumps(environment()))
    rows = [{"step": i, "loss": 3 / i, "accuracy": 1 - 1 / i} for i in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    row = {"name": "yes_no/exact_match", "value": 0.9, "unit": "share", "kind": "measured",
           "interval": [0.85, 0.95], "reference": 0.8, "source": "a | table"}  # fmt: skip
    (folder / "results.json").write_text(json.dumps([row]))
    return folder


def run(folder: Path, *arguments: str) -> str:
    run_experiment(entry.main, [*arguments, f"hydra.run.dir={folder}"])
    return (folder / "report.md").read_text()


def decoder_cells(page: str) -> list[list[str]]:
    """The cells of each decoder in the first table of a page."""
    lines = page.partition("| decoder |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def differences(page: str) -> dict[str, str]:
    """The difference to the baseline, without its interval, by decoder."""
    return {cells[0]: cells[10].split(" (")[0] for cells in decoder_cells(page)}


@pytest.fixture
def runs(tmp_path) -> Path:
    folder = tmp_path / "runs"
    evaluation(folder / "sweep" / "0", "llada", right=18, nfe=12)
    evaluation(folder / "sweep" / "1", "threshold@threshold:0.9", right=18, nfe=4)
    evaluation(folder / "sweep" / "10", "threshold@threshold:0.5", right=9, nfe=2)
    training(folder / "small")
    return folder


def test_decoders_are_compared_in_one_table(runs, tmp_path):
    page = run(tmp_path / "page", f"runs=[{runs}/sweep]", "baseline=llada")
    assert "\nAll runs: model tiny, backend xla, seed 0.\n" in page
    first, second, third = (" | ".join(cells) for cells in decoder_cells(page))
    assert first == (
        "llada | 20 | 20 | 90.0 % (69.9 to 97.2) | 90.0 % (69.9 to 97.2) | 12.00 |  |  | 1.00 | "
        "120 | baseline | "
    )
    assert second.startswith("threshold 0.9 | ")
    assert "4.00 |  |  | 3.00 | 120 | +0.0 (" in second
    assert "| -45.0 (" in third and third.endswith("| 0.0039")


def test_a_baseline_may_be_named_as_in_the_table(runs, tmp_path):
    page = run(tmp_path / "page", f"runs=[{runs}/sweep]", "baseline=threshold 0.5")
    assert differences(page) == {
        "llada": "+45.0",
        "threshold 0.9": "+45.0",
        "threshold 0.5": "baseline",
    }


def test_a_custom_rule_and_its_baseline_are_two_curves(tmp_path):
    for number, (low, nfe) in enumerate([(0.5, 3), (0.7, 4)]):
        evaluation(tmp_path / f"fixed{number}", f"threshold@threshold:{low}", right=9, nfe=nfe)
        rule = {"accept": "my_rules:KLASS", "low": low}
        name = "threshold@accept:my_rules\\:KLASS"
        evaluation(tmp_path / f"klass{number}", name, right=12, nfe=nfe + 1, sampler=rule)
    page = run(tmp_path / "page", f"runs=[{tmp_path}/fixed?,{tmp_path}/klass?]")
    names = [cells[0] for cells in decoder_cells(page)]
    assert names == ["threshold 0.5", "threshold 0.7", "KLASS 0.5", "KLASS 0.7"]
    (picture,) = re.findall(r"\((.+parallelism)\.png\)", page)
    drawn = (tmp_path / "page" / f"{picture}.svg").read_text()
    n_intervals = len(re.findall('id="LineCollection_', drawn))
    assert n_intervals == 2 * 2  # of two curves, in the axes and in the legend


def test_figures_grow_with_their_bars_and_axes_follow_the_data():
    few, many = (
        score_bars("a", {f"decoder {i}": ScorePoint(1, 0.1, 0.05, 0.2) for i in range(n)})
        for n in (2, 14)
    )
    assert many.get_figheight() - few.get_figheight() == pytest.approx(12 * 2 * LINE_INCHES)
    assert few.axes[0].get_xlim() == pytest.approx((0, 0.204))
    curve = [ScorePoint(1, 0.94, 0.93, 0.95), ScorePoint(2, 0.95, 0.94, 0.96)]
    low, high = score_curves("a", {"one": curve}, "forwards").axes[0].get_ylim()
    assert 0.92 < low < 0.93 and 0.96 < high < 0.97


def test_a_training_curve_shows_the_scores_of_probes():
    rows = [{"step": i, "loss": 3 / i, "accuracy": 1 - 1 / i} for i in (1, 2, 3)]
    assert len(training_curve("a", rows).axes) == 2  # loss and accuracy
    probed = [rows[0], rows[1] | {"yes_no/exact_match": 0.5}, rows[2] | {"yes_no/exact_match": 1}]
    line = training_curve("a", probed).axes[1].lines[0]
    assert line.get_label() == "yes_no"
    np.testing.assert_array_equal(line.get_xydata(), [[2, 0.5], [3, 1]])


def test_every_picture_exists_and_nothing_is_half_written(runs, tmp_path):
    page = run(tmp_path / "page", f"runs=[{runs}/sweep,{runs}/small]", "title=All of it")
    pictures = re.findall(r"!\[.+\]\((.+)\)", page)
    assert len(pictures) == 3
    for name in pictures:
        picture = tmp_path / "page" / name
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert "<svg" in picture.with_suffix(".svg").read_text()
    assert not list((tmp_path / "page").glob("*.partial"))
    assert page.startswith("# All of it\n")


def test_other_runs_show_their_results(runs, tmp_path):
    page = run(tmp_path / "page", f"runs=[{runs}/sm*]")
    value = "0.9000 (0.8500 to 0.9500) | share | measured | 0.8000 | a \\| table"
    assert f"| yes_no/exact_match | {value} |" in page


def test_runs_of_one_verb_share_a_table(tmp_path):
    for name, mib, step in (("0", 3200, 1.5), ("1", 2048, 3.0)):
        folder = tmp_path / "swept" / name
        folder.mkdir(parents=True)
        (folder / "env.json").write_text(json.dumps(environment()))
        (folder / "config.yaml").write_text(f"soc: SM8750\nsession_mib: {mib}\n")
        rows = [{"name": "step", "value": step, "unit": "s"},
                {"name": f"only/{name}", "value": 0, "unit": "MiB"}]  # fmt: skip
        modelled = [row | {"kind": "modelled"} for row in rows]
        (folder / "results.json").write_text(json.dumps(modelled))
    page = run(tmp_path / "page", f"runs=[{tmp_path}/swept]")
    assert "## 0, 1" in page
    for line in (
        "| result | 0: session_mib 3200 | 1: session_mib 2048 | unit | kind | reference | source |",
        "| step | 1.500 | 3.000 | s | modelled |  |  |",
        "| only/0 | 0 |  | MiB | modelled |  |  |",
        "![Results of each run](swept-side-by-side.png)",
    ):
        assert line in page.splitlines(), line
    assert (tmp_path / "page" / "swept-side-by-side.png").stat().st_size > 5_000


def test_repeated_runs_get_different_labels_and_no_curve(runs, tmp_path):
    for seed in (0, 1):
        evaluation(runs / f"seed{seed}", "threshold", right=9 * (1 + seed), nfe=4, seed=seed)
    evaluation(runs / "again", "threshold", right=18, nfe=4, seed=1)
    page = run(tmp_path / "page", f"runs=[{runs}/seed*,{runs}/again]")
    assert [cells[0] for cells in decoder_cells(page)] == [
        "threshold, seed 0",
        "threshold, seed 1, run seed1",
        "threshold, seed 1, run again",
    ]
    assert "parallelism" not in page
    names = [row["name"] for row in json.loads((tmp_path / "page" / "results.json").read_text())]
    assert len(set(names)) == len(names) == 15


@pytest.mark.parametrize(
    ("damage", "arguments", "message"),
    [
        (None, ["runs=[]"], "runs is empty; allowed"),
        (None, ["runs=[nowhere]"], "runs has 'nowhere', where no run is"),
        (
            None,
            ["runs=[{runs}/sweep]", "baseline=x"],
            "baseline is 'x'; allowed: llada, threshold 0.5, threshold 0.9",
        ),
        ("small/results.json", ["runs=[{runs}/small]"], r"small has no results\.json"),
        ("sweep/0/generations/000000.jsonl", ["runs=[{runs}/sweep]"], r"lacks 000000\.jsonl"),
    ],
)
def test_bad_input_is_named_before_a_page_is_written(runs, tmp_path, damage, arguments, message):
    if damage:
        (runs / damage).unlink()
    with pytest.raises(SystemExit, match=message):
        run(tmp_path / "page", *(argument.format(runs=runs) for argument in arguments))
    assert not any((tmp_path / "page").iterdir())


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("small/results.json", b"{}", r"small/results\.json is damaged: it has \{\}"),
        ("small/results.json", b'[{"name": "a"}]', r"results\.json is damaged: value is 'absent'"),
        ("small/results.json", b'[{"name": "\xfc"}]', r"results\.json is damaged: 'utf-8'"),
        *(
            (
                "small/results.json",
                b'[{"name": "a", "unit": "-", "kind": "measured", ' + more,
                message,
            )
            for more, message in (
                (b'"value": Infinity}]', r"results\.json is damaged: it has inf; allowed: finite"),
                (b'"value": 1' + b"0" * 400 + b"}]", r"results\.json is damaged: it has 10"),
                (b'"value": 1, "reference": NaN}]', r"results\.json is damaged: it has nan"),
                (b'"value": 1, "interval": [0, "x"]}]', r"results\.json is damaged: it has 'x'"),
                (b'"value": 1, "interval": 3}]', r"results\.json is damaged: interval is 3"),
                (b'"value": 1, "source": "\\ud800"}]', r"is no text; allowed: Unicode"),
            )
        ),
        ("small/metrics.jsonl", b'{"step": 1}\n{"st', r"small/metrics\.jsonl is damaged"),
        (
            "small/metrics.jsonl",
            b'{"step": 1, "loss": Infinity, "accuracy": 0}',
            r"metrics\.jsonl is damaged: it has inf",
        ),
        ("small/env.json", b'{"git_dirty', r"small/env\.json is damaged"),
        ("small/env.json", b"{}", r"small/env\.json is damaged: git_dirty is 'absent'"),
        ("sweep/0/env.json", b"\xff", r"0/env\.json is damaged"),
        (
            "sweep/0/generations/settings.json",
            b'{"format": 1, "settings": {}}',
            r"settings\.json is damaged: model is 'absent'",
        ),
        ("sweep/0/generations/000000.jsonl", b"{}\n", r"000000\.jsonl is damaged: count"),
    ],
)
def test_a_damaged_file_is_named_before_anything_is_written(runs, tmp_path, file, content, message):
    (runs / file).write_bytes(content)
    with pytest.raises(SystemExit, match=message):
        run(tmp_path / "page", f"runs=[{runs}/sweep,{runs}/small]")
    assert not any((tmp_path / "page").iterdir())


def test_names_from_stored_runs_are_escaped(tmp_path):
    hostile = "a\n\n# b|<img src=x onerror=y>[c](d)*e*`f` _g_ h_i \\"
    shown = r"a  # b\|\<img src=x onerror=y>[c]\(d)\*e\*\`f\` \_g\_ h_i \\"
    for place, value in enumerate((1, 2)):
        folder = training(tmp_path / str(place))
        row = {"name": hostile, "value": value, "unit": "$x$", "kind": hostile}
        rows = [row, row | {"name": r"$\frac{$", "unit": "a"}]
        (folder / "results.json").write_text(json.dumps(rows))
        (folder / "config.yaml").write_text(f"seed: {value}")
    page = run(tmp_path / "page", f"runs=[{tmp_path}/0,{tmp_path}/1]")
    assert f"\n| {shown} | 1 | 2 | \\$x\\$ | {shown} |  |  |\n" in page
    assert [line for line in page.splitlines() if line.startswith("#")][1:] == [
        "## 0, 1",
        "## Runs",
    ]


def test_a_baseline_of_fewer_items_is_named_before_anything_is_written(runs, tmp_path):
    evaluation(runs / "short", "short", right=1, nfe=2, items=3)
    with pytest.raises(SystemExit, match=r"/short/generations, lacks items \[3, 4, 5\] that .*/0/"):
        run(tmp_path / "page", f"runs=[{runs}/short,{runs}/sweep]", "baseline=short")
    assert not any((tmp_path / "page").iterdir())


def test_each_model_is_compared_with_its_own_baseline(tmp_path):
    for model, right in (("tiny", 10), ("small", 20)):
        evaluation(tmp_path / model / "llada", "llada", right=right, nfe=12, model=model)
        evaluation(tmp_path / model / "fast", "threshold", right=right - 2, nfe=4, model=model)
    evaluation(tmp_path / "half", "threshold", right=20, nfe=4, model="tiny", dtype="bfloat16")
    runs = f"runs=[{tmp_path}/tiny,{tmp_path}/small,{tmp_path}/half]"
    page = run(tmp_path / "page", runs, "baseline=llada")
    assert differences(page) == {
        "tiny: llada": "baseline",
        "tiny: threshold, dtype None": "-10.0",
        "tiny: threshold, dtype bfloat16": "no baseline",
        "small: llada": "baseline",
        "small: threshold": "-10.0",
    }
    rows = json.loads((tmp_path / "page" / "results.json").read_text())
    found = [row["value"] for row in rows if row["name"].endswith("/against/llada/difference")]
    assert found == [pytest.approx(-0.1)] * 2


def test_the_baseline_of_the_same_backend_is_preferred(tmp_path):
    for backend, right in (("xla", 20), ("litert", 10)):
        evaluation(tmp_path / backend / "llada", "llada", right=right, nfe=12, backend=backend)
        evaluation(tmp_path / backend / "fast", "threshold", right=10, nfe=4, backend=backend)
    evaluation(tmp_path / "tiles", "staged", right=18, nfe=4, tiles="q4_0")
    runs = f"runs=[{tmp_path}/xla,{tmp_path}/litert,{tmp_path}/tiles]"
    page = run(tmp_path / "page", runs, "baseline=llada")
    assert differences(page) == {
        "llada on xla": "baseline",
        "threshold on xla": "-50.0",
        "llada on litert": "baseline",
        "threshold on litert": "+0.0",
        "staged on xla": "-10.0",
    }


def test_several_runs_that_could_be_the_baseline_are_named(runs, tmp_path):
    evaluation(runs / "again", "llada", right=17, nfe=12)
    with pytest.raises(SystemExit, match=r"baseline of .*sweep/0, .*/again; allowed: one"):
        run(tmp_path / "page", f"runs=[{runs}/sweep,{runs}/again]", "baseline=llada")
    assert not any((tmp_path / "page").iterdir())


def test_each_version_of_a_task_has_a_table(tmp_path):
    for version in (1, 2):
        evaluation(tmp_path / f"v{version}", "llada", right=9, nfe=12, version=version)
    page = run(tmp_path / "page", f"runs=[{tmp_path}/v*]")
    assert re.findall("## (yes_no.*)", page) == [
        "yes_no, version 1, difficulty 1, seed 5",
        "yes_no, version 2, difficulty 1, seed 5",
    ]


def test_a_repeated_question_counts_once(tmp_path):
    once, often = tmp_path / "once", tmp_path / "often"
    for folder, items in ((once, 5), (often, 100)):
        evaluation(folder / "0", "llada", right=4, nfe=12, items=items, questions=5)
        evaluation(folder / "1", "threshold", right=1, nfe=4, items=items, questions=5)
    pages = [run(each / "page", f"runs=[{each}/?]", "baseline=llada") for each in (once, often)]
    tables = [decoder_cells(page) for page in pages]
    for line, same in zip(*tables, strict=True):
        assert (line[1:3], same[1:3]) == (["5", "5"], ["100", "5"])
        assert line[3:9] == same[3:9] and line[10:] == same[10:]  # but more tokens a second
    assert tables[1][0][3] == "80.0 % (37.6 to 96.4)" and tables[1][1][-1] == "0.25"


def test_a_run_without_results_is_reported_as_such(runs, tmp_path):
    (runs / "small" / "results.json").write_text("[]")
    assert "without result rows" in run(tmp_path / "page", f"runs=[{runs}/small]")


def test_a_run_of_another_version_is_refused(runs, tmp_path):
    path = runs / "sweep" / "0" / "generations" / "settings.json"
    header = json.loads(path.read_text())
    path.write_text(json.dumps({**header, "format": FORMAT + 1}))
    with pytest.raises(SystemExit, match=rf"has format {FORMAT + 1}; allowed: {FORMAT}"):
        run(tmp_path / "page", f"runs=[{runs}/sweep]")
