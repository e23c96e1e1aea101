"""Finds models of the Hugging Face hub (`org/name[@revision]`) in its cache, or downloads them.

The cache has a folder for each repository: `models--org--name/refs/REVISION` contains the name of
a commit, and `models--org--name/snapshots/COMMIT` contains the files, as links to `blobs`. A
complete snapshot is used without network access.
https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

_NAME = re.compile(r"(?P<name>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>\w[\w.-]*(/\w[\w.-]*)*))?")
_FOLDER = re.compile(r"models--[\w.-]+--[\w.-]+")
_MAIN = "main"
_LONGEST_NAME = 255
_TEXTS = ["*.json", "*.jinja", "*.txt", "*.model"]
_WEIGHTS = ["*.safetensors"]


def hub_folder(
    source: Path, complete: Callable[[Path], bool], weights: bool = True
) -> tuple[Path, str]:
    """Returns the folder of a hub model, and the reason why it could not be downloaded.

    A cached snapshot that is `complete` is returned without network access. Others are downloaded
    by the package huggingface_hub (the extra `hub`), unless `HF_HUB_OFFLINE` is set. The cache is
    `$HF_HUB_CACHE`, or `$HF_HOME/hub`.

    Args:
      source: `org/name[@revision]`; a repository's folder in a cache (`models--org--name`), whose
        snapshot is returned; or any other path, which is returned unchanged.
      complete: Whether a snapshot's folder has all files that are needed.
      weights: Whether to download weights in addition to configuration and tokenizer.

    Returns:
      The folder, and "" unless a download was needed and failed.
    """
    if source.is_dir() and _FOLDER.fullmatch(source.name) and (source / "snapshots").is_dir():
        return _snapshot(source, _MAIN) or source, ""
    match = _NAME.fullmatch(str(source))
    if match is None or source.exists():
        return source, ""
    name, revision = match["name"], match["revision"] or _MAIN
    cached = _snapshot(_cache() / f"models--{name.replace('/', '--')}", revision)
    if cached is not None and complete(cached):
        return cached, ""
    downloaded, reason = _download(name, revision, _TEXTS + _WEIGHTS * weights)
    return downloaded or cached or source, reason


def _cache() -> Path:
    subfolders = {"HF_HUB_CACHE": "", "HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub"}
    for variable, subfolder in subfolders.items():
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser() / subfolder
    return Path("~/.cache/huggingface/hub").expanduser()


def _snapshot(repository: Path, revision: str) -> Path | None:
    """Returns the folder of a branch, a tag or a commit, or None if the cache lacks it. If `main`
    is requested and unknown, a repository's only snapshot is returned."""
    reference, snapshots = repository / "refs" / revision, repository / "snapshots"
    commit = revision
    if reference.is_file():
        commit = reference.read_bytes()[:_LONGEST_NAME].decode(errors="replace").strip()
    if re.fullmatch(r"\w[\w.-]*", commit) and (snapshots / commit).is_dir():
        return snapshots / commit
    all_snapshots = [*snapshots.iterdir()] if snapshots.is_dir() and revision == _MAIN else []
    return all_snapshots[0] if len(all_snapshots) == 1 else None


def _download(name: str, revision: str, patterns: list[str]) -> tuple[Path | None, str]:
    """Downloads a model, and returns its folder, or None and the reason."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return None, f"it is not whole in {_cache()}, and HF_HUB_OFFLINE is set"
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        return None, f"it is not whole in {_cache()}, and a download needs the extra 'hub'"
    try:
        folder = snapshot_download(
            name, revision=revision, cache_dir=_cache(), allow_patterns=patterns
        )
    except Exception as error:  # of huggingface_hub or its HTTP client
        return None, f"its download failed: {error}"
    return Path(folder), ""
