"""The page of a run: its data and structure, and, in a browser, that it opens and scrubs."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest

from llada_jax.phones.timeline import LaneTask, TimedTask, Timeline
from llada_jax.sampler.generate import Result
from llada_jax.view.page import Page, page_of, phone_timeline
from tests.sampler.drawn_trace import drawn_trace
from tests.view.browser import open_page


def forward_of(seconds):
    tasks = [LaneTask("layer", "npu", seconds), LaneTask("head", "cpu", 0.0)]
    return Timeline(tuple(TimedTask(task, 0.0, task.seconds, 0.0) for task in tasks))


def modelled(count):
    """The parts of a run that a page reads: two kinds of forwards, the first one longer."""
    steps = {"first": forward_of(0.5), "later": forward_of(0.25)}
    order = ["first", *["later"] * (count - 1)]
    return SimpleNamespace(
        soc="SM0", shape="toy", interval=(0.1, 9.0), seconds=0.25 + 0.25 * count, steps=steps,
        workload=SimpleNamespace(forwards=order),
    )  # fmt: skip


def result_of(trace):
    nothing = np.zeros((1, 1), np.int32)
    return Result(nothing, nothing[:, 0], nothing[:, 0], 1.0, 1.0, [], trace)


@pytest.fixture(scope="module")
def trace():
    return drawn_trace(forwards=8, block_length=8)


@pytest.fixture(scope="module")
def page(trace):
    return trace.page(beside=trace, timed=[modelled(8)])


@pytest.fixture
def file(page, tmp_path):
    page.show(tmp_path / "run.html")
    return tmp_path / "run.html"


def data_of(page):
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.html)
    return json.loads(data)["runs"]


def test_a_page_is_self_contained(page):
    first, second = data_of(page)
    assert first["events"] == second["events"] and first["pieces"][0].startswith(" t")
    assert "</script><b>" in first["pieces"]
    assert page.html.count("</script>") == 2 and "{%" not in page.html
    assert not re.search(r"""(src|href)\s*=|https?://(?!www\.w3\.org/2000/svg)""", page.html)
    assert "default-src 'none'" in page.html
    assert "<title>&lt;/script&gt;&lt;b&gt;" in page.html  # the prompt


def test_a_phone_s_timeline_has_each_kind_of_forward_once():
    timeline = phone_timeline(modelled(4))
    assert timeline["name"] == "SM0, toy" and timeline["order"] == [0, 1, 1, 1]
    assert timeline["kinds"][0] == {"seconds": 0.5, "tasks": [["layer", "npu", 0.0, 500.0]]}


def test_a_run_of_128_tokens_takes_less_than_a_megabyte():
    trace = drawn_trace(forwards=128, block_length=128)
    assert len(trace.event_step) == 128 * 129 // 2
    assert len(trace.page(timed=[modelled(128)]).html.encode()) < 2**20


def test_one_run_or_two():
    with pytest.raises(ValueError, match="3 runs; allowed: one, or two side by side"):
        page_of([{}, {}, {}])


def test_a_notebook_shows_pages_results_and_traces(trace, page):
    framed = page._repr_html_()
    assert framed.startswith("<iframe srcdoc=") and 'sandbox="allow-scripts"' in framed
    assert result_of(trace)._repr_html_() == trace._repr_html_() == trace.page()._repr_html_()
    assert result_of(None)._repr_html_() is None


def test_a_result_shows_itself_in_a_browser_or_as_a_file(trace, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(tmp_path))
    assert isinstance(result_of(trace).show(), Page)
    assert opened == [(tmp_path / "run.html").as_uri()] and (tmp_path / "run.html").exists()
    result_of(trace).show(tmp_path / "mine.html", beside=trace)
    assert len(opened) == 1 and "canvas" in (tmp_path / "mine.html").read_text()
    with pytest.raises(ValueError, match="kept no trace"):
        result_of(None).show()


def test_only_a_notebook_displays_a_returned_page(trace, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(tmp_path))
    pytest.importorskip("ipykernel")  # what starts kernels imports it, and runs in none
    result_of(trace).show()
    assert len(opened) == 1
    IPython = pytest.importorskip("IPython")
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(kernel=None))
    result_of(trace).show()
    assert len(opened) == 1


SCRUB = """
const said = (text) => { document.title += `|${text}`; };
const press = (key) => document.dispatchEvent(new KeyboardEvent("keydown", { key }));
const shown = () => [...document.querySelectorAll(".canvas")].map(
  (canvas) => canvas.querySelectorAll(".chip.masked").length).join(",");
press("Home"); said(shown());
press("ArrowRight"); said(byId("counter").textContent);
byId("scrub").value = byId("scrub").max;
byId("scrub").dispatchEvent(new Event("input")); said(shown());
press("d"); said(document.documentElement.style.colorScheme);
press("]"); said(document.querySelectorAll(".inspector li").length > 0);
said(document.querySelectorAll(".phone rect").length);
press("t"); said(byId("counter").textContent);
said(document.querySelector(".row-names").textContent);
"""


def test_a_browser_opens_and_scrubs_a_page(file):
    opened = open_page(file, "forward=1", SCRUB)
    assert opened.console == []
    title, *_ = re.findall("<title>(.*?)</title>", opened.html)
    masked, first, done, scheme, inspected, rects, by_time, rows = title.split("|")[1:]
    assert rows == "window 11"
    assert (masked, done) == ("8,8", "0,0")
    assert (first, by_time) == ("forward 1 / 8", "forward 8 / 8")
    assert (scheme, inspected) == ("dark", "true") and int(rects) == 8 + 1
    assert "&lt;/script&gt;" in opened.html


@pytest.mark.slow
def test_a_browser_scrubs_five_hundred_forwards_and_positions(tmp_path):
    trace = drawn_trace(forwards=500, block_length=100)
    trace.page(timed=[modelled(500)]).show(tmp_path / "run.html")
    opened = open_page(tmp_path / "run.html", "forward=1", SCRUB)
    assert opened.console == []
    title, *_ = re.findall("<title>(.*?)</title>", opened.html)
    assert title.split("|")[1:4] == ["500", "forward 1 / 500", "0"]
