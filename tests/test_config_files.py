import pytest

from llada_jax.config_files import read_yaml

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(12)
)
CYCLE = "a: &a [*a]\n"
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n + 1}: &a{n + 1}\n  <<: [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(12)
)
CHAIN = "a0: &a0 {x: 1}\n" + "".join(f"a{n + 1}: &a{n + 1} {{x: *a{n}}}\n" for n in range(40))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (BOMB, "line 6 makes 132,861 values; allowed: up to 100,000"),
        (CYCLE, "line 1 has an alias"),
        (MERGES, "values; allowed: up to 100,000"),
        (CHAIN, "levels; allowed: up to 32"),
        ("a: " + "[" * 100_000, "line 1 makes 33 levels; allowed: up to 32"),
        ("a: " + "{a: " * 40 + "1" + "}" * 40, "33 levels"),
        ("".join(f"{' ' * n}- \n" for n in range(100)), "33 levels"),
        (f"a: 1{':59' * 5_000}", "15,001 characters; allowed: up to 10,000"),  # to base 60
        (f"a: {'9' * 9_999}", "Exceeds the limit"),
        ("# " * (1 << 20), "it has 2,097,152 bytes; allowed: up to 1,048,576"),
        ("a: !!python/object/apply:os.system [ls]", "line 1 has the tag '.*os.system'"),
        ("a: !!timestamp x", "line 1 has the tag 'tag:yaml.org,2002:timestamp'; allowed: values"),
        ("a: !!bool maybe", "has the tag 'tag:yaml.org,2002:bool'"),
        ("!!map {a: 1}", "has the tag"),
        ("a: 2001-13-45", "month must be in 1..12"),
        ("a: 1\nb: {c: 1, d: [c], c: 2}", "line 2 repeats 'c'; allowed: each key once"),
        ("a: 1\n'a': 2", "line 2 repeats 'a'"),
        ("[1]", "allowed: a mapping"),
        ("a: [", ""),
        ("? [1]\n: 2", ""),
        ("a: \x00", ""),
    ],
)
def test_invalid_yaml_is_refused_quickly(tmp_path, text, problem):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"mine\.yaml is (no YAML: )?.*{problem}") as found:
        read_yaml(path)
    assert len(str(found.value)) < 1000


def test_settings_may_nest_and_repeat(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("a: &a {b: {c: [1, {d: 2}]}}\ne: *a\nf: {<<: *a, g: *a, b: a}\n")
    inner = {"b": {"c": [1, {"d": 2}]}}
    assert read_yaml(path) == {"a": inner, "e": inner, "f": {"b": "a", "g": inner}}


def test_callers_get_independent_copies(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("a: [1]\n")
    read_yaml(path)["a"].append(2)
    assert read_yaml(path) == {"a": [1]}
