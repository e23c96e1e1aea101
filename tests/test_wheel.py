"""The wheel without the checkout contains all data, and the README's examples work with it."""

import contextlib
import io
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from hatchling.build import build_sdist, build_wheel

from tests.test_release import VERSION

ROOT = Path(__file__).parent.parent

FIRST_LINES = """
import importlib.util, json
from pathlib import Path

import llada_jax as lj

QUESTION = "Anna had 4 apples. She bought 5 more apples. How many apples does Anna have?"
model = lj.load("tiny")
prompt = model.tokenizer.encode_chat([{"role": "user", "content": QUESTION}])
sampler = lj.SamplerConfig.preset("blockwise", gen_length=16, block_length=16)
result = lj.generate(model, [prompt], sampler, trace=True)

phone = lj.phone("SM8750")
table = phone.latency_table("llada_8b")
timed = phone.time(result.trace, shape="llada_8b")
plan = phone.plan("llada_8b")

package = Path(lj.__file__).parent
profile = (package / "phones" / "profiles" / "SM8750.yaml").read_text()
Path("my_phone.yaml").write_text(profile.replace("soc: SM8750", "soc: mine"))
mine = lj.phone("my_phone.yaml").time(result.trace, shape="llada_8b")

scored = lj.evaluate(
    model, task="yes_no", sampler=sampler, items=1, seed=0, folder="answers", progress=False
)
print(json.dumps({
    "package": str(package),
    "experiments": importlib.util.find_spec("experiments") is not None,
    "version": lj.__version__,
    "model": repr(model),
    "text": result.text,
    "table": [isinstance(table, lj.LatencyTable), len(table.ms)],
    "timed": [timed.seconds, *timed.interval, sum(timed.breakdown.values()), repr(timed)],
    "energy": timed.energy.joules,
    "mapped": timed.footprint.total,
    "plan": [plan.resident_bytes, plan.transfers, plan.stall_seconds, repr(plan)],
    "mine": [mine.soc, mine.seconds],
    "scored": [scored.score, *scored.interval, len(scored.generations)],
    "stored": sorted(path.name for path in Path("answers").iterdir()),
    "public": sorted(name for name in lj.__all__ if not hasattr(lj, name)),
}))
"""
"""The first lines that a new user runs."""


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the wheel and the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(io.StringIO()):
        build_wheel(str(folder))
        build_sdist(str(folder))
    return folder


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory) -> Path:
    """Only the wheel, unpacked as pip does."""
    folder = tmp_path_factory.mktemp("installed")
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


@pytest.fixture(scope="module")
def found(installed, tmp_path_factory) -> dict:
    """The output of those lines without the checkout. `site` is off, since it reads the link of an
    editable installation; PYTHONPATH gives the dependencies."""
    folder = tmp_path_factory.mktemp("elsewhere")
    script = folder / "first_lines.py"
    script.write_text(FIRST_LINES)
    dependencies = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(installed), *dependencies])}
    finished = subprocess.run(
        [sys.executable, "-S", str(script)],
        cwd=folder, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])


def package_files() -> set[str]:
    """Files of the package in the checkout."""
    files = (path for path in (ROOT / "llada_jax").rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in files if path.suffix != ".pyc"}


def test_the_wheel_has_every_file_of_the_package_and_the_license(built):
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if ".dist-info/" not in name} == package_files()
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    for kept in ("py.typed", "phones/published/fit.json", "model/architecture/llada_8b.yaml"):
        assert f"llada_jax/{kept}" in names


def test_the_source_distribution_can_be_tested(built):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as content:
        names = {name.partition("/")[2] for name in content.getnames()}
    assert package_files() <= names
    assert {"LICENSE", "pyproject.toml", "Makefile", "constraints.txt", "conf/bench.yaml"} <= names
    assert {"experiments/export.py", "tests/test_wheel.py"} <= names


def test_the_checkout_is_not_in_reach(found, installed):
    assert found["package"] == str(installed / "llada_jax")
    assert not found["experiments"] and found["public"] == []


def test_a_model_decodes(found):
    assert found["version"] == VERSION and found["model"].startswith("Model('tiny', family llada, ")
    (text,) = found["text"]
    assert isinstance(text, str)


def test_a_phone_gives_the_time_of_a_run(found):
    seconds, low, high, parts, shown = found["timed"]
    assert 0 < low < seconds < high and parts == pytest.approx(seconds)
    assert "modelled" in shown and "as if by this model" in shown and "\n" not in shown
    assert found["energy"] > 0 and found["mapped"] > 0
    assert found["table"] == [True, 4]


def test_a_phone_has_a_plan(found):
    resident, transfers, stall, shown = found["plan"]
    assert resident > 2**30 and transfers > 0 and stall >= 0 and "modelled" in shown


def test_a_custom_phone_is_a_yaml_file(found):
    assert found["mine"] == ["mine", found["timed"][0]]


def test_a_decoder_is_scored(found):
    score, low, high, generations = found["scored"]
    assert 0 <= low <= score <= high <= 1 and generations == 1
    assert found["stored"] == ["generations"]
