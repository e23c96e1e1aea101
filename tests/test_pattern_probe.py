import pytest

from llada_jax.pattern_probe import probe_patterns

USUAL = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "digits in threes": r"(?=(\d{3})+(?!\d))",
    "spaces": " {2,}",
}


def probe(pattern: str) -> None:
    part = {"type": "Split", "behavior": "Isolated", "invert": False}
    probe_patterns({"pre_tokenizer": part | {"pattern": {"Regex": pattern}}}, [pattern])


@pytest.mark.parametrize("family", USUAL)
def test_usual_patterns_pass(family):
    probe(USUAL[family])


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (r"(a|aa)+b", "limit-in-match over"),  # exponential
        (r"\d*\d*x", "no end within 1 CPU-seconds and 1024 MiB"),  # cubic
        (r"(xy)*(xy)*z", "no end within 1 CPU-seconds and 1024 MiB"),
        ("(", "Oniguruma error"),
        ("(" * 9999, "Oniguruma error"),
    ],
)
def test_unsafe_patterns_are_named(pattern, message):
    with pytest.raises(ValueError, match=f"patterns .* failed on repeated characters: .*{message}"):
        probe(pattern)


def test_decoders_are_also_probed():
    replace = {"type": "Replace", "pattern": {"Regex": "a*a*b"}, "content": ""}
    with pytest.raises(ValueError, match="no end within"):
        probe_patterns({"decoder": replace}, ["a*a*b"])
