"""Labels of decoders: short, different for each, and one curve for each method."""

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from experiments.report.labels import labels, shared_settings


def sampler(**changes: Any) -> dict[str, Any]:
    return {"threshold": 0.9, "steps": 32, "accept": "threshold"} | changes


def settings(name: str = "threshold", **changes: Any) -> dict[str, Any]:
    plain = {
        "model": "tiny",
        "dtype": None,
        "fingerprint": "f0",
        "task": {"name": "yes_no", "version": 1},
        "sampler_name": name,
        "sampler": sampler(),
        "backend": "xla",
        "seed": 0,
    }
    return {**plain, **changes}


def texts(*decoders: dict[str, Any]) -> list[str]:
    by_folder = labels({Path(f"runs/{i}"): settings for i, settings in enumerate(decoders)})
    return [label.text for label in by_folder.values()]


def test_methods_are_distinguished_by_their_names_only():
    assert texts(settings("llada"), settings()) == ["llada", "threshold"]


def test_each_label_has_the_model_and_the_backend_if_there_are_several():
    assert texts(settings("llada", backend="litert"), settings(model="small")) == [
        "tiny: llada on litert",
        "small: threshold on xla",
    ]


def test_a_label_has_the_settings_that_differ_and_a_fingerprint_only_if_nothing_else_does():
    other = {"fingerprint": "f1"}
    assert texts(settings(), settings(seed=1)) == ["threshold, seed 0", "threshold, seed 1"]
    assert texts(settings(), settings(dtype="int8", **other), settings("llada")) == [
        "threshold, dtype None",
        "threshold, dtype int8",
        "llada",
    ]
    assert texts(settings(), settings(**other))[1] == "threshold, fingerprint f1"
    assert texts(settings(), settings()) == ["threshold, run 0", "threshold, run 1"]


def test_a_fraction_needs_no_name_and_a_count_does():
    assert texts(settings(sampler=sampler(threshold=1)), settings()) == [
        "threshold 1",
        "threshold 0.9",
    ]
    assert texts(settings(), settings(sampler=sampler(steps=64))) == [
        "threshold, steps 32",
        "threshold, steps 64",
    ]
    both = settings(sampler=sampler(threshold=0.5, steps=64))
    assert texts(settings(), settings(sampler=sampler(steps=64)), both)[2] == (
        "threshold, threshold 0.5, steps 64"
    )


def test_a_custom_rule_and_the_preset_that_it_was_set_in_are_two_curves():
    decoders = {}
    for number in (0.5, 0.7):
        name = f"threshold@threshold:{number}"
        decoders[Path(f"fixed/{number}")] = settings(name, sampler=sampler(threshold=number))
        rule = sampler(accept="my_rules:KLASS", threshold=None, low=number)
        decoders[Path(f"klass/{number}")] = settings(
            "threshold@accept:my_rules:KLASS", sampler=rule
        )
    found = labels(decoders)
    assert {str(folder): label for folder, label in found.items()} == {
        "fixed/0.5": ("threshold 0.5", "threshold by threshold"),
        "fixed/0.7": ("threshold 0.7", "threshold by threshold"),
        "klass/0.5": ("KLASS 0.5", "KLASS by low"),
        "klass/0.7": ("KLASS 0.7", "KLASS by low"),
    }


def test_one_rule_on_two_presets_and_rules_of_one_name_are_different_curves():
    rule = sampler(accept="a:KLASS")
    curves = labels({
        Path("a"): settings("threshold@accept:a:KLASS", sampler=rule),
        Path("b"): settings("llada@accept:a:KLASS", sampler=rule),
        Path("c"): settings("llada@accept:b:KLASS", sampler=sampler(accept="b:KLASS")),
    })  # fmt: skip
    assert [label.curve for label in curves.values()] == [
        "KLASS, preset threshold, accept a:KLASS",
        "KLASS, preset llada, accept a:KLASS",
        "KLASS, preset llada, accept b:KLASS",
    ]


def test_a_window_of_the_user_is_part_of_the_method():
    window = settings(sampler=sampler(window="my_windows:Sliding"))
    assert texts(settings(), window) == ["threshold", "threshold Sliding"]


def test_a_choice_begins_another_curve_and_a_number_does_not():
    decoders = {
        Path("a"): settings(sampler=sampler(cache="dual")),
        Path("b"): settings(sampler=sampler(cache="dual", threshold=0.5)),
        Path("c"): settings(sampler=sampler(cache="none")),
    }
    curves = [label.curve for label in labels(decoders).values()]
    assert curves == ["threshold by threshold, cache dual"] * 2 + ["threshold, cache none"]


def test_what_all_decoders_share_is_stated_once():
    decoders = [
        settings(f"threshold@threshold:{number}@top:True",
                 sampler=sampler(threshold=number, top=True, gen_length=64, other=3))
        for number in (0.5, 0.7)
    ]  # fmt: skip
    assert shared_settings(decoders) == "model tiny, top True, gen_length 64, backend xla, seed 0"


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
