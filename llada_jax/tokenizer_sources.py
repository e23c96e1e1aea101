"""Converts tokenizers in other formats to the data of a `tokenizer.json`.

- `vocab.json` and `merges.txt` contain the byte-level BPE of GPT-2 or Qwen2. The class in
  `tokenizer_config.json` determines how a text is split into words before bytes are merged.
- The metadata of a GGUF file contains tokens, token types and merges (`tokenizer.ggml.model` is
  `gpt2`, and `tokenizer.ggml.pre` names the word pattern), or SentencePiece's pieces and scores
  (`llama`). The result encodes as llama.cpp does, which normalizes no text.

The returned data is not safe yet: `tokenizer_json.build_backend` checks it.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, islice
from typing import Any

from llada_jax.config import require, require_value
from llada_jax.tokenizer_json import MAX_MERGES, MAX_PIECE_CHARACTERS, MAX_PIECES_CHARACTERS

GGUF_MODEL, GGUF_TEMPLATE = "tokenizer.ggml.model", "tokenizer.chat_template"
_TOKENS, _TYPES, _SCORES, _MERGES = GGUF_LISTS = tuple(
    f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "scores", "merges")
)
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6  # llama.cpp's token types
_GGUF_ROLES = {
    "bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad", "mask": "mask",
    "seperator": "sep", "cls": "cls", "eot": "eot",
}  # fmt: skip
_AS_SPELLED = {"normalized": False}
_SPACE = "\u2581"
"""The character that SentencePiece writes for a space."""

_ANY_CASE = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"


def _pattern(
    digits: str = r"\p{N}",
    *,
    contractions: str = _ANY_CASE,
    word: str = r"[^\r\n\p{L}\p{N}]?\p{L}+",
    signs: str = r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    lines: str = r"\s*[\r\n]+",
) -> str:
    """Returns a word pattern of the form that tokenizers after GPT-2 share."""
    return "|".join((contractions, word, digits, signs, lines, r"\s+(?!\S)", r"\s+"))


_QWEN2 = _pattern(contractions="(?i:'s|'t|'re|'ve|'m|'ll|'d)")
_UPPER, _LOWER = r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]"  # as llama.cpp approximates the classes
_CASED = tuple(
    r"[^\r\n\p{L}\p{N}]?" + word for word in (f"{_UPPER}*{_LOWER}+", f"{_UPPER}+{_LOWER}*")
)
_PATTERNS: Mapping[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"),
    "gpt-2 phi-2 olmo mpt jais trillion exaone4": (_GPT2,),
    "smollm starcoder refact command-r codeshell exaone minerva-7b": (r"\p{N}", _GPT2),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2": (_pattern(r"\p{N}{1,3}"),),
    "dbrx smaug-bpe": (_pattern(r"\p{N}{1,3}"),),
    "qwen2 deepseek-r1-qwen stablelm2 megrez hunyuan grok-2": (_pattern(),),
    "qwen35": (
        _pattern(word=r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", signs=r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),
    ),
    "llada-moe bailingmoe bailingmoe2": (
        _pattern(contractions="'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])", lines=r"\s*[\r\n]"),
    ),
    "seed-coder": (_pattern(signs=r" ?[^\s\p{L}\p{N}\r\n]+"),),
    "tekken": (
        _pattern(contractions=_CASED[0], word=_CASED[1], signs=r" ?[^\s\p{L}\p{N}]+[\r\n/]*"),
    ),
    "gpt-4o llama4": (
        _pattern(
            r"\p{N}{1,3}",
            contractions=f"{_CASED[0]}{_ANY_CASE}?",
            word=f"{_CASED[1]}{_ANY_CASE}?",
            signs=r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        ),
    ),
}
"""Patterns that split a text into words, applied in turn, by values of `tokenizer.ggml.pre`."""
_WHOLE_WORDS = {*"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 tekken".split()}
"""Values for which a word that is a token is not merged from parts, and BOS is added by default."""
_PRE = {name: patterns for names, patterns in _PATTERNS.items() for name in names.split()}


def data_from_vocabulary(
    vocab: Mapping[str, Any], merges: str, added: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns a tokenizer's data from its vocabulary files.

    Args:
      vocab: Content of `vocab.json`, ids by token.
      merges: Content of `merges.txt`.
      added: Content of `added_tokens.json`, not read if the config has `added_tokens_decoder`.
      config: Content of `tokenizer_config.json`.

    Raises:
      ValueError: The tokenizer class is unknown, or a file has another form.
    """
    tokenizer_class = config.get("tokenizer_class")
    name = tokenizer_class.removesuffix("Fast") if isinstance(tokenizer_class, str) else None
    require(
        name in ("GPT2Tokenizer", "Qwen2Tokenizer", "DreamTokenizer"),
        f"tokenizer_class is {tokenizer_class!r:.80}; allowed with vocab.json and merges.txt: "
        "GPT2Tokenizer, Qwen2Tokenizer, DreamTokenizer (for others, write tokenizer.json: "
        "save_pretrained of transformers does)",
    )
    count = merges.count("\n")
    require(
        count <= MAX_MERGES + 2, f"merges.txt has {count:,} lines; allowed: {MAX_MERGES:,} merges"
    )
    lines = (line.strip("\r ") for line in merges.split("\n"))
    pairs = [_pair(line) for line in lines if line and not line.startswith("#version")]
    tokens = _added_tokens(config, added)
    ids = {**vocab, **{token["content"]: token["id"] for token in tokens}}
    first, last = (
        _content(config.get(f"{role}_token")) if config.get(f"add_{role}_token") is True else None
        for role in ("bos", "eos")
    )
    is_gpt2 = name == "GPT2Tokenizer"
    return {
        "added_tokens": tokens,
        "normalizer": None if is_gpt2 else {"type": "NFC"},
        **_byte_level(
            ids,
            pairs,
            () if is_gpt2 else (_QWEN2,),
            prefix_space=config.get("add_prefix_space") is True,
        ),
        "post_processor": _between(first, last, ids),
    }


def data_from_gguf(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a tokenizer's data from the metadata of a GGUF file with the lists `GGUF_LISTS`.

    Raises ValueError for an unknown kind of tokenizer, and for lists of another form.
    """
    kind, pre = metadata.get(GGUF_MODEL), metadata.get("tokenizer.ggml.pre", "default")
    require(kind in ("gpt2", "llama"), f"{GGUF_MODEL} is {kind!r:.80}; allowed: 'gpt2', 'llama'")
    tokens = _list(metadata, _TOKENS, str)
    tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]  # as llama.cpp names them
    vocab = {token: i for i, token in enumerate(tokens)}
    n_duplicates = len(tokens) - len(vocab)
    require(not n_duplicates, f"{_TOKENS} has {n_duplicates} tokens twice; allowed: each once")
    types = _list(metadata, _TYPES, int, len(tokens)) if _TYPES in metadata else [1] * len(tokens)
    roles = gguf_roles(metadata)
    special = {
        *roles.values(),
        *(tokens[i] for i, n in enumerate(types) if n in (_UNKNOWN, _CONTROL)),
    }
    added = [
        _added_token(i, token, special=token in special)
        for i, token in enumerate(tokens)
        if token in special or types[i] == _USER_DEFINED
    ]
    if kind == "llama":
        mergeable = [n not in (_UNKNOWN, _CONTROL, _BYTE) for n in types]
        parts = _sentencepiece(metadata, tokens, vocab, mergeable)
    else:
        require(
            isinstance(pre, str) and pre in _PRE,
            f"tokenizer.ggml.pre is {pre!r:.80}; allowed: {', '.join(map(repr, _PRE))}",
        )
        pairs = [_pair(line) for line in _list(metadata, _MERGES, str)]
        parts = _byte_level(vocab, pairs, _PRE[pre], ignore_merges=pre in _WHOLE_WORDS)
    bos_by_default = kind == "llama" or pre in _WHOLE_WORDS
    first = metadata.get("tokenizer.ggml.add_bos_token", bos_by_default) is True
    last = metadata.get("tokenizer.ggml.add_eos_token", False) is True
    ends = _between(first and roles.get("bos_token"), last and roles.get("eos_token"), vocab)
    return {"added_tokens": added, **parts, "post_processor": ends}


def gguf_roles(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Returns the special tokens of a GGUF file by role (`"eos_token"`).

    Raises ValueError for an id without a token."""
    tokens, roles = metadata[_TOKENS], {}
    for name, role in _GGUF_ROLES.items():
        i = metadata.get(key := f"tokenizer.ggml.{name}_token_id")
        if i is not None:
            known = type(i) is int and 0 <= i < len(tokens)
            require(known, f"{key} is {i!r:.80}; allowed: 0 to {len(tokens) - 1}")
            roles[f"{role}_token"] = tokens[i]
    return roles


def _byte_level(
    vocab: Mapping[str, Any],
    merges: Sequence[Sequence[str]],
    patterns: Iterable[str],
    *,
    prefix_space: bool = False,
    ignore_merges: bool = False,
) -> dict[str, Any]:
    """Returns the parts of a byte-level BPE; without `patterns`, words are split as by GPT-2."""
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": prefix_space, "trim_offsets": True}
    to_bytes = {**byte_level, "use_regex": not splits}
    return {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, to_bytes]},
        "decoder": {**byte_level, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": ignore_merges},
    }


def _sentencepiece(
    metadata: Mapping[str, Any],
    tokens: Sequence[str],
    vocab: Mapping[str, int],
    mergeable: Sequence[bool],
) -> dict[str, Any]:
    """Returns the parts of a character-level BPE with SentencePiece's pieces.

    SentencePiece has no list of merges: any two pieces whose concatenation is a piece can merge,
    and the result with the highest score merges first.
    """
    longest, total = max(map(len, tokens), default=0), sum(map(len, tokens))
    require(
        longest <= MAX_PIECE_CHARACTERS and total <= MAX_PIECES_CHARACTERS,
        f"{_TOKENS} has a piece of {longest} characters, and {total:,} characters in all; allowed: "
        f"{MAX_PIECE_CHARACTERS} and {MAX_PIECES_CHARACTERS:,}",
    )
    scores = _list(metadata, _SCORES, float, len(tokens))
    best_first = sorted(compress(range(len(tokens)), mergeable), key=lambda i: (-scores[i], i))
    pairs = (
        (left, right)
        for piece in (tokens[i] for i in best_first)
        for left, right in ((piece[:at], piece[at:]) for at in range(1, len(piece)))
        if left in vocab and right in vocab
    )
    merges = list(islice(pairs, MAX_MERGES + 1))  # `build_backend` refuses one too many
    spaced = metadata.get("tokenizer.ggml.add_space_prefix", True) is True
    prepend = [{"type": "Prepend", "prepend": _SPACE}] if spaced else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if spaced else []
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, _replaced(" ", _SPACE)]},
        "decoder": {
            "type": "Sequence",
            "decoders": [
                _replaced(_SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"}, *strip
            ],
        },
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "byte_fallback": True},
    }  # fmt: skip


def _replaced(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def _between(first: Any, last: Any, ids: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns a post-processor that adds these tokens around a text, or None if there are none."""
    known = {token: ids[token] for token in (first, last) if token in ids}
    if not known:
        return None
    pieces = {token: {"SpecialToken": {"id": token, "type_id": 0}} for token in known}

    def around(name: str) -> list[dict[str, Any]]:
        text = {"Sequence": {"id": name, "type_id": 0}}
        return [piece for piece in (pieces.get(first), text, pieces.get(last)) if piece is not None]

    return {
        "type": "TemplateProcessing",
        "single": around("A"),
        "pair": [*around("A"), *around("B")],
        "special_tokens": {
            token: {"id": token, "ids": [i], "tokens": [token]} for token, i in known.items()
        },
    }


def _added_tokens(config: Mapping[str, Any], added: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the added tokens from the config, or else from `added_tokens.json`."""
    described = config.get("added_tokens_decoder")
    if described is None:
        described = {i: {"content": token} for token, i in added.items()}
    require_value(isinstance(described, Mapping), "added_tokens_decoder", described, "tokens by id")
    more = config.get("additional_special_tokens")
    roles = [value for key, value in config.items() if key.endswith("_token")]
    special = {*map(_content, [*roles, *(more if isinstance(more, list) else ())])}
    tokens = []
    for i, token in described.items():
        content = _content(token)
        known = isinstance(token, Mapping) and content is not None
        require_value(known, f"added_tokens_decoder[{i!r:.20}]", token, "an object with content")
        i = int(i) if isinstance(i, str) and i.isdecimal() and len(i) < 10 else i
        tokens.append(
            _added_token(i, content, token.get("special") is True or content in special, token)
        )
    return tokens


def _added_token(
    i: Any, content: Any, special: bool, flags: Mapping[str, Any] = _AS_SPELLED
) -> dict[str, Any]:
    names = ("single_word", "lstrip", "rstrip")
    token = {"id": i, "content": content, "special": special}
    token |= {name: flags.get(name) is True for name in names}
    return token | {"normalized": flags.get("normalized", not special) is True}


def _content(token: Any) -> str | None:
    """Returns the text of a token, which is a string or an object with `content`."""
    content = token.get("content") if isinstance(token, Mapping) else token
    return content if isinstance(content, str) else None


def _pair(line: str) -> tuple[str, str]:
    """Returns the two tokens of a merge, which are separated by a space."""
    left, space, right = line.partition(" ")
    require_value(
        bool(left and space and right), "a merge", line, "two tokens, with a space between"
    )
    return left, right


def _list(metadata: Mapping[str, Any], key: str, kind: type, count: int | None = None) -> list[Any]:
    """Returns a list in the metadata. Raises ValueError if its type or length is wrong."""
    values: Any = metadata.get(key)
    size = "" if count is None else f"{count} "
    fits = isinstance(values, list) and all(type(value) is kind for value in values)
    fits = fits and count in (None, len(values))
    require_value(fits, key, values, f"a list of {size}values of type {kind.__name__}")
    return values
