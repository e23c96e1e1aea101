"""Checks the JSON bodies of OpenAI-compatible requests.

`parse_api_request` turns a body into prompts as token ids, a sampler, a constraint and output
options, before anything is decoded. Every mistake is a ValueError of one sentence that names the
field and the allowed values, which the server sends back with status 400. Bodies come from
untrusted clients: sampler settings cannot name code to import, and every size has a limit. Settings
that OpenAI's interface lacks are in the field `llada`.
"""

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
"""OpenAI fields without an effect here, with the values that are accepted: the defaults."""
KNOWN = frozenset({
    "model", "messages", "prompt", "max_tokens", "max_completion_tokens", "stop", "seed", "stream",
    "stream_options", "temperature", "n", "logprobs", "top_logprobs", "response_format", "llada",
})  # fmt: skip
MAX_SEQUENCES, MAX_STOPS, MAX_CHOICES, MAX_MESSAGES = 16, 4, 64, 256
MAX_TOP_LOGPROBS = 20  # as in OpenAI's interface


@dataclass(frozen=True)
class ApiRequest:
    """A checked request body."""

    prompts: list[list[int]]
    """Token ids of each sequence to decode: every prompt is repeated `n` times."""
    sampler: lj.SamplerConfig
    seed: int
    max_tokens: int
    constraint: lj.Constraint | None
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    choices: tuple[str, ...] = ()
    """Labels to score instead of decoding text (`llada.choices`)."""


def parse_body(content: bytes) -> dict[str, Any]:
    """Returns the JSON object of a body. Raises ValueError if it is anything else."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError("the body is no JSON; allowed: one JSON object") from error
    require(isinstance(body, dict), f"the body is {body!r:.60}; allowed: one JSON object")
    return body


def parse_api_request(
    body: Mapping[str, Any], *, chat: bool, model: lj.Model, sampler: lj.SamplerConfig, seed: int
) -> ApiRequest:
    """Checks a body and encodes its prompts.

    Args:
      chat: Whether the body has `messages`, as chat completions do, or else a `prompt`.
      sampler: The server's default sampler, which the body may change.
      seed: The seed of bodies without one.

    Raises:
      ValueError: A bad field; the message names it and the allowed values.
    """
    fields, extension = _known_fields(body, chat)
    name = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
    max_tokens = _whole(fields, name, sampler.gen_length, 1, model.config.max_length)
    settings = _sampler(extension, sampler, _changes(fields), max_tokens)
    n = _whole(fields, "n", 1, 1, MAX_SEQUENCES)
    prompts = _chat(fields, model) if chat else _prompts(fields, model)
    require(
        n * len(prompts) <= MAX_SEQUENCES,
        f"n is {n} with {len(prompts)} prompts; allowed: up to {MAX_SEQUENCES} answers",
    )
    logprobs, n_top = _logprobs(fields, chat)
    options = _typed(fields, "stream_options", {}, dict, "an object")
    stream = _typed(fields, "stream", False, bool, "true or false")
    choices = _choices(extension)
    require(
        not choices or not (stream or n > 1 or len(prompts) > 1),
        "llada.choices are with stream, n or several prompts; allowed: one prompt, without stream",
    )
    return ApiRequest(
        prompts=[prompt for prompt in prompts for _ in range(n)],
        sampler=settings,
        seed=_whole(fields, "seed", seed, -(2**63), 2**63 - 1),
        max_tokens=max_tokens,
        constraint=_constraint(fields),
        stream=stream,
        include_usage=_typed(options, "include_usage", False, bool, "true or false"),
        logprobs=logprobs,
        top_logprobs=n_top,
        choices=choices,
    )


def _known_fields(body: Mapping[str, Any], chat: bool) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Returns the fields that are not null, and the fields of `llada`. Refuses unknown ones, and
    those that would have to change the answer and cannot."""
    other = "prompt" if chat else "messages"
    for name, value in body.items():
        known = (name in KNOWN and name != other) or name in IGNORED or name in NEUTRAL
        allowed = ", ".join(sorted(KNOWN - {other}))
        require(known, f"{name!r:.60} is no field of this request; allowed: {allowed}")
        if name in NEUTRAL and value is not None:
            allowed = " or ".join(map(json.dumps, NEUTRAL[name]))
            require(value in NEUTRAL[name], f"{name} is {value!r:.60}; allowed: {allowed}, or none")
    fields = {name: value for name, value in body.items() if value is not None}
    extension = _typed(fields, "llada", {}, dict, "an object")
    for name in extension:
        allowed = ("sampler", "preset", "choices")
        require(name in allowed, f"llada has {name!r:.60}; allowed: {', '.join(allowed)}")
    return fields, extension


def _changes(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sampler's settings that are fields of OpenAI's interface."""
    stop = fields.get("stop", [])
    stop = [stop] if isinstance(stop, str) else stop
    require(
        isinstance(stop, list) and len(stop) <= MAX_STOPS,
        f"stop is {stop!r:.60}; allowed: a text, or up to {MAX_STOPS}",
    )
    changes: dict[str, Any] = {"stop": stop}
    if "temperature" in fields:
        changes["temperature"] = _number(fields, "temperature", 0, 2)
    return changes


def _choices(extension: Mapping[str, Any]) -> tuple[str, ...]:
    choices = extension.get("choices", [])
    require(
        isinstance(choices, list)
        and len(choices) <= MAX_CHOICES
        and all(isinstance(choice, str) and choice for choice in choices),
        f"llada.choices is {choices!r:.60}; allowed: up to {MAX_CHOICES} texts, none empty",
    )
    return tuple(choices)


def _typed(fields: Mapping[str, Any], name: str, default: Any, kind: type, allowed: str) -> Any:
    value = fields.get(name, default)
    require(isinstance(value, kind), f"{name} is {value!r:.60}; allowed: {allowed}")
    return value


def _whole(fields: Mapping[str, Any], name: str, default: int, minimum: int, maximum: int) -> int:
    value = fields.get(name, default)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    require(
        is_whole and minimum <= value <= maximum,
        f"{name} is {value!r:.60}; allowed: {minimum} to {maximum}",
    )
    return value


def _number(fields: Mapping[str, Any], name: str, minimum: float, maximum: float) -> float:
    value = fields[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    require(
        is_number and math.isfinite(value) and minimum <= value <= maximum,
        f"{name} is {value!r:.60}; allowed: {minimum} to {maximum}",
    )
    return float(value)


def _sampler(
    extension: Mapping[str, Any],
    default: lj.SamplerConfig,
    changes: dict[str, Any],
    max_tokens: int,
) -> lj.SamplerConfig:
    """Returns the request's sampler, with `gen_length` the fewest blocks that hold `max_tokens`."""
    settings = extension.get("sampler", {})
    require(isinstance(settings, dict), f"llada.sampler is {settings!r:.60}; allowed: an object")
    for name, value in settings.items():
        allowed = "other flat settings of a sampler (max_tokens, stop and temperature are fields)"
        require(name not in ("gen_length", "stop"), f"llada.sampler.{name}; allowed: {allowed}")
        plain = isinstance(value, bool | int | float | str | None)
        require(
            plain
            and not (isinstance(value, str) and ":" in value),  # `module:Class` would be imported
            f"llada.sampler has {name!r:.60}: {value!r:.60}; allowed: a number, a name, true or "
            "false",
        )
    preset = extension.get("preset")
    require(
        preset is None or (isinstance(preset, str) and preset in PRESETS),
        f"llada.preset is {preset!r:.60}; allowed: {', '.join(PRESETS)}",
    )
    changes = {**settings, **changes}
    try:
        sampler = default if preset is None else lj.SamplerConfig.preset(preset)
        blocks = settings.get("block_length", sampler.block_length)
        if isinstance(blocks, int) and blocks > 0:
            changes["gen_length"] = -(-max_tokens // blocks) * blocks
        return sampler.replace(**changes)
    except (TypeError, AttributeError, OverflowError) as error:
        raise ValueError(
            f"llada.sampler is {dict(settings)!r:.200}; allowed: flat settings"
        ) from error


def _chat(fields: Mapping[str, Any], model: lj.Model) -> list[list[int]]:
    messages = fields.get("messages")
    require(
        isinstance(messages, list) and 0 < len(messages) <= MAX_MESSAGES,
        f"messages is {messages!r:.60}; allowed: 1 to {MAX_MESSAGES} messages",
    )
    assert isinstance(messages, list) and model.tokenizer is not None
    return [model.tokenizer.encode_chat([_template_message(message) for message in messages])]


def _template_message(message: Any) -> Any:
    """Returns a message with the fields that chat templates know; `encode_chat` checks it.

    `developer` is OpenAI's newer name of the role `system`. Other fields, such as `name`, are
    dropped.
    """
    if not isinstance(message, dict):
        return message
    role = message.get("role")
    return {"role": "system" if role == "developer" else role, "content": message.get("content")}


def _prompts(fields: Mapping[str, Any], model: lj.Model) -> list[list[int]]:
    prompt = fields.get("prompt")
    prompts: list[Any] = prompt if isinstance(prompt, list) else [prompt]
    if prompts and all(isinstance(item, int) and not isinstance(item, bool) for item in prompts):
        prompts = [prompts]  # one prompt as token ids
    require(
        0 < len(prompts) <= MAX_SEQUENCES,
        f"prompt has {len(prompts)} parts; allowed: 1 to {MAX_SEQUENCES}",
    )
    token_ids: list[list[int]] = []
    for item in prompts:
        if isinstance(item, str):
            require(bool(item), "prompt is ''; allowed: text that is not empty")
            assert model.tokenizer is not None
            token_ids.append(model.tokenizer.encode(item, add_special_tokens=True))
            continue
        ids = isinstance(item, list) and 0 < len(item) <= model.config.max_length
        ids = ids and all(isinstance(i, int) and not isinstance(i, bool) for i in item)
        vocab = model.config.vocab_size
        require(
            ids and all(0 <= i < vocab for i in item),
            f"prompt is {item!r:.60}; allowed: text, or ids from 0 to {vocab - 1}",
        )
        token_ids.append(item)
    return token_ids


def _logprobs(fields: Mapping[str, Any], chat: bool) -> tuple[bool, int]:
    """Returns whether log-probabilities are requested, and the number of top tokens per position.

    Chats have a flag and a number, text completions only a number.
    """
    if not chat:
        return "logprobs" in fields, _whole(fields, "logprobs", 0, 0, MAX_TOP_LOGPROBS)
    wanted = _typed(fields, "logprobs", False, bool, "true or false")
    n_top = _whole(fields, "top_logprobs", 0, 0, MAX_TOP_LOGPROBS)
    require(
        wanted or not n_top,
        f"top_logprobs is {n_top} without logprobs; allowed: 0, or logprobs true",
    )
    return wanted, n_top


def _constraint(fields: Mapping[str, Any]) -> lj.Constraint | None:
    """Returns the constraint of `response_format`, or None for plain text."""
    response_format = _typed(fields, "response_format", {"type": "text"}, dict, "an object")
    constraints: dict[str, Callable[[], lj.Constraint | None]] = {
        "text": lambda: None,
        "json_schema": lambda: _schema(response_format.get("json_schema")),
        "regex": lambda: lj.regex(response_format.get("regex", response_format.get("pattern"))),
        "choice": lambda: lj.choice(response_format.get("choice")),  # pyright: ignore[reportArgumentType]
    }
    name = response_format.get("type")
    require(
        isinstance(name, str) and name in constraints,
        f"response_format.type is {name!r:.60}; allowed: {', '.join(constraints)}",
    )
    try:
        return constraints[name]()
    except (TypeError, AttributeError, KeyError, RecursionError) as error:
        raise ValueError(
            f"response_format is {response_format!r:.200}; allowed: a valid one"
        ) from error


def _schema(description: Any) -> lj.Constraint:
    schema: Any = description.get("schema") if isinstance(description, dict) else None
    require(
        isinstance(schema, dict),
        f"response_format.json_schema is {description!r:.60}; allowed: an object with `schema`",
    )
    return lj.json_schema(schema)
