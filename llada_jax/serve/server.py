"""The HTTP side: the OpenAI interface, health and metrics, and the page with a live canvas.

Text is streamed once it is final: from the left, and never taken back. Errors are one sentence in
the form of the OpenAI interface, without paths and tracebacks.
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import llada_jax as lj
from llada_jax.checkpoint import bundled_names
from llada_jax.config import LatencyTable, require
from llada_jax.config.timed_buckets import MODELLED
from llada_jax.evaluation.likelihood import log_likelihoods
from llada_jax.sampler.config import PRESETS
from llada_jax.serve.engine import Engine, QueueFull
from llada_jax.serve.metrics import Metrics
from llada_jax.serve.requests import Asked, asked_of, body_of
from llada_jax.serve.sequence import Request, Sequence

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
_log = logging.getLogger("llada_jax.serve")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Where the server listens, and its limits."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    places: int = 8
    """Sequences that are decoded at a time."""
    queue: int = 64
    """Sequences that may wait."""
    timeout: float = 300.0
    """Seconds that a request may take."""
    max_body: int = 1 << 20
    """Bytes of a request's body."""
    grace: int = 30
    """Seconds that running requests have once the server is told to stop."""

    def __post_init__(self) -> None:
        require(0 <= self.port < 1 << 16, f"port is {self.port}; allowed: 0 to {(1 << 16) - 1}")
        require(
            math.isfinite(self.timeout) and self.timeout > 0,
            f"timeout is {self.timeout}; allowed: above 0, and finite",
        )


class Refused(Exception):
    """An error with its HTTP status."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Service:
    """A model with its engine, and what answers each path."""

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

    async def asked(self, http: Http, *, chat: bool) -> Asked:
        """Returns what a request asks for."""
        content = bytearray()
        async for part in http.stream():
            content += part
            if len(content) > self.settings.max_body:
                limit = f"{self.settings.max_body:,}"
                raise Refused(413, f"the body is longer than the {limit} bytes that are allowed")
        body = body_of(bytes(content))
        name = body.get("model", self.name)
        if name != self.name:
            message = f"model is {name!r:.60}; allowed: {self.name!r}"
            raise Refused(404, message, "model_not_found")
        options = {"model": self.model, "sampler": self.sampler, "seed": self.seed}
        return await run_in_threadpool(partial(asked_of, body, chat=chat, **options))

    async def started(self, asked: Asked) -> "tuple[Request, asyncio.Queue[Any]]":
        """Queues a request; its changes arrive in an asyncio queue."""
        loop, events = asyncio.get_running_loop(), asyncio.Queue()

        def changed(sequence: Sequence | None) -> None:
            event = None
            if sequence is not None:
                event = _Event.of(sequence)
            try:
                loop.call_soon_threadsafe(events.put_nowait, event)
            except RuntimeError:  # the loop has ended
                request.cancelled.set()

        request = Request(
            self.model,
            asked.prompts,
            asked.sampler,
            asked.seed,
            asked.max_tokens,
            asked.constraint,
            self.settings.timeout,
            changed,
        )
        await run_in_threadpool(self.engine.submit, request)
        return request, events

    async def changes(
        self, http: Http | None, request: Request, events: "asyncio.Queue[Any]"
    ) -> "AsyncIterator[_Event]":
        """Yields what each forward changed until all sequences are done; cancels the request once
        nobody listens."""
        left = len(request.sequences)
        try:
            while left:
                try:
                    event = await asyncio.wait_for(events.get(), 0.5)
                except TimeoutError:
                    if http is not None and await http.is_disconnected():
                        return
                    if not self.engine.alive and request.error is None and events.empty():
                        raise Refused(503, "the server is shutting down") from None
                    continue
                if event is None:
                    raise Refused(_status_of(request.error), request.error or "it failed")
                left -= event.finish is not None
                yield event
        finally:
            request.cancelled.set()
            done = sum(len(each.tokens) for each in request.sequences)
            self.metrics.add("tokens_total", done)
            self.metrics.add("request_seconds_total", time.monotonic() - request.created)

    # Paths

    async def completion(self, http: Http, *, chat: bool) -> Response:
        asked = await self.asked(http, chat=chat)
        if asked.choices:
            return await self.scored(asked, chat)
        request, events = await self.started(asked)
        form = _Form(self.name, chat, asked, request)
        if asked.stream:
            return self.event_stream(self.chunks(form, events))
        async for _ in self.changes(http, request, events):
            pass
        if not all(each.finish for each in request.sequences):
            raise Refused(499, "the client has gone")
        return JSONResponse(form.whole())

    async def chunks(self, form: "_Form", events: "asyncio.Queue[Any]") -> AsyncIterator[Any]:
        for index in range(len(form.request.sequences)):
            if form.chat:
                yield form.chunk(index, {"role": "assistant", "content": ""})
        sent = [0] * len(form.request.sequences)
        n_tokens = [0] * len(form.request.sequences)
        async for event in self.changes(None, form.request, events):
            index, text = event.index, event.text
            if len(text) > sent[index] or event.finish:
                tokens = range(n_tokens[index], len(event.tokens))
                yield form.chunk(index, {"content": text[sent[index] :]}, event, tokens)
                sent[index], n_tokens[index] = len(text), len(event.tokens)
        if form.asked.include_usage:
            yield {**form.head("chunk"), "choices": [], "usage": form.usage()}

    def event_stream(self, chunks: AsyncIterator[Any]) -> StreamingResponse:
        """Returns server-sent events; an error on the way is the last one."""

        async def lines() -> AsyncIterator[str]:
            try:
                async for chunk in chunks:
                    yield f"data: {json.dumps(chunk, allow_nan=False)}\n\n"
            except Refused as error:
                yield f"data: {json.dumps(_error(error))}\n\n"
            yield "data: [DONE]\n\n"

        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)

    async def scored(self, asked: Asked, chat: bool) -> Response:
        """Answers with the most probable label, and the probabilities of all."""
        assert self.model.tokenizer is not None
        tokenizer = self.model.tokenizer
        pairs = [(asked.prompts[0], tokenizer.encode(each)) for each in asked.choices]

        def scores() -> np.ndarray:
            return log_likelihoods(self.model.params, self.model.config, pairs, seed=asked.seed)

        found = await asyncio.wrap_future(self.engine.call(scores))
        weights = np.exp(found - found.max())
        probabilities = (weights / weights.sum()).tolist()
        labels = [
            {"text": text, "logprob": float(logprob), "probability": probability}
            for text, logprob, probability in zip(asked.choices, found, probabilities, strict=True)
        ]
        best = asked.choices[int(found.argmax())]
        n_prompt, n_answer = len(pairs[0][0]), len(pairs[int(found.argmax())][1])
        message: Any = {"message": {"role": "assistant", "content": best}} if chat else {
            "text": best
        }  # fmt: skip
        form = _Form(self.name, chat, asked, None)
        usage = _usage(n_prompt, n_answer)
        choice = {"index": 0, **message, "finish_reason": "stop", "logprobs": None}
        extra = {"choices": labels}
        return JSONResponse({**form.head(), "choices": [choice], "usage": usage, "llada": extra})

    async def canvas(self, http: Http) -> Response:
        """Streams what each forward does to the canvas of one chat."""
        asked = await self.asked(http, chat=True)
        if len(asked.prompts) != 1 or asked.choices:
            raise Refused(400, "n or llada.choices are set; allowed on a canvas: one answer")
        request, events = await self.started(asked)

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
                if event.cells is not None:
                    for soc, table in PHONES.items():
                        seconds[soc] += 1e-3 * _milliseconds(table, event.rows)
                    ids = {cell[1] for cell in event.cells} | {cell[4] for cell in event.cells}
                    pieces = tokenizer.pieces(sorted(i for i in ids if i >= 0))
                    named = [
                        [at, pieces.get(str(token), ""), status, sure, pieces.get(str(draft), "")]
                        for at, token, status, sure, draft in event.cells
                    ]
                    yield {
                        "forward": event.forward,
                        "rows": event.rows,
                        "cells": named,
                        "text": event.text,
                        "tokens": len(event.tokens),
                        "phones": {soc: round(value, 3) for soc, value in seconds.items()},
                        "finish": event.finish,
                    }

        return self.event_stream(steps())

    async def share(self, http: Http) -> Response:
        """Returns a run, decoded again by its seed, as the page that replays it."""
        asked = await self.asked(http, chat=True)

        def page() -> str:
            result = lj.generate(
                self.model,
                asked.prompts[:1],
                asked.sampler,
                backend=self.engine.backend,
                seed=asked.seed,
                constraint=asked.constraint,
                trace="scores",
            )
            timed = [lj.phone(soc).time(result.trace, "llada_8b") for soc in PHONES]
            return result.trace.page(timed=timed).html

        html = await asyncio.wrap_future(self.engine.call(page))
        headers = {"Content-Disposition": 'attachment; filename="run.html"'}
        return HTMLResponse(html, headers=headers)

    async def models(self, http: Http) -> Response:
        card = {"id": self.name, "object": "model", "created": self.began, "owned_by": "llada_jax"}
        name = http.path_params.get("name")
        if name is not None and name != self.name:
            message = f"model is {name!r:.60}; allowed: {self.name!r}"
            raise Refused(404, message, "model_not_found")
        return JSONResponse(card if name else {"object": "list", "data": [card]})

    async def health(self, http: Http) -> Response:
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
        gauges = {
            "sequences_running": self.engine.n_running,
            "sequences_waiting": self.engine.n_waiting,
            "forwards": self.engine.forwards,
        }
        return Response(self.metrics.text(gauges), media_type="text/plain; version=0.0.4")

    async def page(self, http: Http) -> Response:
        policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        headers = {"Content-Security-Policy": policy + "connect-src 'self'; img-src data:"}
        return HTMLResponse(PAGE.read_text("utf-8"), headers=headers)

    # Application

    def guarded(self, path: str, handler: Callable[..., Any], *, open_to_all: bool = False) -> Any:
        """Returns a handler that checks the key, counts, and turns errors into one sentence."""

        async def answer(http: Http) -> Response:
            headers = {}
            try:
                if not open_to_all:
                    self.require_key(http)
                response = await handler(http)
            except QueueFull:
                headers["Retry-After"] = "2"
                response = _refusal(Refused(503, "the queue is full; try again later"), headers)
            except Refused as error:
                response = _refusal(error, headers)
            except ValueError as error:
                response = _refusal(Refused(400, " ".join(str(error).split())), headers)
            except Exception as error:
                _log.error("a request failed", exc_info=error)
                response = _refusal(Refused(500, "the server failed at the request"), headers)
            self.metrics.add("requests_total", path=path, status=response.status_code)
            return response

        return answer

    def require_key(self, http: Http) -> None:
        key = self.settings.api_key
        given = http.headers.get("authorization", "").removeprefix("Bearer ")
        if key is not None and not hmac.compare_digest(given.encode(), key.encode()):
            raise Refused(
                401, "the API key is wrong or missing; allowed: Authorization: Bearer KEY"
            )

    def app(self) -> Starlette:
        """Returns the application; its end closes the engine."""

        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            yield
            await run_in_threadpool(self.engine.close)

        async def missed(http: Http, error: Exception) -> Response:
            status = error.status_code if isinstance(error, HTTPException) else 500
            allowed = {404: "no such path", 405: "no such method here"}
            return _refusal(Refused(status, allowed.get(status, "the request failed")), {})

        def route(
            path: str, handler: Any, method: str = "POST", open_to_all: bool = False
        ) -> Route:
            guarded = self.guarded(path, handler, open_to_all=open_to_all)
            return Route(path, guarded, methods=[method])

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
            exception_handlers={HTTPException: missed},
            lifespan=lifespan,
        )


@dataclass(frozen=True)
class _Event:
    """What a forward did to a sequence, copied in the worker thread."""

    index: int
    text: str
    tokens: list[int]
    logprobs: list[float]
    finish: str | None
    forward: int
    rows: int
    cells: list[tuple[int, int, int, float, int]] | None
    """Position, token, status, confidence and draft of what changed."""

    @classmethod
    def of(cls, sequence: Sequence) -> "_Event":
        last, begin = sequence.last, sequence.n_prompt
        cells = []
        for at in sequence.changes if last is not None else ():
            assert last is not None
            draft = -1 if last.drafts is None else int(last.drafts[begin + at])
            sure = round(float(last.confidence[begin + at]), 4)
            token, status = int(last.tokens[begin + at]), int(last.status[begin + at])
            cells.append((at, token if status > 2 else -1, status, sure, draft))
        return cls(
            sequence.index,
            sequence.text,
            list(sequence.tokens),
            sequence.logprobs,
            sequence.finish,
            sequence.forwards,
            sequence.rows[-1] if sequence.rows else 0,
            cells,
        )


@dataclass(frozen=True)
class _Form:
    """Answers in the form of the OpenAI interface."""

    model: str
    chat: bool
    asked: Asked
    request: Any
    id: str = ""
    created: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", f"{'chatcmpl' if self.chat else 'cmpl'}-{uuid.uuid4().hex}")
        object.__setattr__(self, "created", int(time.time()))

    def head(self, kind: str = "") -> dict[str, Any]:
        name = "text_completion"
        if self.chat:
            name = "chat.completion.chunk" if kind else "chat.completion"
        return {"id": self.id, "object": name, "created": self.created, "model": self.model}

    def whole(self) -> dict[str, Any]:
        choices = []
        for each in self.request.sequences:
            content: Any = {"text": each.text}
            if self.chat:
                content = {"message": {"role": "assistant", "content": each.text}}
            logprobs = self.logprobs(each.tokens, each.logprobs, range(len(each.tokens)))
            choices.append({
                "index": each.index,
                **content,
                "finish_reason": each.finish,
                "logprobs": logprobs,
                "llada": self.extra(each),
            })  # fmt: skip
        sampler = {"sampler": self.asked.sampler.as_dict(), "seed": self.asked.seed}
        return {**self.head(), "choices": choices, "usage": self.usage(), "llada": sampler}

    def extra(self, sequence: Sequence) -> dict[str, Any]:
        """Returns what the interface has no field for."""
        return {
            "forwards": sequence.forwards,
            "steps": sequence.steps,
            "tokens_per_forward": len(sequence.tokens) / max(1, sequence.forwards),
        }

    def chunk(
        self, index: int, delta: dict[str, Any], event: Any = None, tokens: Any = range(0)
    ) -> dict[str, Any]:
        finish = event.finish if event else None
        content: Any = {"delta": delta} if self.chat else {"text": delta["content"]}
        choice = {"index": index, **content, "finish_reason": finish, "logprobs": None}
        if event is not None:
            choice["logprobs"] = self.logprobs(event.tokens, event.logprobs, tokens)
            choice["llada"] = {"forwards": event.forward}
        if finish:
            choice["llada"] = self.extra(self.request.sequences[index])
        return {**self.head("chunk"), "choices": [choice]}

    def logprobs(self, tokens: list[int], values: list[float], places: Any) -> Any:
        """Returns the log-probabilities of tokens by their forwards, if they were asked for."""
        if not self.asked.logprobs:
            return None
        text_of = [self.request.decode([tokens[at]]) for at in places]
        chosen = [values[at] for at in places]
        if not self.chat:
            top = [{t: v} for t, v in zip(text_of, chosen, strict=True)]
            offsets = [len(self.request.decode(tokens[:at])) for at in places]
            return {"tokens": text_of, "token_logprobs": chosen, "text_offset": offsets,
                    "top_logprobs": top if self.asked.top_logprobs else None}  # fmt: skip
        content = []
        for text, value in zip(text_of, chosen, strict=True):
            entry = {"token": text, "logprob": value, "bytes": list(text.encode())}
            content.append({**entry, "top_logprobs": [entry] * self.asked.top_logprobs})
        return {"content": content, "refusal": None}

    def usage(self) -> dict[str, int]:
        sequences = self.request.sequences
        n_prompt = sum(map(len, {tuple(each) for each in self.request.prompts}))
        return _usage(n_prompt, sum(len(each.tokens) for each in sequences))


def _usage(n_prompt: int, n_answer: int) -> dict[str, int]:
    total = n_prompt + n_answer
    return {"prompt_tokens": n_prompt, "completion_tokens": n_answer, "total_tokens": total}


def _milliseconds(table: LatencyTable, rows: int) -> float:
    """Returns the modelled time of a forward; beyond the table it grows by rows as at its end."""
    *_, (before, ms_before), (last, ms_last) = zip(table.rows, table.ms, strict=True)
    slope = (ms_last - ms_before) / (last - before)
    if rows > last:
        return ms_last + slope * (rows - last)
    return next(ms for size, ms in zip(table.rows, table.ms, strict=True) if rows <= size)


def _status_of(error: str | None) -> int:
    if error and error.startswith("the request took more"):
        return 504
    return 503 if error == "the server is shutting down" else 500


def _error(error: Refused) -> dict[str, Any]:
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    message = str(error).encode("utf-8", "backslashreplace").decode()  # of halves of characters
    return {"error": {"message": message, "type": kind, "param": None, "code": error.code}}


def _refusal(error: Refused, headers: dict[str, str]) -> Response:
    return JSONResponse(_error(error), status_code=error.status, headers=headers)


def run_server(
    model: lj.Model,
    sampler: lj.SamplerConfig,
    settings: ServerSettings,
    *,
    backend: str = "xla",
    seed: int = 0,
) -> None:
    """Serves until SIGINT or SIGTERM: what runs then has some seconds to finish, and is failed with
    a sentence after them."""
    import uvicorn

    service = Service(model, sampler, settings, backend=backend, seed=seed)
    print(f"{model!r} at http://{settings.host}:{settings.port} (Ctrl-C ends)", flush=True)
    uvicorn.run(
        service.app(),
        host=settings.host,
        port=settings.port,
        log_level="warning",
        timeout_graceful_shutdown=settings.grace,
        server_header=False,
    )
