"""Names from files: names inside the folder give a path, others are refused by name."""

import re
from pathlib import Path

import pytest

from llada_jax.io.inside import inside


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "blob").write_bytes(b"")
    (folder / "out").symlink_to(tmp_path / "outside")
    (folder / "round").symlink_to(folder / "round")
    (folder / "blob").symlink_to("../outside/blob")
    (folder / "sub" / "blob").symlink_to("../../outside/blob")
    (folder / "sub" / "near").symlink_to("../plain")
    return folder


@pytest.mark.parametrize(
    "name",
    ["plain", "model-00001-of-00002.safetensors", "..a", "a..", "sub/new", "sub/near", "a/b/c"],
)
def test_names_inside(folder: Path, name: str) -> None:
    assert inside(folder, name) == folder / name
    assert inside(str(folder), name) == folder / name


def test_a_plain_name_may_be_a_symlink_as_in_the_hubs_cache(folder: Path) -> None:
    assert inside(folder, "blob") == folder / "blob"


def test_a_folder_that_is_a_symlink_itself(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert inside(tmp_path / "link", "sub/new") == tmp_path / "link" / "sub" / "new"


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "/", "/etc/passwd", "../outside/blob", "sub/../../outside/blob"),
        *(
            "sub/..",
            "sub/",
            "sub//new",
            "./plain",
            "a\0b",
            "out/blob",
            "out/new",
            "sub/blob",
            "a" * 256,
            "sub/" + "ü" * 128,
        ),
    ],
)
def test_names_outside_are_refused(folder: Path, name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(repr(name))} is named by a file of"):
        inside(folder, name)


def test_a_symlink_to_itself_is_refused(folder: Path) -> None:
    assert inside(folder, "round/new").is_relative_to(folder)
