"""Bodies of the OpenAI interface, checked: each mistake is one sentence."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import llada_jax as lj
from llada_jax.config import require
from llada_jax.sampler.config import PRESETS

IGNORED = frozenset({"user", "store", "metadata", "service_tier", "parallel_tool_calls"})
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_p": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
}
"""Fields of the interface that change nothing here, with the values that are accepted."""
KNOWN = frozenset({
    "model", "messages", "prompt", "max_tokens", "max_completion_tokens", "stop", "seed", "stream",
    "stream_options", "temperature", "n", "logprobs", "top_logprobs", "response_format", "llada",
})  # fmt: skip
MOST_SEQUENCES, MOST_STOPS, MOST_CHOICES, MOST_MESSAGES = 16, 4, 64, 256


@dataclass(frozen=True)
class Asked:
    """A checked body."""

    prompts: list[list[int]]
    sampler: lj.SamplerConfig
    seed: int
    max_tokens: int
    constraint: lj.Constraint | None
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    choices: tuple[str, ...] = ()


def body_of(content: bytes) -> dict[str, Any]:
    """Returns the JSON object of a body. Raises ValueError."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError("the body is no JSON; allowed: one JSON object") from error
    require(isinstance(body, dict), f"the body is {body!r:.60}; allowed: one JSON object")
    return body


def asked_of(
    body: Mapping[str, Any], *, chat: bool, model: lj.Model, sampler: lj.SamplerConfig, seed: int
) -> Asked:
    """Returns a body, checked. Raises ValueError that names the field and what is allowed."""
    other = "prompt" if chat else "messages"
    for name, value in body.items():
        known = (name in KNOWN and name != other) or name in IGNORED or name in NEUTRAL
        allowed = ", ".join(sorted(KNOWN - {other}))
        require(known, f"{name!r:.60} is no field of this request; allowed: {allowed}")
        if name in NEUTRAL and value is not None:
            allowed = " or ".join(map(json.dumps, NEUTRAL[name]))
            require(value in NEUTRAL[name], f"{name} is {value!r:.60}; allowed: {allowed}, or none")
    given = {name: value for name, value in body.items() if value is not None}
    own = _typed(given, "llada", {}, dict, "an object")
    for name in own:
        allowed = ("sampler", "preset", "choices")
        require(name in allowed, f"llada has {name!r:.60}; allowed: {', '.join(allowed)}")
    limit = model.config.max_length
    most = "max_completion_tokens" if "max_completion_tokens" in given else "max_tokens"
    max_tokens = _whole(given, most, sampler.gen_length, 1, limit)
    stops = given.get("stop", [])
    stops = [stops] if isinstance(stops, str) else stops
    require(
        isinstance(stops, list) and len(stops) <= MOST_STOPS,
        f"stop is {stops!r:.60}; allowed: a text, or up to {MOST_STOPS}",
    )
    changes: dict[str, Any] = {"stop": stops}
    if "temperature" in given:
        changes["temperature"] = _number(given, "temperature", 0, 2)
    settings = _sampler(own, sampler, changes, max_tokens)
    n = _whole(given, "n", 1, 1, MOST_SEQUENCES)
    prompts = _chat(given, model) if chat else _prompts(given, model)
    require(
        n * len(prompts) <= MOST_SEQUENCES,
        f"n is {n} with {len(prompts)} prompts; allowed: up to {MOST_SEQUENCES} answers",
    )
    logprobs, top = _logprobs(given, chat)
    require(
        top == 0 or settings.temperature == 0,
        f"top_logprobs is {top} and temperature is {settings.temperature}; allowed: 0 (a forward "
        "reports the token that it commits alone)",
    )
    options = _typed(given, "stream_options", {}, dict, "an object")
    choices = own.get("choices", [])
    require(
        isinstance(choices, list)
        and len(choices) <= MOST_CHOICES
        and all(isinstance(each, str) and each for each in choices),
        f"llada.choices is {choices!r:.60}; allowed: up to {MOST_CHOICES} texts, none empty",
    )
    stream = _typed(given, "stream", False, bool, "true or false")
    require(
        not choices or not (stream or n > 1 or len(prompts) > 1),
        "llada.choices are with stream, n or several prompts; allowed: one prompt, without stream",
    )
    return Asked(
        prompts=[prompt for prompt in prompts for _ in range(n)],
        sampler=settings,
        seed=_whole(given, "seed", seed, -(2**63), 2**63 - 1),
        max_tokens=max_tokens,
        constraint=_constraint(given),
        stream=stream,
        include_usage=_typed(options, "include_usage", False, bool, "true or false"),
        logprobs=logprobs,
        top_logprobs=top,
        choices=tuple(choices),
    )


def _typed(given: Mapping[str, Any], name: str, default: Any, kind: type, allowed: str) -> Any:
    value = given.get(name, default)
    require(isinstance(value, kind), f"{name} is {value!r:.60}; allowed: {allowed}")
    return value


def _whole(given: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    value = given.get(name, default)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    require(
        is_whole and least <= value <= most, f"{name} is {value!r:.60}; allowed: {least} to {most}"
    )
    return value


def _number(given: Mapping[str, Any], name: str, least: float, most: float) -> float:
    value = given[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    require(
        is_number and math.isfinite(value) and least <= value <= most,
        f"{name} is {value!r:.60}; allowed: {least} to {most}",
    )
    return float(value)


def _sampler(
    own: Mapping[str, Any], default: lj.SamplerConfig, changes: dict[str, Any], max_tokens: int
) -> lj.SamplerConfig:
    """Returns the sampler of a request on the smallest canvas that holds its tokens."""
    flat = own.get("sampler", {})
    require(isinstance(flat, dict), f"llada.sampler is {flat!r:.60}; allowed: an object")
    for name, value in flat.items():
        allowed = "other flat settings of a sampler (max_tokens, stop and temperature are fields)"
        require(name not in ("gen_length", "stop"), f"llada.sampler.{name}; allowed: {allowed}")
        plain = isinstance(value, bool | int | float | str | None)
        require(
            plain and not (isinstance(value, str) and ":" in value),  # a name of code to import
            f"llada.sampler has {name!r:.60}: {value!r:.60}; allowed: a number, a name, true or "
            "false",
        )
    preset = own.get("preset")
    require(
        preset is None or (isinstance(preset, str) and preset in PRESETS),
        f"llada.preset is {preset!r:.60}; allowed: {', '.join(PRESETS)}",
    )
    changes = {**flat, **changes}
    try:
        found = default if preset is None else lj.SamplerConfig.preset(preset)
        blocks = flat.get("block_length", found.block_length)
        if isinstance(blocks, int) and blocks > 0:
            changes["gen_length"] = -(-max_tokens // blocks) * blocks
        return found.replace(**changes)
    except (TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"llada.sampler is {dict(flat)!r:.200}; allowed: flat settings") from error


def _chat(given: Mapping[str, Any], model: lj.Model) -> list[list[int]]:
    messages = given.get("messages")
    require(
        isinstance(messages, list) and 0 < len(messages) <= MOST_MESSAGES,
        f"messages is {messages!r:.60}; allowed: 1 to {MOST_MESSAGES} messages",
    )
    assert isinstance(messages, list) and model.tokenizer is not None
    plain = []
    for at, message in enumerate(messages):
        require(isinstance(message, dict), f"messages[{at}] is {message!r:.60}; allowed: an object")
        role, content = message.get("role"), message.get("content")
        allowed = ("system", "developer", "user", "assistant")
        require(
            isinstance(role, str) and role in allowed,
            f"messages[{at}].role is {role!r:.60}; allowed: {', '.join(allowed)}",
        )
        plain.append({"role": role, "content": _content(content, at)})
    return [model.tokenizer.encode_chat(plain)]


def _content(content: Any, at: int) -> str:
    """Returns the text of a message, which may be a list of parts."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = []
    for part in parts:
        is_text = isinstance(part, dict) and part.get("type") == "text"
        text = part.get("text") if is_text else None
        require(isinstance(text, str), f"messages[{at}].content is {content!r:.60}; allowed: text")
        texts.append(text)
    return "".join(texts)


def _prompts(given: Mapping[str, Any], model: lj.Model) -> list[list[int]]:
    prompt = given.get("prompt")
    prompts: list[Any] = prompt if isinstance(prompt, list) else [prompt]
    if prompts and all(isinstance(each, int) and not isinstance(each, bool) for each in prompts):
        prompts = [prompts]
    require(
        0 < len(prompts) <= MOST_SEQUENCES,
        f"prompt has {len(prompts)} parts; allowed: 1 to {MOST_SEQUENCES}",
    )
    found: list[list[int]] = []
    for each in prompts:
        if isinstance(each, str):
            require(bool(each), "prompt is ''; allowed: text that is not empty")
            assert model.tokenizer is not None
            found.append(model.tokenizer.encode(each, add_special_tokens=True))
            continue
        ids = isinstance(each, list) and 0 < len(each) <= model.config.max_length
        ids = ids and all(isinstance(i, int) and not isinstance(i, bool) for i in each)
        vocab = model.config.vocab_size
        require(
            ids and all(0 <= i < vocab for i in each),
            f"prompt is {each!r:.60}; allowed: text, or ids from 0 to {vocab - 1}",
        )
        found.append(each)
    return found


def _logprobs(given: Mapping[str, Any], chat: bool) -> tuple[bool, int]:
    """Returns whether log-probabilities are wanted, and how many tokens at each position."""
    if not chat:
        top = _whole(given, "logprobs", 0, 0, 1)
        return "logprobs" in given, top
    wanted = _typed(given, "logprobs", False, bool, "true or false")
    top = given.get("top_logprobs", 0)
    require(
        top in (0, 1) and not isinstance(top, bool) and (wanted or top == 0),
        f"top_logprobs is {top!r:.60}; allowed: 0 or 1, with logprobs (a forward reports the token "
        "that it commits alone)",
    )
    return wanted, top


def _constraint(given: Mapping[str, Any]) -> lj.Constraint | None:
    """Returns the constraint of `response_format`."""
    form = _typed(given, "response_format", {"type": "text"}, dict, "an object")
    made: dict[str, Callable[[], lj.Constraint | None]] = {
        "text": lambda: None,
        "json_schema": lambda: _schema(form.get("json_schema")),
        "regex": lambda: lj.regex(form.get("regex", form.get("pattern"))),
        "choice": lambda: lj.choice(form.get("choice")),  # pyright: ignore[reportArgumentType]
    }
    kind = form.get("type")
    require(
        isinstance(kind, str) and kind in made,
        f"response_format.type is {kind!r:.60}; allowed: {', '.join(made)}",
    )
    try:
        return made[kind]()
    except (TypeError, AttributeError, KeyError, RecursionError) as error:
        raise ValueError(f"response_format is {form!r:.200}; allowed: a valid one") from error


def _schema(given: Any) -> lj.Constraint:
    schema: Any = given.get("schema") if isinstance(given, dict) else None
    require(
        isinstance(schema, dict),
        f"response_format.json_schema is {given!r:.60}; allowed: an object with `schema`",
    )
    return lj.json_schema(schema)
