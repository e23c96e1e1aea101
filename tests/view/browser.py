"""A headless browser, if available: opens a page and returns the resulting document."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
ROOTLESS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
"""A container has no sandbox and little shared memory."""


class Opened(NamedTuple):
    """A page after its scripts."""

    html: str
    console: list[str]


def open_page(page: Path, fragment: str = "", script: str = "", width: int = 1200) -> Opened:
    """Opens a file, runs a script after the page's scripts, and waits until the page is idle.
    Skips the test if a browser is missing or does not start."""
    binary = next(filter(None, map(shutil.which, NAMES)), None)
    if binary is None:
        pytest.skip(f"no browser here (looked for {', '.join(NAMES)})")
    scripted = page.with_name(f"scripted_{page.name}")
    scripted.write_text(page.read_text().replace("</body>", f"<script>{script}</script></body>"))
    command = [binary, *ROOTLESS, f"--user-data-dir={page.parent / 'profile'}", "--dump-dom",
               f"--window-size={width},900", "--virtual-time-budget=2000",
               "--enable-logging=stderr", f"{scripted.as_uri()}#{fragment}"]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        pytest.skip("the browser here does not end")
    if done.returncode or "<body" not in done.stdout:
        pytest.skip(f"the browser here does not start: {done.stderr[-300:]}")
    return Opened(done.stdout, re.findall(r"CONSOLE[^\]]*\] (.*)", done.stderr))
