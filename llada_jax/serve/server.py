"""The HTTP server: OpenAI's API, health, metrics, and a page that shows a live canvas.

Handlers run in an asyncio loop and submit requests to the `Engine`, whose worker thread sends a
`_Event` back after each forward. Text is streamed once it is final, from the left, and is never
taken back; `/canvas` streams the changes of every forward instead. Errors have OpenAI's form: one
sentence, without file paths of the server or tracebacks.
"""

import asyncio
import hmac
import json
import logging
import math
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import llada_jax as lj
from llada_jax.checkpoint import bundled_names
from llada_jax.config import LatencyTable
from llada_jax.config.timed_buckets import MODELLED
from llada_jax.evaluation.likelihood import log_likelihoods
from llada_jax.sampler.config import PRESETS
from llada_jax.sampler.state import TopTokens
from llada_jax.serve.engine import SHUTDOWN, Engine, QueueFull
from llada_jax.serve.metrics import Metrics
from llada_jax.serve.requests import ApiRequest, parse_api_request, parse_body
from llada_jax.serve.sequence import Request, Sequence
from llada_jax.serve.settings import ServerSettings

try:
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.requests import Request as Http
    from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
    from starlette.routing import Route
except ImportError as error:
    raise ImportError(
        f"the server's packages are not installed ({error}); install the extra: "
        "pip install 'llada_jax[serve]'"
    ) from error

PAGE = Path(__file__).with_name("page.html")
PHONES = {soc: LatencyTable.named(soc) for soc in MODELLED}
_CONTEXT = 8  # tokens; a character has at most four
_log = logging.getLogger("llada_jax.serve")


class ApiError(Exception):
    """An error with its HTTP status and OpenAI's error code."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Service:
    """A model with its engine, and a handler for each path."""

    def __init__(
        self,
        model: lj.Model,
        sampler: lj.SamplerConfig,
        settings: ServerSettings,
        *,
        backend: str = "xla",
        seed: int = 0,
    ) -> None:
        self.model, self.sampler, self.settings, self.seed = model, sampler, settings, seed
        source = model.source or "model"
        self.name = source if source in bundled_names() else Path(source).stem
        self.engine = Engine(model, backend, settings.places, settings.queue)
        self.metrics, self.began = Metrics(), int(time.time())

    # Requests

    async def parse(self, http: Http, *, chat: bool) -> ApiRequest:
        """Reads and checks the body of a request."""
        content = bytearray()
        async for part in http.stream():
            content += part
            if len(content) > self.settings.max_body:
                limit = f"{self.settings.max_body:,}"
                raise ApiError(413, f"the body is longer than the {limit} bytes that are allowed")
        body = parse_body(bytes(content))
        name = body.get("model", self.name)
        if name != self.name:
            message = f"model is {name!r:.60}; allowed: {self.name!r}"
            raise ApiError(404, message, "model_not_found")
        options = {"model": self.model, "sampler": self.sampler, "seed": self.seed}
        return await run_in_threadpool(partial(parse_api_request, body, chat=chat, **options))

    async def submit(
        self, api_request: ApiRequest, *, cells: bool = False
    ) -> "tuple[Request, asyncio.Queue[Any]]":
        """Submits a request to the engine, and returns it with the asyncio queue of its events,
        which have `cells` if the canvas is to be shown."""
        loop, events = asyncio.get_running_loop(), asyncio.Queue()

        def changed(sequence: Sequence | None) -> None:
            event = None if sequence is None else _Event.of(sequence, cells)
            try:
                loop.call_soon_threadsafe(events.put_nowait, event)
            except RuntimeError:  # the loop has ended
                request.cancelled.set()

        names = ("prompts", "sampler", "seed", "max_tokens", "constraint", "top_logprobs")
        settings = {name: getattr(api_request, name) for name in names}
        request = Request(self.model, **settings, seconds=self.settings.timeout, changed=changed)
        await run_in_threadpool(self.engine.submit, request)
        return request, events

    async def changes(
        self, http: Http | None, request: Request, events: "asyncio.Queue[Any]"
    ) -> "AsyncIterator[_Event]":
        """Yields the events of a request until all its sequences have finished.

        Cancels the request if the client of `http` disconnects, or the generator is closed.
        """
        unfinished = len(request.sequences)
        try:
            while unfinished:
                try:
                    event = await asyncio.wait_for(events.get(), 0.5)
                except TimeoutError:
                    if http is not None and await http.is_disconnected():
                        return
                    if not self.engine.alive and request.error is None and events.empty():
                        raise ApiError(503, SHUTDOWN) from None
                    continue
                if event is None:
                    raise ApiError(request.status, request.error or "it failed")
                unfinished -= event.finish is not None
                yield event
        finally:
            request.cancelled.set()
            n_tokens = sum(len(sequence.tokens) for sequence in request.sequences)
            self.metrics.add("tokens_total", n_tokens)
            self.metrics.add("request_seconds_total", time.monotonic() - request.created)

    # Handlers

    async def completion(self, http: Http, *, chat: bool) -> Response:
        """Decodes text, or scores the labels of `llada.choices`."""
        api_request = await self.parse(http, chat=chat)
        if api_request.choices:
            return await self.score_choices(api_request, chat)
        request, events = await self.submit(api_request)
        response = ResponseFormat(self.name, chat, api_request, request)
        if api_request.stream:
            return self.event_stream(self.chunks(response, events))
        async for _ in self.changes(http, request, events):
            pass
        if not all(sequence.finish for sequence in request.sequences):
            raise ApiError(499, "the client has gone")
        return JSONResponse(response.whole())

    async def chunks(
        self, response: "ResponseFormat", events: "asyncio.Queue[Any]"
    ) -> AsyncIterator[Any]:
        """Yields the chunks of a streamed response, each with the text that is new."""
        for index in range(len(response.request.sequences)):
            if response.chat:
                yield response.chunk(index, {"role": "assistant", "content": ""})
        sent = [0] * len(response.request.sequences)
        n_tokens = [0] * len(response.request.sequences)
        async for event in self.changes(None, response.request, events):
            index, text = event.index, event.text
            if len(text) > sent[index] or event.finish:
                tokens = range(n_tokens[index], len(event.tokens))
                yield response.chunk(index, {"content": text[sent[index] :]}, event, tokens)
                sent[index], n_tokens[index] = len(text), len(event.tokens)
        if response.api_request.include_usage:
            yield {**response.head("chunk"), "choices": [], "usage": response.usage()}

    def event_stream(self, chunks: AsyncIterator[Any]) -> StreamingResponse:
        """Streams chunks as server-sent events; an error becomes the last event."""

        async def lines() -> AsyncIterator[str]:
            try:
                async for chunk in chunks:
                    yield f"data: {json.dumps(chunk, allow_nan=False)}\n\n"
            except ApiError as error:
                yield f"data: {json.dumps(_error(error))}\n\n"
            yield "data: [DONE]\n\n"

        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)

    async def score_choices(self, api_request: ApiRequest, chat: bool) -> Response:
        """Responds with the most probable label, and the probabilities of all labels."""
        assert self.model.tokenizer is not None
        tokenizer = self.model.tokenizer
        choices, seed = api_request.choices, api_request.seed
        pairs = [(api_request.prompts[0], tokenizer.encode(choice)) for choice in choices]

        def score() -> np.ndarray:
            return log_likelihoods(self.model.params, self.model.config, pairs, seed=seed)

        logprobs = await asyncio.wrap_future(self.engine.call(score))
        best = int(logprobs.argmax())
        weights = np.exp(logprobs - logprobs.max())
        probabilities = (weights / weights.sum()).tolist()
        labels = [
            {"text": text, "logprob": float(logprob), "probability": probability}
            for text, logprob, probability in zip(choices, logprobs, probabilities, strict=True)
        ]
        content = _content(chat, choices[best])
        choice = {"index": 0, **content, "finish_reason": "stop", "logprobs": None}
        head = ResponseFormat(self.name, chat, api_request, None).head()
        usage = _usage(len(pairs[best][0]), len(pairs[best][1]))
        extension = {"choices": labels}
        return JSONResponse({**head, "choices": [choice], "usage": usage, "llada": extension})

    async def canvas(self, http: Http) -> Response:
        """Streams the changes of each forward to the canvas of one chat, for the page."""
        api_request = await self.parse(http, chat=True)
        if len(api_request.prompts) != 1 or api_request.choices:
            raise ApiError(400, "n or llada.choices are set; allowed on a canvas: one answer")
        request, events = await self.submit(api_request, cells=True)

        async def steps() -> AsyncIterator[Any]:
            assert self.model.tokenizer is not None
            tokenizer, settings = self.model.tokenizer, request.sampler
            yield {
                "prompt_tokens": len(request.prompts[0]),
                "length": settings.gen_length,
                "block": settings.block_length,
                "sampler": settings.as_dict(),
            }
            seconds = dict.fromkeys(PHONES, 0.0)
            async for event in self.changes(None, request, events):
                for soc, table in PHONES.items():
                    seconds[soc] += 1e-3 * _milliseconds(table, event.rows)
                ids = {cell[1] for cell in event.cells} | {cell[4] for cell in event.cells}
                pieces = tokenizer.pieces(sorted(i for i in ids if i >= 0))
                cells = [
                    [
                        at,
                        pieces.get(str(token), ""),
                        status,
                        confidence,
                        pieces.get(str(draft), ""),
                    ]
                    for at, token, status, confidence, draft in event.cells
                ]
                yield {
                    "forward": event.forward,
                    "rows": event.rows,
                    "cells": cells,
                    "text": event.text,
                    "tokens": len(event.tokens),
                    "phones": {soc: round(value, 3) for soc, value in seconds.items()},
                    "finish": event.finish,
                }

        return self.event_stream(steps())

    async def share(self, http: Http) -> Response:
        """Responds with a page that replays a chat's run, which is decoded again with its seed."""
        api_request = await self.parse(http, chat=True)

        def page() -> str:
            result = lj.generate(
                self.model,
                api_request.prompts[:1],
                api_request.sampler,
                backend=self.engine.backend,
                seed=api_request.seed,
                constraint=api_request.constraint,
                trace="scores",
            )
            timed = [lj.phone(soc).time(result.trace, "llada_8b") for soc in PHONES]
            return result.trace.page(timed=timed).html

        html = await asyncio.wrap_future(self.engine.call(page))
        headers = {"Content-Disposition": 'attachment; filename="run.html"'}
        return HTMLResponse(html, headers=headers)

    async def models(self, http: Http) -> Response:
        """Responds with the list of models, which has one, or with the named one."""
        card = {"id": self.name, "object": "model", "created": self.began, "owned_by": "llada_jax"}
        name = http.path_params.get("name")
        if name is not None and name != self.name:
            message = f"model is {name!r:.60}; allowed: {self.name!r}"
            raise ApiError(404, message, "model_not_found")
        return JSONResponse(card if name else {"object": "list", "data": [card]})

    async def health(self, http: Http) -> Response:
        """Responds with the engine's state, as status 503 once it shuts down."""
        alive = self.engine.alive
        state = {
            "status": "ok" if alive else "stopping",
            "model": self.name,
            "running": self.engine.n_running,
            "waiting": self.engine.n_waiting,
            "presets": list(PRESETS),
            "sampler": self.sampler.as_dict(),
            "needs_key": self.settings.api_key is not None,
        }
        return JSONResponse(state, status_code=200 if alive else 503)

    async def prometheus(self, http: Http) -> Response:
        """Responds with the metrics."""
        gauges = {
            "sequences_running": self.engine.n_running,
            "sequences_waiting": self.engine.n_waiting,
            "forwards": self.engine.forwards,
        }
        return Response(self.metrics.text(gauges), media_type="text/plain; version=0.0.4")

    async def page(self, http: Http) -> Response:
        """Responds with the page, which may load nothing from other hosts."""
        policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        headers = {"Content-Security-Policy": policy + "connect-src 'self'; img-src data:"}
        return HTMLResponse(PAGE.read_text("utf-8"), headers=headers)

    # Application

    def guard(self, path: str, handler: Callable[..., Any], *, open_to_all: bool = False) -> Any:
        """Wraps a handler: checks the API key, counts the request, and turns errors into one
        sentence."""

        async def answer(http: Http) -> Response:
            headers = {}
            try:
                if not open_to_all:
                    self.require_key(http)
                response = await handler(http)
            except QueueFull:
                headers["Retry-After"] = "2"
                response = _error_response(
                    ApiError(503, "the queue is full; try again later"), headers
                )
            except ApiError as error:
                response = _error_response(error, headers)
            except ValueError as error:
                response = _error_response(ApiError(400, " ".join(str(error).split())), headers)
            except Exception as error:
                _log.error("a request failed", exc_info=error)
                response = _error_response(
                    ApiError(500, "the server failed at the request"), headers
                )
            self.metrics.add("requests_total", path=path, status=response.status_code)
            return response

        return answer

    def require_key(self, http: Http) -> None:
        """Raises `ApiError` if the server has an API key and the request lacks it."""
        key = self.settings.api_key
        sent_key = http.headers.get("authorization", "").removeprefix("Bearer ")
        if key is not None and not hmac.compare_digest(sent_key.encode(), key.encode()):
            raise ApiError(
                401, "the API key is wrong or missing; allowed: Authorization: Bearer KEY"
            )

    def app(self) -> Starlette:
        """Returns the ASGI application, whose shutdown closes the engine."""

        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            yield
            await run_in_threadpool(self.engine.close)

        async def routing_error(http: Http, error: Exception) -> Response:
            status = error.status_code if isinstance(error, HTTPException) else 500
            messages = {404: "no such path", 405: "no such method here"}
            return _error_response(ApiError(status, messages.get(status, "the request failed")), {})

        def route(
            path: str, handler: Any, method: str = "POST", open_to_all: bool = False
        ) -> Route:
            endpoint = self.guard(path, handler, open_to_all=open_to_all)
            return Route(path, endpoint, methods=[method])

        return Starlette(
            routes=[
                route("/v1/chat/completions", partial(self.completion, chat=True)),
                route("/v1/completions", partial(self.completion, chat=False)),
                route("/v1/models", self.models, "GET"),
                route("/v1/models/{name}", self.models, "GET"),
                route("/canvas", self.canvas),
                route("/share", self.share),
                route("/metrics", self.prometheus, "GET"),
                route("/health", self.health, "GET", open_to_all=True),
                route("/", self.page, "GET", open_to_all=True),
            ],
            exception_handlers={HTTPException: routing_error},
            lifespan=lifespan,
        )


@dataclass(frozen=True)
class _Event:
    """A sequence after one of its forwards, copied by the worker thread, which goes on with it."""

    index: int
    text: str
    tokens: list[int]
    logprobs: list[float]
    top: TopTokens | None
    finish: str | None
    forward: int
    rows: int
    cells: list[tuple[int, int, int, float, int]]
    """Position, token, state, confidence and draft of each changed position, if the canvas is
    shown; -1 if there is no token to show or no draft."""

    @classmethod
    def of(cls, sequence: Sequence, cells: bool) -> "_Event":
        return cls(
            sequence.index,
            sequence.text,
            list(sequence.tokens),
            sequence.logprobs,
            sequence.top,
            sequence.finish,
            sequence.forwards,
            sequence.rows[-1] if sequence.rows else 0,
            _cells(sequence) if cells else [],
        )


def _cells(sequence: Sequence) -> list[tuple[int, int, int, float, int]]:
    last, cells = sequence.last, []
    for at in sequence.changes if last is not None else ():
        assert last is not None
        index = sequence.n_prompt + at
        draft = -1 if last.drafts is None else int(last.drafts[index])
        confidence = round(float(last.confidence[index]), 4)
        token, status = int(last.tokens[index]), int(last.status[index])
        cells.append((at, token if status > 2 else -1, status, confidence, draft))
    return cells


@dataclass(frozen=True)
class ResponseFormat:
    """Builds responses, and the chunks of streamed ones, in OpenAI's format."""

    model: str
    chat: bool
    api_request: ApiRequest
    request: Any
    number: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def head(self, kind: str = "") -> dict[str, Any]:
        """Returns the fields before `choices`; `kind` is "chunk" for a part of a stream."""
        name, prefix = "text_completion", "cmpl"
        if self.chat:
            name, prefix = "chat.completion.chunk" if kind else "chat.completion", "chatcmpl"
        return {
            "id": f"{prefix}-{self.number}",
            "object": name,
            "created": self.created,
            "model": self.model,
        }

    def whole(self) -> dict[str, Any]:
        """Returns the response of a finished request."""
        choices = []
        for sequence in self.request.sequences:
            choices.append({
                "index": sequence.index,
                **_content(self.chat, sequence.text),
                "finish_reason": sequence.finish,
                "logprobs": self.logprobs(sequence, range(len(sequence.tokens))),
                "llada": self.extension(sequence),
            })  # fmt: skip
        sampler = {"sampler": self.api_request.sampler.as_dict(), "seed": self.api_request.seed}
        return {**self.head(), "choices": choices, "usage": self.usage(), "llada": sampler}

    def extension(self, sequence: Sequence) -> dict[str, Any]:
        """Returns the field `llada` of a choice: numbers for which OpenAI has no field."""
        return {
            "forwards": sequence.forwards,
            "steps": sequence.steps,
            "tokens_per_forward": len(sequence.tokens) / max(1, sequence.forwards),
        }

    def chunk(
        self, index: int, delta: dict[str, Any], event: Any = None, tokens: Any = range(0)
    ) -> dict[str, Any]:
        """Returns a chunk for one sequence: its new text, and after a forward its new `tokens`, a
        range of the event's tokens."""
        finish = event.finish if event else None
        content: Any = {"delta": delta} if self.chat else {"text": delta["content"]}
        choice = {"index": index, **content, "finish_reason": finish, "logprobs": None}
        if event is not None:
            choice["logprobs"] = self.logprobs(event, tokens)
            choice["llada"] = {"forwards": event.forward}
        if finish:
            choice["llada"] = self.extension(self.request.sequences[index])
        return {**self.head("chunk"), "choices": [choice]}

    def logprobs(self, source: "Sequence | _Event", positions: range) -> Any:
        """Returns the log-probabilities of the tokens at some positions, each from the forward that
        committed it, with its most probable tokens; None if they were not requested."""
        if not self.api_request.logprobs:
            return None
        tokens, values, top = source.tokens, source.logprobs, source.top
        n_top, tokenizer = self.api_request.top_logprobs, self.request.model.tokenizer

        def entry(token: int, value: float) -> dict[str, Any]:
            text = tokenizer.decode([token], skip_special_tokens=False)
            return {"token": text, "logprob": value, "bytes": list(text.encode())}

        content = []
        for at in positions:
            best = [] if top is None else zip(*(a[at, :n_top].tolist() for a in top), strict=True)
            best = [entry(token, value) for token, value in best if value > -math.inf]
            content.append({**entry(tokens[at], values[at]), "top_logprobs": best})
        if self.chat:
            return {"content": content, "refusal": None}
        tops = []
        for chosen in content:  # listed, too; of tokens with the same text the best one is
            best = reversed([chosen, *chosen["top_logprobs"]])
            tops.append({token["token"]: token["logprob"] for token in best})
        return {
            "tokens": [c["token"] for c in content],
            "token_logprobs": [c["logprob"] for c in content],
            "text_offset": text_offsets(self.request.decode, tokens, positions),
            "top_logprobs": tops if n_top else None,
        }

    def usage(self) -> dict[str, int]:
        sequences = self.request.sequences
        n_prompt = sum(map(len, {tuple(prompt) for prompt in self.request.prompts}))
        return _usage(n_prompt, sum(len(sequence.tokens) for sequence in sequences))


def text_offsets(decode: Callable[[Any], str], tokens: list[int], positions: range) -> list[int]:
    """Returns where the text of the tokens at some positions begins. Tokens are decoded after a few
    others, with which they may share a character."""
    offset, offsets = len(decode(tokens[: positions.start])), []
    for at in positions:
        before = tokens[max(0, at - _CONTEXT) : at]
        offsets.append(offset)
        offset += len(decode([*before, tokens[at]])) - len(decode(before))
    return offsets


def _content(chat: bool, text: str) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": text}} if chat else {"text": text}


def _usage(n_prompt: int, n_answer: int) -> dict[str, int]:
    total = n_prompt + n_answer
    return {"prompt_tokens": n_prompt, "completion_tokens": n_answer, "total_tokens": total}


def _milliseconds(table: LatencyTable, rows: int) -> float:
    """Returns the modelled time of a forward, extrapolated linearly above the table's last row."""
    *_, (previous, ms_previous), (last, ms_last) = zip(table.rows, table.ms, strict=True)
    slope = (ms_last - ms_previous) / (last - previous)
    if rows > last:
        return ms_last + slope * (rows - last)
    return next(ms for bucket, ms in zip(table.rows, table.ms, strict=True) if rows <= bucket)


def _error(error: ApiError) -> dict[str, Any]:
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    message = str(error).encode("utf-8", "backslashreplace").decode()  # lone surrogates
    return {"error": {"message": message, "type": kind, "param": None, "code": error.code}}


def _error_response(error: ApiError, headers: dict[str, str]) -> Response:
    return JSONResponse(_error(error), status_code=error.status, headers=headers)


def run_server(service: Service) -> None:
    """Serves until SIGINT or SIGTERM, after which running requests have `grace` seconds to
    finish. Requests that take longer fail with an error message."""
    import uvicorn

    settings = service.settings
    config = uvicorn.Config(
        service.app(),
        host=settings.host,
        port=settings.port,
        log_level="warning",
        timeout_graceful_shutdown=settings.grace,
        server_header=False,
    )
    bound = config.bind_socket()  # ends the program if the port is taken
    port = bound.getsockname()[1]  # the system's choice if it is 0 in the settings
    print(f"{service.model!r} at http://{settings.host}:{port} (Ctrl-C ends)", flush=True)
    uvicorn.Server(config).run(sockets=[bound])
