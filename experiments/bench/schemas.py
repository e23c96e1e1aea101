"""The suite `schemas`: the time to compile JSON schemas as people write them.

Each schema is compiled for the first 50,000 tokens of the tokenizer of `model`: from the schema to
the automaton over tokens, as before the first request with it. Times are of the processor, which
other programs disturb less. The tests check the same schemas.
"""

import time
from collections.abc import Iterator
from typing import Any

from experiments.harness.results import ResultRow
from llada_jax.checkpoint import model_path, read_tokenizer
from llada_jax.config import require
from llada_jax.constraint.compiled import node_automaton
from llada_jax.constraint.patterns import json_schema
from llada_jax.constraint.spelling import spelled_tokens

VOCABULARY = 50_000


def _string(**limits: Any) -> dict[str, Any]:
    return {"type": "string", **limits}


def _integer(least: int, most: int | None = None) -> dict[str, Any]:
    bounds = {"minimum": least} if most is None else {"minimum": least, "maximum": most}
    return {"type": "integer", **bounds}


def _number(**limits: Any) -> dict[str, Any]:
    return {"type": "number", **limits}


def _list(items: dict[str, Any], least: int = 0, most: int | None = None) -> dict[str, Any]:
    return {"type": "array", "items": items} | (
        {"minItems": least} if most is None else {"minItems": least, "maxItems": most}
    )


def _object(required: str = "", **properties: Any) -> dict[str, Any]:
    """Returns an object; `required` has the names of the required members."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


_PATH = _string(maxLength=200)
_ACTION = _string(pattern="^[a-z0-9-]+/[a-z0-9-]+@v[0-9]+$")
_VERSION = r"^[~^]?[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}$"
_TIME = _string(format="date-time")
_FLAG = {"type": "boolean"}
_MAP = {"type": "object", "additionalProperties": _string(maxLength=60)}

SCHEMAS: dict[str, dict[str, Any]] = {
    "package.json": _object(
        "name version",
        name=_string(pattern="^[a-z0-9][a-z0-9._-]*$", maxLength=214),
        version=_string(pattern=r"^[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}(-[a-z0-9.]{1,20})?$"),
        description=_string(maxLength=500),
        keywords=_list(_string(minLength=1, maxLength=40)),
        homepage=_string(format="uri"),
        license={"enum": ["MIT", "Apache-2.0", "BSD-3-Clause", "GPL-3.0-only", "ISC", "MPL-2.0"]},
        author=_object("name", name=_string(maxLength=100), email=_string(format="email")),
        private=_FLAG,
        type={"enum": ["module", "commonjs"]},
        main=_string(maxLength=200),
        scripts=_MAP,
        dependencies={"type": "object", "additionalProperties": _string(pattern=_VERSION)},
        devDependencies={"type": "object", "additionalProperties": _string(pattern=_VERSION)},
    ),
    "tool call": _object(
        "name arguments",
        name={"const": "search_flights"},
        arguments=_object(
            "origin destination date",
            origin=_string(pattern="^[A-Z]{3}$"),
            destination=_string(pattern="^[A-Z]{3}$"),
            date=_string(format="date"),
            passengers=_integer(1, 9),
            cabin={"enum": ["economy", "premium_economy", "business", "first"]},
            flexible=_FLAG,
        ),
    ),
    "tool calls": _list(
        {
            "oneOf": [
                _object(
                    "tool query",
                    tool={"const": "search"},
                    query=_string(minLength=1, maxLength=300),
                    limit=_integer(1, 50),
                ),
                _object("tool url", tool={"const": "open"}, url=_string(format="uri")),
                _object(
                    "tool code",
                    tool={"const": "python"},
                    code=_string(maxLength=1000),
                    timeout=_number(exclusiveMinimum=0, maximum=60),
                ),
                _object("tool answer", tool={"const": "finish"}, answer=_string()),
            ]
        },
        1,
        3,
    ),
    "address": _object(
        "street city country",
        street=_string(minLength=1, maxLength=100),
        extra=_string(maxLength=100),
        city=_string(minLength=1, maxLength=80),
        region=_string(maxLength=80),
        postal_code=_string(pattern="^[0-9A-Z -]{3,10}$"),
        country=_string(pattern="^[A-Z]{2}$"),
    ),
    "invoice": {
        **_object(
            "number issued due currency seller buyer lines total",
            number=_string(pattern="^INV-[0-9]{4}-[0-9]{5}$"),
            issued=_string(format="date"),
            due=_string(format="date"),
            currency={"enum": ["EUR", "USD", "GBP", "CHF", "JPY"]},
            seller=_ref("party"),
            buyer=_ref("party"),
            lines=_list(
                _object(
                    "description quantity price",
                    description=_string(minLength=1, maxLength=120),
                    quantity=_integer(1, 10_000),
                    price=_number(minimum=0, maximum=1_000_000),
                    tax={"enum": [0, 7, 19]},
                ),
                1,
            ),
            total=_number(minimum=0),
            paid=_FLAG,
        ),
        "$defs": {
            "party": _object(
                "name", name=_string(minLength=1, maxLength=100), email=_string(format="email")
            )
        },
    },
    "recipe": _object(
        "title servings ingredients steps",
        title=_string(minLength=3, maxLength=80),
        servings=_integer(1, 24),
        minutes=_integer(1, 1440),
        difficulty={"enum": ["easy", "medium", "hard"]},
        ingredients=_list(
            _object(
                "name",
                name=_string(minLength=1, maxLength=60),
                amount=_number(exclusiveMinimum=0),
                unit={"enum": ["g", "kg", "ml", "l", "tsp", "tbsp", "piece"]},
            ),
            1,
        ),
        steps=_list(_string(minLength=1, maxLength=1000), 1),
        tags=_list(_string(maxLength=20)),
    ),
    "geo feature": _object(
        "type geometry properties",
        type={"const": "Feature"},
        id=_string(format="uuid"),
        geometry={
            "oneOf": [
                _object(
                    "type coordinates",
                    type={"const": "Point"},
                    coordinates=_list(_number(minimum=-180, maximum=180), 2, 3),
                ),
                _object(
                    "type coordinates",
                    type={"const": "LineString"},
                    coordinates=_list(_list(_number(minimum=-180, maximum=180), 2, 3), 2),
                ),
                _object(
                    "type coordinates",
                    type={"const": "Polygon"},
                    coordinates=_list(_list(_list(_number(), 2, 3), 4), 1),
                ),
            ]
        },
        properties=_MAP,
    ),
    "resume": _object(
        "name email work education skills",
        name=_string(minLength=1, maxLength=80),
        email=_string(format="email"),
        phone=_string(pattern=r"^\+?[0-9 ()-]{6,20}$"),
        website=_string(format="uri"),
        summary=_string(maxLength=600),
        work=_list(
            _object(
                "company position start",
                company=_string(maxLength=80),
                position=_string(maxLength=80),
                start=_string(pattern="^[0-9]{4}-(0[1-9]|1[0-2])$"),
                end=_string(pattern="^([0-9]{4}-(0[1-9]|1[0-2])|present)$"),
                highlights=_list(_string(maxLength=200), 0, 5),
            )
        ),
        education=_list(
            _object(
                "school degree",
                school=_string(maxLength=80),
                degree=_string(maxLength=80),
                year=_integer(1900, 2100),
            )
        ),
        skills=_list(_string(minLength=1, maxLength=40), 1),
        languages=_list(
            _object(
                "language level",
                language=_string(maxLength=30),
                level={"enum": ["A1", "A2", "B1", "B2", "C1", "C2", "native"]},
            )
        ),
    ),
    "OpenAPI user": _object(
        "id username email created_at",
        id=_integer(1, 2**63 - 1),
        username=_string(pattern="^[a-z][a-z0-9_]*$", minLength=3, maxLength=32),
        email=_string(format="email"),
        role={"enum": ["admin", "editor", "viewer"]},
        bio={"type": ["string", "null"], "maxLength": 280},
        avatar={"anyOf": [_string(format="uri"), {"type": "null"}]},
        created_at=_TIME,
        last_login={"anyOf": [_TIME, {"type": "null"}]},
        settings=_object(theme={"enum": ["light", "dark", "system"]}, newsletter=_FLAG),
    ),
    "OpenAPI error": _object(
        "type title status",
        type=_string(format="uri"),
        title=_string(maxLength=120),
        status=_integer(400, 599),
        detail=_string(maxLength=1000),
        errors=_list(
            _object("field message", field=_string(maxLength=60), message=_string(maxLength=200))
        ),
    ),
    "OpenAPI page": {
        **_object(
            "items total",
            items=_list(_ref("pet")),
            total=_integer(0),
            next=_string(format="uri"),
        ),
        "$defs": {
            "pet": _object(
                "id name status",
                id=_string(format="uuid"),
                name=_string(minLength=1, maxLength=50),
                status={"enum": ["available", "pending", "sold"]},
                age=_integer(0, 40),
                weight=_number(exclusiveMinimum=0, exclusiveMaximum=200),
                photos=_list(_string(format="uri"), 0, 4),
            )
        },
    },
    "linter settings": _object(
        extends=_list(_string(maxLength=80)),
        parser={"enum": ["default", "typescript", "babel"]},
        max_line_length=_integer(40, 320),
        indent={"oneOf": [{"const": "tab"}, _integer(1, 8)]},
        quotes={"enum": ["single", "double"]},
        semicolons=_FLAG,
        trailing_commas=_FLAG,
        rules={"type": "object", "additionalProperties": {"enum": ["off", "warn", "error"]}},
        ignore=_list(_string(maxLength=120)),
        fix=_FLAG,
    ),
    "server settings": _object(
        "host port",
        host={"anyOf": [_string(format="hostname"), _string(format="ipv4")]},
        port=_integer(1, 65_535),
        tls=_object("certificate key", certificate=_PATH, key=_PATH),
        workers=_integer(1, 256),
        timeout=_number(exclusiveMinimum=0, maximum=3600),
        log_level={"enum": ["debug", "info", "warning", "error"]},
        allowed_origins=_list(_string(format="uri"), 0, 10),
        environment=_MAP,
    ),
    "CI workflow": _object(
        "name jobs",
        name=_string(maxLength=60),
        branches=_list(_string(pattern="^[A-Za-z0-9/_.*-]{1,60}$")),
        jobs=_list(
            _object(
                "name runs_on steps",
                name=_string(maxLength=60),
                runs_on={"enum": ["ubuntu-latest", "macos-latest", "windows-latest"]},
                timeout_minutes=_integer(1, 360),
                steps=_list(
                    {
                        "oneOf": [
                            _object("run", run=_string(maxLength=500), name=_string(maxLength=60)),
                            _object("uses", uses=_ACTION),
                        ]
                    },
                    1,
                ),
            ),
            1,
        ),
    ),
    "calendar event": _object(
        "title start end",
        title=_string(minLength=1, maxLength=120),
        start=_TIME,
        end=_TIME,
        all_day=_FLAG,
        location=_string(maxLength=200),
        attendees=_list(
            _object(
                "email",
                email=_string(format="email"),
                status={"enum": ["accepted", "declined", "tentative", "none"]},
            )
        ),
        reminders=_list(_integer(0, 40_320), 0, 5),
        recurrence=_object(
            "frequency",
            frequency={"enum": ["daily", "weekly", "monthly", "yearly"]},
            interval=_integer(1, 99),
            until=_string(format="date"),
        ),
    ),
    "product": _object(
        "sku name price",
        sku=_string(pattern="^[A-Z0-9]{4}-[A-Z0-9]{4}$"),
        name=_string(minLength=1, maxLength=150),
        description=_string(maxLength=1000),
        price=_number(minimum=0, maximum=99_999.99),
        discount=_number(minimum=0, exclusiveMaximum=1),
        stock=_integer(0),
        rating=_number(minimum=0, maximum=5),
        categories=_list(_string(maxLength=40), 1, 8),
        size=_object(
            "width height",
            width=_number(exclusiveMinimum=0),
            height=_number(exclusiveMinimum=0),
            unit={"enum": ["mm", "cm", "in"]},
        ),
    ),
    "classification": _object(
        "label confidence",
        label={"enum": ["positive", "negative", "neutral", "mixed"]},
        confidence=_number(minimum=0, maximum=1),
        reason=_string(maxLength=300),
        spans=_list(
            _object("start end", start=_integer(0), end=_integer(0), text=_string(maxLength=100))
        ),
    ),
    "chain of thought": _object(
        "steps answer",
        steps=_list(
            _object(
                "thought result", thought=_string(minLength=1, maxLength=300), result=_number()
            ),
            1,
            5,
        ),
        answer=_number(),
        unit=_string(maxLength=20),
    ),
    "file tree": {
        "$ref": "#/$defs/entry",
        "$defs": {
            "entry": {
                "oneOf": [
                    _object(
                        "kind name size",
                        kind={"const": "file"},
                        name=_string(pattern=r"^[A-Za-z0-9._-]{1,100}$"),
                        size=_integer(0),
                        modified=_TIME,
                    ),
                    _object(
                        "kind name entries",
                        kind={"const": "folder"},
                        name=_string(pattern=r"^[A-Za-z0-9._-]{1,100}$"),
                        entries=_list(_ref("entry")),
                    ),
                ]
            }
        },
    },
    "chat messages": _object(
        "model messages",
        model=_string(maxLength=80),
        messages=_list(
            _object(
                "role content",
                role={"enum": ["system", "user", "assistant"]},
                content=_string(maxLength=1000),
                name=_string(pattern="^[a-zA-Z0-9_-]{1,64}$"),
            ),
            1,
        ),
        temperature=_number(minimum=0, maximum=2),
        max_tokens=_integer(1, 32_768),
        stop=_list(_string(minLength=1, maxLength=20), 0, 4),
        stream=_FLAG,
    ),
}


def time_schemas(model: str, repeats: int) -> Iterator[ResultRow]:
    """Yields the rows of the suite."""
    tokenizer = read_tokenizer(model_path(model, weights=False))
    require(tokenizer is not None, f"{model} has no tokenizer; allowed: a model with one")
    assert tokenizer is not None
    spelled = {i: text for i, text in spelled_tokens(tokenizer).items() if i < VOCABULARY}
    end = max(spelled) + 1
    for name, schema in SCHEMAS.items():
        seconds = []
        for _ in range(repeats):
            began = time.process_time()
            node = json_schema(schema).node
            assert node is not None
            automaton = node_automaton(node, spelled, [end], end + 1, tokenizer)
            seconds.append(time.process_time() - began)
        yield ResultRow(f"schemas/{name}/states", automaton.transitions.shape[0], "states")
        yield ResultRow(f"schemas/{name}/classes", automaton.transitions.shape[1], "classes")
        yield ResultRow(f"schemas/{name}/seconds", min(seconds), "s")
