"""The page in a headless browser: ask, watch, compare, share. It needs playwright and Chromium.

`SCREENSHOTS=folder MODEL=small python -m pytest -m slow tests/serve/test_browser.py` also stores
pictures of the page.
"""

import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")
sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="needs chromium"),
]

from tests.serve.test_server import serving  # noqa: E402 (it needs the packages, too)

FOLDER = os.environ.get("SCREENSHOTS")
PATIENCE = 600_000  # milliseconds: the first run of a shape is compiled


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address():
    with serving(model=os.environ.get("MODEL", "tiny")) as (_, address):
        yield address


@contextmanager
def opened(browser, address, **options):
    """Opens the page; afterwards there must have been no error in the console."""
    page = browser.new_page(**({"viewport": {"width": 1240, "height": 860}} | options))
    problems = []
    page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.set_default_timeout(PATIENCE)
    page.goto(address)
    sync_api.expect(page.locator("#state")).to_contain_text("running")
    yield page
    page.close()
    assert problems == []


def picture(page, name: str) -> None:
    if FOLDER:
        page.wait_for_timeout(700)  # the last animation
        page.screenshot(path=Path(FOLDER) / f"{name}.png", full_page=True)


def finished(page, count: int = 1):
    """Waits until all runs have finished."""
    enabled = page.locator(".run h2 button:not([disabled])")
    sync_api.expect(enabled).to_have_count(count, timeout=PATIENCE)
    return page.locator(".run")


def test_ask_watch_and_share(browser, address, tmp_path):
    with opened(browser, address, accept_downloads=True) as page:
        picture(page, "empty")
        page.fill("#tokens", "16" if FOLDER is None else "64")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("#runs .cell.stable, #runs .cell.visible")  # it fills
        picture(page, "filling")
        run = finished(page)
        assert run.locator(".answer").inner_text().strip()
        assert run.locator(".cell").count() >= 16
        assert float(run.locator(".meter.phone b").inner_text()) > 0
        run.locator(".cell").first.hover()
        sync_api.expect(run.locator(".note")).to_contain_text("forward")
        page.locator("#tokens").blur()
        page.keyboard.press("ArrowRight")
        sync_api.expect(run.locator(".note")).to_contain_text("position 1")
        picture(page, "light")
        page.keyboard.press("d")
        picture(page, "dark")
        with page.expect_download(timeout=PATIENCE) as download:
            run.get_by_text("Share").click()
        download.value.save_as(tmp_path / "run.html")
    shared = browser.new_page()
    shared.goto((tmp_path / "run.html").as_uri())
    assert "Anna" in shared.content()
    shared.close()


def test_compare_and_constrain(browser, address):
    with opened(browser, address) as page:
        page.fill("#tokens", "16" if FOLDER is None else "64")
        page.locator("#compare").check()
        page.select_option("#preset1", "threshold")
        page.locator("summary").click()
        page.fill("#schema", '{"type": "object", "properties": {"a": {"enum": [1, 2]}}}')
        if FOLDER:
            page.fill("#schema", "")
            page.locator("summary").click()
        page.locator("#ask").click()
        runs = finished(page, 2)
        if not FOLDER:
            for answer in runs.locator(".answer").all_inner_texts():
                assert answer in ("{}", '{"a":1}', '{"a":2}')
        picture(page, "compare")


def test_a_small_screen_needs_no_sideways_scrolling(browser, address):
    with opened(browser, address, viewport={"width": 390, "height": 844}) as page:
        page.fill("#tokens", "16" if FOLDER is None else "64")
        page.locator("#ask").click()
        finished(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        picture(page, "phone")


def test_a_schema_that_is_no_json_is_named(browser, address):
    with opened(browser, address) as page:
        page.locator("summary").click()
        page.fill("#schema", "{")
        page.locator("#ask").click()
        sync_api.expect(page.locator(".error")).to_contain_text("the schema is no JSON")
