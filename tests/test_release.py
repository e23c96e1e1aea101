"""A release has one number and one date in all files."""

import re
import tomllib

import yaml

from tests.pages import ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_changelog_package_and_citation_name_the_same_release():
    releases = re.findall(r"^## \[(\d\S*)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert releases[0] == (VERSION, str(cited["date-released"]))
    assert cited["version"] == VERSION
    numbers = [tuple(map(int, version.split("."))) for version, _ in releases]
    assert numbers == sorted(set(numbers), reverse=True)
