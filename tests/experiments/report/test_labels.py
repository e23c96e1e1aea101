"""Labels: short where they may be, and never the same for two decoders."""

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from experiments.report.labels import labels


def settings(name: str = "threshold", **changes: Any) -> dict[str, Any]:
    plain = {
        "model": "tiny",
        "dtype": None,
        "fingerprint": "f0",
        "task": {"name": "yes_no", "version": 1},
        "sampler_name": name,
        "sampler": {"threshold": 0.9, "steps": 32},
        "backend": "xla",
        "seed": 0,
    }
    return {**plain, **changes}


def texts(*decoders: dict[str, Any]) -> list[str]:
    found = labels({Path(f"runs/{i}"): each for i, each in enumerate(decoders)})
    return [label.text for label in found.values()]


def test_different_samplers_need_no_more_than_their_names():
    assert texts(settings("llada"), settings(), settings(backend="litert")) == [
        "tiny: llada",
        "tiny: threshold",
        "tiny: threshold on litert",
    ]


def test_what_differs_is_in_the_label_and_a_fingerprint_only_where_nothing_else_does():
    other = {"fingerprint": "f1"}
    assert texts(settings(), settings(seed=1)) == [
        "tiny: threshold, seed 0",
        "tiny: threshold, seed 1",
    ]
    assert texts(settings(), settings(dtype="int8", **other), settings("llada")) == [
        "tiny: threshold, dtype None",
        "tiny: threshold, dtype int8",
        "tiny: llada",
    ]
    assert texts(settings(), settings(**other))[1] == "tiny: threshold, fingerprint f1"
    assert texts(settings(), settings(sampler={"threshold": 0.9, "steps": 64})) == [
        "tiny: threshold, sampler.steps 32",
        "tiny: threshold, sampler.steps 64",
    ]
    assert texts(settings(), settings()) == [
        "tiny: threshold, run 0",
        "tiny: threshold, run 1",
    ]


def test_a_family_has_the_settings_of_a_sampler_and_nothing_else_different():
    decoders = {
        Path("a"): settings("threshold@threshold:0.9"),
        Path("b"): settings("threshold@threshold:0.5", sampler={"threshold": 0.5, "steps": 32}),
        Path("c"): settings("threshold@threshold:0.9", seed=1),
    }
    found = labels(decoders)
    assert found[Path("a")].family == found[Path("b")].family == "tiny: threshold, seed 0"
    assert found[Path("c")] == (
        "tiny: threshold@threshold:0.9, seed 1",
        "tiny: threshold, seed 1",
    )


@given(
    st.lists(
        st.builds(
            settings,
            st.sampled_from(["llada", "threshold", "threshold@steps:64"]),
            model=st.sampled_from(["tiny", "small", "threshold"]),
            seed=st.integers(0, 1),
            dtype=st.sampled_from([None, "int8"]),
            sampler=st.fixed_dictionaries({"steps": st.integers(1, 2)}),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_no_two_decoders_share_a_label(decoders):
    assert len(set(texts(*decoders))) == len(decoders)
