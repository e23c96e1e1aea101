"""The documentation site: it builds without a warning, and its search finds a page."""

import re
import subprocess
import sys

import pytest

from tests.pages import ROOT
from tests.view.browser import open_page

SEARCH = """
const box = document.querySelector("input[name=q]");
box.value = "calibrate";
box.form.requestSubmit();
"""


@pytest.mark.slow
def test_a_word_typed_into_the_site_s_search_finds_its_page(tmp_path):
    for package in ("sphinx", "myst_nb", "furo", "sphinx_copybutton"):
        pytest.importorskip(package)
    build = ["-m", "sphinx", "--fail-on-warning", "--quiet", ROOT / "docs", tmp_path / "site"]
    subprocess.run([sys.executable, *build], check=True, cwd=ROOT)
    opened = open_page(tmp_path / "site/index.html", script=SEARCH)
    assert opened.console == []
    found = re.findall(r'<li class="kind-\w+"><a href="([\w.]+)', opened.html)
    assert "calibrate_your_phone.html" in found[:3]
