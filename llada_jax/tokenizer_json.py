"""Checks the JSON of a tokenizer before the tokenizers library builds it.

A `tokenizer.json` comes with a checkpoint, so a stranger may have written it, and the library does
not check it. A few bytes can make it exhaust memory (a `Replace` that multiplies a text, an id of
10^9), run for minutes, or panic in its Rust code. Here every part is compared with a schema, and
only the listed parts, settings and sizes reach the library, as new JSON. A schema cannot bound
the run time of regular expressions, so `pattern_probe` tries them in a child process.

The parts also bound the length of a text inside the library: each has a largest factor by which it
lengthens a text, and `max_text_bytes` divides a fixed limit by their product.
"""

import base64
import binascii
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

import tokenizers

from llada_jax.config import parse_json, require, require_value, shortened
from llada_jax.pattern_probe import probe_patterns

MAX_FILE_BYTES = 1 << 26  # twice the size of Gemma 3's file, one of the largest
MAX_ID = 1 << 22  # the library loops over all ids up to the largest one
MAX_TOKEN_CHARACTERS = 4096
_MAX_NORMALIZED_BYTES = 1 << 24  # 4M digits, a token each, took 1.7 GB and 15 seconds
_MAX_GROWTH = 4096  # so that texts of 4 KiB can always be encoded
_MAX_DECODER_GROWTH = 16
_MAX_PARTS, _MAX_LEVELS = 64, 8
_MAX_ADDED_CHARACTERS = 1 << 22  # the library's automaton takes about 100 bytes for each
MAX_MERGES = 1 << 21  # four times Gemma 3's number
MAX_PIECE_CHARACTERS = 256  # a Unigram model tries all pieces at each position of a text
MAX_PIECES_CHARACTERS = 1 << 22  # the library's tree takes about 350 bytes for each


class _Setting(NamedTuple):
    """The values that a setting of a part may have."""

    allowed: str
    """The allowed values in words, for messages."""
    accepts: Callable[[Any], bool]
    required: bool = True


def _text(minimum: int, maximum: int) -> _Setting:
    def accepts(value: Any) -> bool:
        return isinstance(value, str) and minimum <= len(value) <= maximum

    return _Setting(f"text of {minimum} to {maximum} characters", accepts)


def _number(minimum: int, maximum: int) -> _Setting:
    return _Setting(f"{minimum} to {maximum}", partial(_is_number, minimum, maximum))


def _is_number(minimum: int, maximum: int, value: Any) -> bool:
    return type(value) is int and minimum <= value <= maximum


def _one_of(*values: str) -> _Setting:
    return _Setting(", ".join(map(repr, values)), lambda value: value in values)


def _optional(setting: _Setting) -> _Setting:
    def accepts(value: Any) -> bool:
        return value is None or setting.accepts(value)

    return _Setting(f"{setting.allowed} or null", accepts, required=False)


def _is_pattern(value: Any) -> bool:
    match value:
        case {"String": str(pattern)} | {"Regex": str(pattern)}:
            # An empty pattern would match before every character and multiply any text.
            return len(value) == 1 and 1 <= len(pattern) <= 4096
    return False


def _is_token_with_id(value: Any) -> bool:
    match value:
        case [str(token), int(i)]:
            return _TOKEN.accepts(token) and _is_id(i)
    return False


def _is_template(value: Any) -> bool:
    """Returns whether a template has each sequence at most once, so that it multiplies no text."""
    if not isinstance(value, list) or len(value) > 64:
        return False
    sequences = []
    for piece in value:
        match piece:
            case {"Sequence": {"id": str(name)}}:
                sequences.append(name)
            case {"SpecialToken": {"id": str()}}:
                pass
            case _:
                return False
    return len(sequences) == len(set(sequences))


def _are_special_tokens(value: Any) -> bool:
    def has_ids(token: Any) -> bool:
        match token:
            case {"ids": list(ids)}:
                return len(ids) <= 64 and all(map(_is_id, ids))
        return False

    return isinstance(value, dict) and all(map(has_ids, value.values()))


_is_id = partial(_is_number, 0, MAX_ID - 1)
_FLAG = _Setting("true or false", lambda value: isinstance(value, bool))
_LIST = _Setting("a list", lambda value: isinstance(value, list))
_MERGES = _Setting(
    f"a list of up to {MAX_MERGES:,} merges",
    lambda value: isinstance(value, list) and len(value) <= MAX_MERGES,
)
_CHARACTER, _AFFIX, _TOKEN = _text(1, 1), _text(0, 64), _text(1, MAX_TOKEN_CHARACTERS)
_PATTERN = _Setting('{"String": ...} or {"Regex": ...} of 1 to 4096 characters', _is_pattern)
_BEHAVIOR = _one_of("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
_PAIR = _Setting(f"[token, id], the id below {MAX_ID}", _is_token_with_id)
_TEMPLATE = _Setting("up to 64 pieces, with sequences A and B once each at most", _is_template)
_SPECIAL = _Setting(f"tokens with up to 64 ids below {MAX_ID} each", _are_special_tokens)


_NO_SETTINGS: dict[str, _Setting] = {}
_BYTE_LEVEL = {"add_prefix_space": _FLAG, "trim_offsets": _FLAG, "use_regex": _optional(_FLAG)}
_METASPACE = {
    "replacement": _CHARACTER,
    "prepend_scheme": _optional(_one_of("first", "never", "always")),
    **dict.fromkeys(("add_prefix_space", "split"), _optional(_FLAG)),
    "str_rep": _optional(_AFFIX),
}
_REPLACE = {"pattern": _PATTERN, "content": _AFFIX}
_ENDS = {"sep": _PAIR, "cls": _PAIR}

_PARTS: dict[str, dict[str, dict[str, _Setting]]] = {
    "normalizer": {
        "BertNormalizer": {
            **dict.fromkeys(("clean_text", "handle_chinese_chars", "lowercase"), _FLAG),
            "strip_accents": _optional(_FLAG),
        },
        "Strip": {"strip_left": _FLAG, "strip_right": _FLAG},
        "Precompiled": {"precompiled_charsmap": _text(1, 1 << 22)},
        "Replace": _REPLACE,
        "Prepend": {"prepend": _AFFIX},
        **dict.fromkeys(("StripAccents", "NFC", "NFD", "NFKC", "NFKD"), _NO_SETTINGS),
        **dict.fromkeys(("Lowercase", "Nmt", "ByteLevel"), _NO_SETTINGS),
    },
    "pre_tokenizer": {
        "ByteLevel": _BYTE_LEVEL,
        "Metaspace": _METASPACE,
        "CharDelimiterSplit": {"delimiter": _CHARACTER},
        "Split": {"pattern": _PATTERN, "behavior": _BEHAVIOR, "invert": _FLAG},
        "Punctuation": {"behavior": _optional(_BEHAVIOR)},
        "Digits": {"individual_digits": _FLAG},
        "FixedLength": {"length": _number(1, MAX_TOKEN_CHARACTERS)},
        **dict.fromkeys(("BertPreTokenizer", "Whitespace", "WhitespaceSplit"), _NO_SETTINGS),
        "UnicodeScripts": _NO_SETTINGS,
    },
    "post_processor": {
        "BertProcessing": _ENDS,
        "RobertaProcessing": {**_ENDS, "trim_offsets": _FLAG, "add_prefix_space": _FLAG},
        "ByteLevel": _BYTE_LEVEL,
        "TemplateProcessing": {"single": _TEMPLATE, "pair": _TEMPLATE, "special_tokens": _SPECIAL},
    },
    "decoder": {
        "BPEDecoder": {"suffix": _text(1, 64)},
        "ByteLevel": _BYTE_LEVEL,
        "WordPiece": {"prefix": _AFFIX, "cleanup": _FLAG},
        "Metaspace": _METASPACE,
        "CTC": {"pad_token": _TOKEN, "word_delimiter_token": _TOKEN, "cleanup": _FLAG},
        "Replace": _REPLACE,
        "Strip": {"content": _CHARACTER, "start": _number(0, 64), "stop": _number(0, 64)},
        **dict.fromkeys(("Fuse", "ByteFallback"), _NO_SETTINGS),
    },
}
"""Allowed parts of a tokenizer, apart from its model: settings by section and type."""

_SEQUENCES = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}
"""The setting with the parts of a `Sequence`, by section."""

_MODELS: dict[str, dict[str, _Setting]] = {
    "BPE": {
        # With another value, encoding would be random.
        "dropout": _optional(_Setting("0", lambda value: value == 0)),
        "unk_token": _optional(_text(0, MAX_TOKEN_CHARACTERS)),
        **dict.fromkeys(("continuing_subword_prefix", "end_of_word_suffix"), _optional(_AFFIX)),
        **dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), _optional(_FLAG)),
        "merges": _MERGES,
    },
    "WordPiece": {
        "unk_token": _TOKEN,
        "continuing_subword_prefix": _AFFIX,
        # The run time is quadratic in the length of a word.
        "max_input_chars_per_word": _number(1, 256),
    },
    "WordLevel": {"unk_token": _TOKEN},
    "Unigram": {"unk_id": _optional(_number(0, MAX_ID - 1)), "byte_fallback": _optional(_FLAG)},
}
"""Allowed models: settings by type, apart from the vocabulary."""


def build_backend(data: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Builds a tokenizer from the content of a `tokenizer.json`, without padding and truncation.

    Raises ValueError if the data fails `check_tokenizer_json` or the library cannot use it.
    """
    data = check_tokenizer_json(data)
    with one_sentence("the tokenizers library cannot build it"):
        backend = tokenizers.Tokenizer.from_str(json.dumps(data))
        actual = [backend.token_to_id(token["content"]) for token in data["added_tokens"]]
    for token, i in zip(data["added_tokens"], actual, strict=True):
        # The library ignores these ids: tokens outside the vocabulary get the next free ones.
        require(
            i == token["id"],
            f"the id of the added token {token['content']!r} is {token['id']}; allowed: {i}, "
            "which follows from the vocabulary",
        )
    return backend


def backend_from_json(content: str) -> tokenizers.Tokenizer:
    """Builds a tokenizer from the text of a `tokenizer.json`; see `build_backend`."""
    data = parse_json(content, "the content is no JSON", "one JSON object")
    require_value(isinstance(data, dict), "the content", data, "one JSON object")
    return build_backend(data)


@contextmanager
def one_sentence(wrong: str) -> Iterator[None]:
    """Turns errors in its block, including panics of the library's Rust code, into a ValueError
    whose message begins with `wrong`."""
    try:
        yield
    except BaseException as error:
        # A panic is not an Exception, and its class cannot be imported.
        if not isinstance(error, Exception) and type(error).__module__ != "pyo3_runtime":
            raise
        raise ValueError(shortened(f"{wrong}: {error}")) from error


def check_tokenizer_json(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the checked sections of a tokenizer's JSON, which the library may read.

    Padding and truncation are left out, since files can contain the settings of a training run.

    Raises ValueError for a part, setting or size that is not allowed, and for regular expressions
    that fail or take too long.
    """
    sections = {section: data.get(section) for section in _PARTS}
    parts = {section: _checked_parts(section, part) for section, part in sections.items()}
    growth = _growth(sections["normalizer"]) * _growth(sections["pre_tokenizer"])
    for name, factor, limit in (
        ("normalizer and pre_tokenizer", growth, _MAX_GROWTH),
        ("decoder", _growth(sections["decoder"]), _MAX_DECODER_GROWTH),
    ):
        require(
            factor <= limit,
            f"{name} can make a text {factor:.4g} times as long; allowed: {limit} times",
        )
    added_tokens = data.get("added_tokens") or []
    _check_added_tokens(added_tokens, _growth(sections["normalizer"]))
    model = _checked_model(data.get("model"))
    patterns = [
        part["pattern"]["Regex"]
        for part in chain.from_iterable(parts.values())
        if "Regex" in part.get("pattern", ())
    ]
    if patterns:
        probe_patterns(sections | {"post_processor": None}, patterns)
    version = data.get("version", "1.0")
    return {"version": version, "added_tokens": added_tokens, **sections, "model": model}


def max_text_bytes(backend: tokenizers.Tokenizer) -> int:
    """Returns the maximum length of a text in bytes of UTF-8 that `backend` may encode."""
    # The pickled state of a part is its JSON. `backend.to_str()` would also write the vocabulary.
    parts = [part for part in (backend.normalizer, backend.pre_tokenizer) if part is not None]
    growth = math.prod(_growth(json.loads(part.__getstate__())) for part in parts)
    return int(_MAX_NORMALIZED_BYTES / growth)


def _checked_parts(section: str, part: Any) -> list[dict[str, Any]]:
    """Returns the checked parts of a section, with sequences flattened."""
    parts = list(islice(_flattened(section, part, 0), _MAX_PARTS + 1))
    require(len(parts) <= _MAX_PARTS, f"{section} has more than {_MAX_PARTS} parts; allowed: fewer")
    return parts


def _flattened(section: str, part: Any, level: int) -> Iterator[dict[str, Any]]:
    if part is None and level == 0:
        return
    types = _PARTS[section] | {"Sequence": {_SEQUENCES[section]: _LIST}}
    kind = part.get("type") if isinstance(part, dict) else None
    known = isinstance(kind, str) and kind in types
    require_value(known, section, part, f"the types {', '.join(types)}")
    assert isinstance(part, dict) and isinstance(kind, str)
    _check_settings(f"{section} {kind}", part, types[kind])
    if kind != "Sequence":
        yield part
        return
    require(level < _MAX_LEVELS, f"{section} nests deeper than {_MAX_LEVELS} levels; allowed: less")
    for inner in part[_SEQUENCES[section]]:
        yield from _flattened(section, inner, level + 1)


def _check_settings(
    name: str, part: Mapping[str, Any], settings: Mapping[str, _Setting], *others: str
) -> None:
    # Unknown settings are refused, not ignored. The library tries its types in turn whatever the
    # field `type` contains, so a setting of another type could turn the part into that type.
    unknown = sorted(part.keys() - settings.keys() - {"type", *others})
    allowed = ", ".join([*settings, *others]) or "none"
    require(not unknown, f"{name} has the settings {unknown!r:.80}; allowed: {allowed}")
    for key, setting in settings.items():
        is_missing = key not in part
        require(
            not (is_missing and setting.required),
            f"{name} has no {key}; allowed: {setting.allowed}",
        )
        value = part.get(key)
        require_value(is_missing or setting.accepts(value), f"{name}.{key}", value, setting.allowed)


def _check_added_tokens(tokens: Any, growth: float) -> None:
    require_value(isinstance(tokens, list), "added_tokens", tokens, "a list")
    allowed = f"an object with id, 0 to {MAX_ID - 1}, and content, {_TOKEN.allowed}"
    for i, token in enumerate(tokens):
        valid = isinstance(token, dict) and _TOKEN.accepts(token.get("content"))
        require_value(valid and _is_id(token.get("id")), f"added_tokens[{i}]", token, allowed)
    limit = int(_MAX_ADDED_CHARACTERS / growth)  # the library normalizes added tokens
    characters = sum(len(token["content"]) for token in tokens)
    require(characters <= limit, f"added_tokens have {characters} characters; allowed: {limit}")


def _checked_model(model: Any) -> dict[str, Any]:
    """Returns a checked model, with the type that old files omit."""
    require_value(isinstance(model, dict), "model", model, "an object")
    kind = model.get("type", _implied_type(model))
    known = isinstance(kind, str) and kind in _MODELS
    require_value(known, "model.type", kind, ", ".join(_MODELS))
    _check_settings(f"model {kind}", model, _MODELS[kind], "vocab")
    vocab = model.get("vocab")
    if kind == "Unigram":
        _check_pieces(vocab)
    else:
        _check_vocabulary(vocab)
    if kind in ("WordPiece", "WordLevel"):
        unknown = model["unk_token"]
        require_value(unknown in vocab, "model.unk_token", unknown, "a token of model.vocab")
    return {**model, "type": kind}


def _implied_type(model: Mapping[str, Any]) -> str:
    if "merges" in model:
        return "BPE"
    if "max_input_chars_per_word" in model:
        return "WordPiece"
    return "Unigram" if isinstance(model.get("vocab"), list) else "WordLevel"


def _check_vocabulary(vocab: Any) -> None:
    require_value(isinstance(vocab, dict), "model.vocab", vocab, "ids by token")
    for token, i in vocab.items():
        if not _is_id(i):
            require_value(False, f"model.vocab[{token!r:.80}]", i, f"0 to {MAX_ID - 1}")
    longest = max(map(len, vocab), default=0)
    require(
        longest <= MAX_TOKEN_CHARACTERS,
        f"model.vocab has a token of {longest} characters; allowed: {MAX_TOKEN_CHARACTERS}",
    )
    n_duplicates = len(vocab) - len(set(vocab.values()))
    require(
        not n_duplicates,
        f"model.vocab has {n_duplicates} ids twice; allowed: an id of its own for each token",
    )


def _check_pieces(vocab: Any) -> None:
    require_value(isinstance(vocab, list), "model.vocab", vocab, "a list of pieces")
    allowed = f"[text of up to {MAX_PIECE_CHARACTERS} characters, score]"
    for i, piece in enumerate(vocab):
        valid = isinstance(piece, list) and len(piece) == 2 and type(piece[1]) in (int, float)
        valid = valid and isinstance(piece[0], str) and len(piece[0]) <= MAX_PIECE_CHARACTERS
        require_value(valid, f"model.vocab[{i}]", piece, allowed)
    characters = sum(len(piece[0]) for piece in vocab)
    require(
        len(vocab) <= MAX_ID and characters <= MAX_PIECES_CHARACTERS,
        f"model.vocab has {len(vocab)} pieces of {characters} characters in all; allowed: "
        f"{MAX_ID} of {MAX_PIECES_CHARACTERS}",
    )


def _growth(part: Any) -> float:
    """Returns the largest factor by which a part can lengthen a text in bytes.

    Parts without a case here never lengthen a text.
    """
    if part is None:
        return 1.0
    match part["type"]:
        case "Sequence":
            return math.prod(
                _growth(inner) for key in _SEQUENCES.values() for inner in part.get(key, ())
            )
        case "NFC" | "NFD":
            return 3.0  # Unicode Standard Annex 15, section 14, table 10, as for NFKC below
        case "NFKC" | "NFKD":
            return 11.0
        case "Lowercase":
            return 1.5  # U+0130, of two bytes, becomes three
        case "BertNormalizer":
            return 3.0 * 1.5 * 5 / 3  # accents, lower case, spaces around Chinese characters
        case "ByteLevel":
            # A byte becomes a character of up to two bytes. A space is added before every piece,
            # and a piece can be one character.
            return 4.0 if part.get("add_prefix_space") else 2.0
        case "Metaspace":
            return 2.0 * len(part["replacement"].encode(errors="surrogatepass"))
        case "WordPiece":
            return 2.0  # the decoder of this name adds a space before every token
        case "Prepend":
            return 1.0 + _size(part["prepend"])  # added to every stretch between added tokens
        case "Replace":
            if "Regex" in part["pattern"]:
                # It can match the empty text before each character.
                return 1.0 + _size(part["content"])
            return max(1.0, _size(part["content"]) / _size(part["pattern"]["String"]))
        case "Precompiled":
            return float(_longest_replacement(part["precompiled_charsmap"]))
    return 1.0


def _size(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))


def _longest_replacement(charsmap: str) -> int:
    """Returns the bytes of the longest replacement of a character in SentencePiece's table.

    The table is the size of a tree (4 bytes), the tree, and the replacements, which end with zeros.
    """
    try:
        table = base64.b64decode(charsmap, validate=True)
    except binascii.Error as error:
        raise ValueError(f"precompiled_charsmap is {charsmap!r:.80}; allowed: base64") from error
    end = 4 + int.from_bytes(table[:4], "little")
    require(
        end <= len(table),
        f"precompiled_charsmap states a tree of {end - 4} bytes; allowed: {len(table)} in all",
    )
    return max(1, *map(len, table[end:].split(b"\0")))
