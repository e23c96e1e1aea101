import subprocess
import sys
from threading import Thread

import pytest

from llada_jax import chat_template
from llada_jax.chat_template import render

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(chat_template, "SECONDS", 0.2)


@pytest.mark.parametrize("template", [ENDLESS, "{{ 10 ** (10 ** 10) }}", "{{ lipsum(n=10 ** 7) }}"])
def test_a_template_without_end_is_ended_and_the_next_one_runs(quick, template):
    with pytest.raises(ValueError, match=r"failed with no end; allowed: 0\.2 seconds"):
        render(template, {})
    assert render("{{ a }}", {"a": "next"}) == "next"


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{ 'a' * 10 ** 10 }}", "MemoryError"),
        ("{{ 'a' | center(10 ** 10) }}", "MemoryError"),
        ("{{ '%10000000000d' | format(1) }}", "MemoryError"),
        ("{{ 'a' * 10 ** 7 }}", "more than 4,194,304 characters"),
        ("{% for i in range(99999) %}{{ 'a' * 999 }}{% endfor %}", "more than 4,194,304 char"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{" + "(" * 9999, ""),
        ("{{ range(10 ** 9) }}", "OverflowError"),
    ],
)
def test_a_template_that_takes_too_much_is_refused(template, problem):
    with pytest.raises(ValueError, match=f"the chat template failed with .*{problem}"):
        render(template, {})


def test_threads_take_turns():
    texts = {}

    def fill(n):
        texts[n] = render("{{ n }}", {"n": n})

    threads = [Thread(target=fill, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == {n: str(n) for n in range(8)}


def test_the_renderer_ends_with_the_process_that_asks():
    script = (
        "from llada_jax import chat_template as c; print(c.render('{{ 1 }}', {}));"
        "print(c._renderers[0].pid)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True
    )
    text, pid = done.stdout.split()
    assert text == "1" and done.stderr == ""
    assert not subprocess.run(["ps", "-p", pid], capture_output=True).stdout.count(pid.encode())
