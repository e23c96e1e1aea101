"""A pattern becomes an automaton over a tokenizer's ids, which is cached on disk."""

import re

import jax
import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

import llada_jax as lj
from llada_jax.constraint import compiled
from llada_jax.constraint.automaton import END, NEVER
from llada_jax.constraint.batch import CompiledConstraints, grammar_of
from llada_jax.constraint.byte_automaton import byte_automaton, matches
from llada_jax.constraint.expression import parse_regex
from llada_jax.constraint.spelling import spelled_tokens
from llada_jax.text import Tokenizer
from tests.constraint.tiny import accepts

ENDS = (0, 6)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    found = lj.load("small").tokenizer
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def made(constraint, tokenizer, vocab=960):
    return compiled.compiled(constraint, tokenizer, ENDS, vocab)


def test_choices_accept_only_the_tokenizers_split(tokenizer):
    found = made(lj.choice(["the cat", "the cap", "a"]), tokenizer)
    for text in ("the cat", "the cap", "a"):
        whole = tokenizer.encode(text)
        assert accepts(found, [*whole, 6, 0, 0]) and not accepts(found, [*whole, 0, *whole])
    assert not accepts(found, tokenizer.encode("the")) and not accepts(found, [0])
    assert found.shortest == 1


def test_tokens_with_equal_transitions_share_a_class(tokenizer):
    found = made(lj.choice(["cat"]), tokenizer)
    columns = found.transitions.T.tolist()
    assert len({tuple(column) for column in columns}) == len(columns)
    assert found.class_of[list(ENDS)].tolist() == [END, END]
    assert (found.class_of[[1, 3, 959]] == NEVER).all()


def test_automata_of_a_batch_share_their_classes(tokenizer):
    first, second = (made(lj.choice([text]), tokenizer) for text in ("cat", "a hat"))
    cat, hat = lj.choice(["cat"]), lj.choice(["a hat"])
    both = grammar_of(CompiledConstraints((cat, hat), {cat.texts: first, hat.texts: second}), ENDS)
    for pattern, text in enumerate(("cat", "a hat")):
        state = both.start[pattern]
        for token in tokenizer.encode(text):
            state = both.transitions[pattern, state, both.class_of[token]]
        assert both.distance[pattern, state] == 0


def test_small_patterns_have_arrays_of_one_shape(tokenizer):
    """So they share compiled programs."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 12}}}
    constraints = [lj.choice(["cat"]), lj.regex("[0-9]+: [a-z ]*"), lj.json_schema(schema)]
    grammars = [
        grammar_of(CompiledConstraints((c,), {c.texts: made(c, tokenizer)}), ENDS)
        for c in constraints
    ]
    shapes = [tuple(leaf.shape for leaf in jax.tree.leaves(grammar)) for grammar in grammars]
    assert len(set(shapes)) == 1


def test_an_automaton_is_built_once(tokenizer, monkeypatch):
    constraint = lj.choice(["cat"])
    first = made(constraint, tokenizer)
    monkeypatch.setattr(compiled, "text_automaton", None)
    again = made(constraint, tokenizer)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    with pytest.raises(TypeError):  # another vocabulary is another automaton
        made(constraint, tokenizer, 961)


def test_a_damaged_cache_file_is_rebuilt(tokenizer, tmp_path):
    constraint = lj.choice(["cat"])
    first = made(constraint, tokenizer)
    (file,) = tmp_path.rglob("*.npz")
    file.write_bytes(file.read_bytes()[:100])
    assert np.array_equal(made(constraint, tokenizer).transitions, first.transitions)


def test_regular_expressions_match_bytes(tokenizer):
    found = made(lj.regex(r"[0-9]{2,3}(, [0-9]{2,3})*"), tokenizer)
    assert accepts(found, tokenizer.encode("12, 345")) and found.shortest <= 2
    assert not accepts(found, tokenizer.encode("12, 3"))
    with pytest.raises(ValueError, match="no text that the tokenizer spells"):
        made(lj.regex(r"\x00"), tokenizer)
    for pattern in (r"[0-9]+(\.[0-9]+)?", r"(?:[a-c]*,)*[a-c]|x"):
        found = made(lj.regex(pattern), tokenizer)
        for text in ("1", "10.5", "10.", "a,b,c", "abc,,a", "x", ",", "x,a"):
            assert accepts(found, tokenizer.encode(text)) is bool(re.fullmatch(pattern, text))


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("a)|(?:b", "a `)` without `(` at position 1"),
        ("^a", "`^` at position 0"),
        ("a$", "`$` at position 1"),
        ("(?x)a #", "a group that begins with `(?`"),
        ("(?<=a)b", "a group that begins with `(?`"),
        (r"\bword", r"the escape \b"),
        (r"(a)\1", r"the escape \1"),
        ("\ud800", "half a surrogate pair"),
        ("[a&&b]", "an operation of classes"),
        ("[b-a]", "a range of a class with wrong ends"),
        ("[a", "a `[` without `]`"),
        ("(a", "a `(` without `)`"),
        ("a{", "a `{` that begins no repetition"),
        ("a{3,2}", "a repetition from 3 to 2"),
        ("a{99999}", "16384 is the maximum"),
        ("a++", "a possessive `+`"),
        ("*", "`*` at position 0"),
        ("(" * 200, "more than 100 nested groups"),
    ],
)
def test_what_is_no_expression_is_refused(pattern, problem):
    with pytest.raises(ValueError, match=re.escape(problem)) as refused:
        lj.regex(pattern)
    assert "\n" not in str(refused.value)


def test_an_automaton_is_limited_in_states_and_work():
    for pattern in ("(a|b)*a(a|b){15}", "((a{99}){99}){99}"):
        with pytest.raises(ValueError, match="over bytes"):
            byte_automaton(parse_regex(pattern))


@pytest.mark.parametrize(
    "pattern",
    [
        r'"(?:[^"\\]|\\["n]){0,1000}"',
        r'"(?:[^"\\]|\\["n]){12,1000}"',
        r'"(?:[^"\\]|\\["n]){12,}"',
        r'"[^"]{9}"',
        r'"(?:é|x{0,3})[^"]{0,11}"',  # for these two, counts differ by the way
        r'"(?:[^"]{0,11}|é{12})"',
    ],
)
def test_repetitions_are_counted(pattern):
    automaton = byte_automaton(parse_regex(pattern))
    assert len(automaton.limit) < 250
    for length in (0, 1, 3, 8, 9, 11, 12, 13, 1000, 1001):
        text = '"' + "é" * length + '"'
        assert matches(automaton, text.encode()) is bool(re.fullmatch(pattern, text))


SPELLED = {i: bytes([i]) for i in range(256)} | dict(enumerate([b"aa", b"a\xc3", b'a", "'], 256))


def in_bytes(pattern: str, text: str) -> bool:
    found = compiled.node_automaton(parse_regex(pattern), SPELLED, [300], 301)
    return accepts(found, [*text.encode(), 300])


def test_counted_states_over_tokens_accept_the_counted_texts():
    """A string in tokens of several characters, of one, and of parts of a character."""
    pattern = '"[^"]{3,40}"(?:, "[^"]{2}")?'
    found = compiled.node_automaton(parse_regex(pattern), SPELLED, [300], 301)
    for text in (
        '"ab"', '"' + "é" * 40 + '"', '"' + "a" * 41 + '"', '"é cats", "hé"', '"abc", "a"',
        '"aaa", "aa"', '"aa", "aa"', '"' + "a" * 40 + '", "aé"', '"' + "a" * 41 + '", "aé"',
    ):  # fmt: skip
        fits, spelled = bool(re.fullmatch(pattern, text)), text.encode()
        longest = []
        while spelled:
            tokens = [i for i in SPELLED if spelled.startswith(SPELLED[i])]
            token = max(tokens, key=lambda i: len(SPELLED[i]))
            longest.append(token)
            spelled = spelled[len(SPELLED[token]) :]
        assert accepts(found, [*text.encode(), 300]) is accepts(found, [*longest, 300]) is fits


def test_a_token_that_ends_inside_a_character_may_count_as_several():
    """For long strings only: at most 1/64 of the maximum, rounded up."""
    pattern = '"[^"]{0,640}"'
    assert in_bytes(pattern, '"' + "a" * 640 + '"') and not in_bytes(pattern, f'"{"a" * 641}"')
    assert in_bytes(pattern, '"' + "é" * 64 + '"') and not in_bytes(pattern, f'"{"é" * 66}"')
    assert in_bytes('"[^"]{0,64}"', '"' + "é" * 64 + '"')


def test_parts_without_alternatives_have_the_tokenizers_own_tokens(tokenizer):
    pattern = r'\{"steps":"[a-z ]*"\}\n#### [A-D]'
    own, free = (made(lj.regex(pattern, spelling=each), tokenizer) for each in ("own", "any"))
    letters = [token for each in '{"steps":"' for token in tokenizer.encode(each)]
    begin, rest = (
        tokenizer.encode('{"steps":"'),
        [*tokenizer.encode('the cat"'), *tokenizer.encode("}\n####")],
    )
    assert len(begin) < len(letters)
    for end in (" A", " ", "A"):  # a space at the end of a stretch may be one with what follows
        tokens = [*rest, *tokenizer.encode(end), *(tokenizer.encode("B") if end == " " else [])]
        assert accepts(own, [*begin, *tokens]) is accepts(free, [*begin, *tokens]) is (end != "A")
        assert accepts(free, [*letters, *tokens]) is (end != "A")
        assert not accepts(own, [*letters, *tokens])


def test_bad_patterns_are_refused(tokenizer, monkeypatch):
    with pytest.raises(ValueError, match="has no tokens"):
        made(lj.choice(["a\x00"]), tokenizer)
    with pytest.raises(ValueError, match="the choices have more than 16384 states"):
        made(lj.choice(["a" * 200_000]), tokenizer)
    with pytest.raises(ValueError, match="allowed: up to 4"):
        monkeypatch.setattr(compiled, "MAX_STATES", 4)
        made(lj.choice(["abcdefg"]), tokenizer)
    with pytest.raises(ValueError, match="no tokenizer"):
        compiled.compile_constraints(lj.choice(["a"]), None, ENDS, 9)
    with pytest.raises(ValueError, match="names an EOS"):
        compiled.compile_constraints(lj.choice(["a"]), tokenizer, (), 9)
    with pytest.raises(ValueError, match=r"allowed: lj\.regex"):
        compiled.compile_constraints("a", tokenizer, ENDS, 9)  # pyright: ignore
    mixed = [lj.choice(["a"]), lj.choice(["a"], confidence="raw")]
    with pytest.raises(ValueError, match=r"\['allowed', 'raw'\]"):
        compiled.compile_constraints(mixed, tokenizer, ENDS, 9)


def test_spellings_of_bytes_and_of_pieces(tokenizer):
    spelled = spelled_tokens(tokenizer)
    assert spelled[tokenizer.encode("\n")[0]] == b"\n" and not spelled.keys() & {*range(7)}
    assert b"".join(spelled[i] for i in tokenizer.encode(" a box")) == b" a box"
    pieces = tokenizers.Tokenizer(
        tokenizers.models.BPE({"<0x0A>": 0, "\u2581a": 1}, [], byte_fallback=True)
    )
    with pytest.raises(ValueError, match="allowed: ByteLevel"):
        spelled_tokens(Tokenizer(pieces, {}))
    pieces.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.ByteFallback(), tokenizers.decoders.Metaspace()]
    )
    assert spelled_tokens(Tokenizer(pieces, {})) == {0: b"\n", 1: b" a"}


EXPRESSIONS = st.recursive(
    st.sampled_from(["a", "b", ",", "[ab]", "[^a]", "."]),
    lambda part: st.one_of(
        st.tuples(part, part).map("".join),
        st.tuples(part, part).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(part, st.sampled_from(["*", "?", "+", "{1,2}"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
    ),
    max_leaves=5,
)


@given(EXPRESSIONS, st.lists(st.text("ab,", max_size=5), min_size=8, max_size=8))
@settings(max_examples=60)
def test_an_expression_accepts_what_python_accepts(pattern, texts):
    automaton = byte_automaton(parse_regex(pattern))
    for text in texts:
        assert matches(automaton, text.encode()) is bool(re.fullmatch(pattern, text))
