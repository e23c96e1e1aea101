"""Models of the hub, in a cache with the layout of its package, made here by hand."""

import shutil
import sys
from pathlib import Path

import pytest

import llada_jax as lj
from llada_jax.checkpoint import fingerprint, model_path
from tests.checkpoint.folders import GOLDENS, loaded, same_bits

COMMIT, OLDER = "5d0c9f4f2d9b4e8a", "0f1e2d3c4b5a6978"
NAME = "some-org/LLaDA-tiny"


def add_snapshot(repository: Path, commit: str, golden: str, names: list[str]) -> Path:
    """As in the cache: blobs by their hash, links to them by their name."""
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir(exist_ok=True)
    for name in names:
        blob = repository / "blobs" / f"{golden}-{name}"
        shutil.copy(GOLDENS / golden / name, blob)
        (snapshot / name).symlink_to(Path("../../blobs") / blob.name)
    return snapshot


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--some-org--LLaDA-tiny"
    whole = ["config.json", "model.safetensors"]
    add_snapshot(repository, COMMIT, "llada-gqa", whole)
    add_snapshot(repository, OLDER, "llada-mha", whole)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "refs" / "v1").write_text(OLDER)
    return repository


@pytest.mark.parametrize(
    ("source", "golden"),
    [(NAME, "llada-gqa"), (f"{NAME}@v1", "llada-mha"), (f"{NAME}@{OLDER}", "llada-mha")],
)
def test_a_cached_model_is_loaded_by_its_name(repository: Path, source: str, golden: str) -> None:
    model, expected = lj.load(source), loaded(GOLDENS / golden)
    assert same_bits(model.params, expected[1]) and model.source == source
    assert model.fingerprint == fingerprint(source) == fingerprint(GOLDENS / golden)
    assert lj.describe(source).config == expected[0]


def test_a_repositorys_folder_is_its_snapshot(repository: Path) -> None:
    assert model_path(repository) == repository / "snapshots" / COMMIT
    assert same_bits(loaded(repository)[1], loaded(GOLDENS / "llada-gqa")[1])
    (repository / "refs" / "main").unlink()
    assert model_path(repository) == repository  # which of the two?
    shutil.rmtree(repository / "snapshots" / OLDER)
    assert model_path(repository) == repository / "snapshots" / COMMIT


def test_the_location_of_the_cache(repository: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert model_path(NAME) == repository / "snapshots" / COMMIT
    monkeypatch.setenv("HF_HOME", str(tmp_path / "other"))
    with pytest.raises(FileNotFoundError, match=r"not whole in .*other/hub, and HF_HUB_OFFLINE is"):
        lj.load(NAME)


def test_a_folder_of_that_name_comes_first(repository: Path, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(GOLDENS / "llada-mha", tmp_path / NAME)
    assert model_path(NAME) == Path(NAME)


@pytest.mark.parametrize(
    "source", [f"{NAME}@absent", f"{NAME}@..", f"{NAME}@../{COMMIT}", "a/b@c/.."]
)
def test_a_missing_revision_is_named(repository: Path, source: str) -> None:
    with pytest.raises(FileNotFoundError, match="no model at"):
        lj.load(source)


class TestDownloads:
    @pytest.fixture
    def asked(self, repository: Path, monkeypatch: pytest.MonkeyPatch) -> list:
        asked = []

        def snapshot_download(name, **options):
            asked.append((name, options["revision"], "*.safetensors" in options["allow_patterns"]))
            snapshot = repository / "snapshots" / COMMIT
            if asked[-1][2]:
                shutil.copy(GOLDENS / "llada-gqa" / "model.safetensors", snapshot)
            return str(snapshot)

        monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
        monkeypatch.delenv("HF_HUB_OFFLINE")
        return asked

    def test_complete_files_are_not_downloaded_again(self, asked: list) -> None:
        lj.load(NAME)
        assert asked == []

    def test_weights_are_downloaded_if_they_are_needed(self, repository, asked) -> None:
        snapshot = repository / "snapshots" / COMMIT
        (snapshot / "model.safetensors").unlink()
        assert lj.describe(NAME).missing[0] == "the weights" and asked == []
        (snapshot / "config.json").rename(repository / "config.json")
        with pytest.raises(FileNotFoundError, match=r"no config\.json in"):
            lj.describe(NAME)
        assert asked == [(NAME, "main", False)]
        (repository / "config.json").rename(snapshot / "config.json")
        lj.load(NAME)
        assert asked[1:] == [(NAME, "main", True)]

    def test_a_failed_download_is_reported(self, repository: Path, asked, monkeypatch) -> None:
        def fails(*_, **__):
            raise RuntimeError("401 Client Error")

        monkeypatch.setattr("huggingface_hub.snapshot_download", fails)
        with pytest.raises(FileNotFoundError, match="its download failed: 401 Client Error"):
            lj.load("some-org/other")

    def test_without_the_package(self, repository: Path, asked, monkeypatch) -> None:
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        assert lj.load(NAME).config.family == "llada"
        with pytest.raises(FileNotFoundError, match="a download needs the extra 'hub'"):
            lj.load("some-org/other")
