"""A library's output is hidden unless the library fails."""

import os
from threading import Event, Thread

import pytest

from llada_jax.backend.silenced import silenced


def test_library_output_is_hidden_unless_it_fails(capfd: pytest.CaptureFixture[str]) -> None:
    with silenced("the library"):
        os.write(2, b"INFO: nothing of interest\n")
    assert capfd.readouterr().err == ""
    with pytest.raises(RuntimeError) as raised, silenced("the library"):
        os.write(2, b"".join(b"line %d\n" % i for i in range(20)))
        raise ValueError("no such kernel")
    lines = str(raised.value).splitlines()
    assert lines == ["the library failed: no such kernel", *(f"line {i}" for i in range(12, 20))]
    assert capfd.readouterr().err == ""
    os.write(2, b"heard again")
    assert capfd.readouterr().err == "heard again"


def test_other_errors_pass_silently_as_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), silenced("the library"):
        raise KeyboardInterrupt
    os.write(2, b"heard again")
    assert capfd.readouterr().err == "heard again"


def test_concurrent_threads_restore_the_outputs(capfd: pytest.CaptureFixture[str]) -> None:
    one_began, other_began = Event(), Event()

    def one() -> None:
        with silenced("one"):
            one_began.set()
            other_began.wait(0.5)

    def other() -> None:
        one_began.wait()
        with silenced("the other"):
            other_began.set()
            threads[0].join()

    threads = [Thread(target=one), Thread(target=other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.write(2, b"heard again")
    assert capfd.readouterr().err == "heard again"
