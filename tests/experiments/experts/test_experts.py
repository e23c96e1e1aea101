"""The experts experiment runs at small size, names its rows as documented, refuses bad input."""

import json

import pytest
from hydra import compose, initialize_config_dir

from experiments.experts.__main__ import ExpertsConfig, experts
from experiments.experts.hybrimoe_tables import PUBLISHED, Scenario, gains_of
from experiments.harness.run import REPOSITORY, Run, read_config
from tests.experts import traces

SMALL = [
    "paper.profile_tokens=4", "paper.tokens=3", "paper.prompts=1", "phones.socs=[SM8750]",
    "phones.ratios=[0.5]", "phones.profile_blocks=1", "phones.blocks=1",
]  # fmt: skip


def composed(*overrides):
    with initialize_config_dir(str(REPOSITORY / "conf"), version_base="1.3"):
        return compose("experts", [*overrides])


def run_parts(folder, *overrides):
    return run_all_of(folder, *SMALL, *overrides)


def run_all_of(folder, *overrides):
    config = composed(*overrides)
    experts(read_config(ExpertsConfig, config), Run(folder, config))
    return {row["name"]: row for row in json.loads((folder / "results.json").read_text())}


def test_the_configuration_is_the_default_of_the_dataclass():
    assert read_config(ExpertsConfig, composed()) == ExpertsConfig()


def test_phones(tmp_path):
    rows = run_parts(tmp_path, "parts=[phones]")
    for model in ("llada2_mini", "llada_moe"):
        cell = f"{model}/SM8750/50"
        speeds = {
            name: rows[f"{cell}/{name}/tokens_per_second"]["value"]
            for name in ("ktransformers", "hybrimoe", "lru", "bound")
        }
        assert all(row["kind"] == "modelled" for row in rows.values())
        assert 0 < max(speeds.values()) == speeds["bound"]
    assert rows["trace/llada2_mini/similarity_1"]["reference"] == 0.985


@pytest.mark.slow
def test_the_papers_tables(tmp_path):
    """Averages and ablation are within 20 %; one of their rows was fitted."""
    rows = run_all_of(tmp_path, "parts=[paper]")
    ablation = {
        f"qwen2_25/{phase}/{name}": value
        for phase, speedups in PUBLISHED["speedup"].items()
        for name, value in {**speedups, "baseline": PUBLISHED["seconds"][phase]}.items()
    }
    averages = {f"average/{phase}": value for phase, value in PUBLISHED["average"].items()}
    for name, published in {**ablation, **averages}.items():
        assert rows[name]["reference"] == published and "2504.05897" in rows[name]["source"]
        assert abs(rows[name]["error"]) < 0.2, name
    fitted = {name for name, row in rows.items() if row["kind"] == "fitted"}
    assert fitted == {
        "qwen2_25/decode/baseline", "hit_rate/mixtral/25/lru", "hit_rate/deepseek/25/lru",
        "hit_rate/qwen2/25/lru", "hit_rate/qwen2/25/mrs",
    }  # fmt: skip
    assert abs(rows["qwen2_25/decode/baseline"]["error"]) < 0.005
    compared = [row for name, row in rows.items() if name.startswith("hit_") and "source" in row]
    assert len(compared) == 8
    for phase, count in (("decode", 9), ("prefill", 36)):
        assert rows[f"average/{phase}"]["n"] == count
        assert (
            sum(name.startswith(f"{phase}/") and name.endswith("/gain") for name in rows) == count
        )
    cpus = "misses_on_the_cpu/cpu_x{}/average/prefill"
    assert min(rows[cpus.format(n)]["value"] for n in (1, 8, 16, 32)) > 1.5
    assert all(abs(row["value"] - row["reference"]) <= 0.03 for row in compared)


def test_gains_of_cells_and_their_average():
    trace, shape = traces.small_trace(), traces.SMALL
    scenarios = [
        Scenario(f"small/{slots}", "decode", shape, slots / 16, trace, 6) for slots in (4, 8)
    ]
    rows = {row.name: row for row in gains_of("decode", scenarios)}
    gains = [rows[f"decode/{scenario.name}/gain"].value for scenario in scenarios]
    before, after = (rows[f"decode/small/8/{name}"].value for name in ("ktransformers", "hybrimoe"))
    assert gains[1] == pytest.approx(before / after)
    average = rows["average/decode"]
    assert average.value == pytest.approx(sum(gains) / 2) and average.reference == 1.70


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("parts=[all]", "part is 'all'; allowed: 'paper'"),
        ("parts=[]", "parts is empty; allowed: at least one"),
        ("phones.socs=[SM1]", "phones: phone is 'SM1'; allowed: SM8550, SM8650, SM8750"),
        ("phones.ratios=[0.0]", r"phones: cache ratio is 0\.0; allowed: 0\.00390625 \(one"),
        ("phones.npu=fast", "phones: kernels is 'fast'; allowed: "),
        ("phones.cpu=fast", "phones: cpu is 'fast'; allowed: "),
        ("paper.tokens=0", "paper: tokens is 0; allowed: 1 or more"),
    ],
)
def test_bad_input(override, message):
    with pytest.raises(ValueError, match=message):
        read_config(ExpertsConfig, composed(override))


def test_an_unknown_model_is_reported_before_the_run(tmp_path):
    config = composed("routing.model=nowhere", "parts=[routing]")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        experts(read_config(ExpertsConfig, config), Run(tmp_path, config))
    assert not list(tmp_path.iterdir())
