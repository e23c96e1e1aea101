"""`llada serve` from a client's view: OpenAI's client, and requests that are refused."""

import json
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

import llada_jax as lj

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("openai", reason="needs OpenAI's client")

import httpx
import openai
import uvicorn

from llada_jax.sampler.state import TopTokens
from llada_jax.serve.server import ResponseFormat, Service, text_offsets
from llada_jax.serve.settings import ServerSettings

SAMPLER = lj.SamplerConfig.preset("blockwise", gen_length=16, block_length=8)
CHAT = [{"role": "user", "content": "Anna had 6 apples. She ate 1. How many are left?"}]


@contextmanager
def serving(model="tiny", backend="xla", **settings):
    """Runs a server in a thread; yields its service and address."""
    service = Service(lj.load(model), SAMPLER, ServerSettings(**settings), backend=backend)
    config = uvicorn.Config(service.app(), port=0, log_level="error", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield service, f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def server():
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def model(server):
    return server[0].model


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server[1]}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def http(server):
    with httpx.Client(base_url=server[1], timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def expected(model):
    return lj.generate(model, [model.tokenizer.encode_chat(CHAT)], SAMPLER).text[0]


def test_models(client):
    assert [each.id for each in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_a_chat_matches_generate(client, model, expected):
    found = client.chat.completions.create(model="tiny", messages=CHAT, logprobs=True)
    (choice,) = found.choices
    assert choice.message.content == expected and choice.finish_reason in ("stop", "length")
    tokens = choice.logprobs.content
    assert "".join(each.token for each in tokens).strip() == expected.strip()
    assert all(each.logprob <= 0 and each.top_logprobs == [] for each in tokens)
    assert found.usage.prompt_tokens == len(model.tokenizer.encode_chat(CHAT))
    assert found.usage.completion_tokens == len(tokens)
    own = choice.model_extra["llada"]
    assert len(own["steps"]) == len(tokens) and max(own["steps"]) < own["forwards"]
    assert found.model_extra["llada"]["sampler"]["threshold"] == 0.9


def test_a_stream_never_takes_text_back(client, expected):
    stream = client.chat.completions.create(
        model="tiny", messages=CHAT, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    texts = [each.choices[0].delta.content for each in chunks if each.choices]
    assert "".join(texts) == expected and len(texts) > 2
    assert chunks[-2].choices[0].finish_reason and chunks[-1].usage.total_tokens > 0


@pytest.mark.slow
def test_top_logprobs_are_those_of_generate(client, model):
    prompt = model.tokenizer.encode("2+2=", add_special_tokens=True)
    config = SAMPLER.replace(temperature=0.9)
    result = lj.generate(model, [prompt], config, seed=5, top_logprobs=4)
    assert result.top_logprobs is not None
    (top,) = result.top_logprobs
    texts = [[model.tokenizer.pieces([i])[str(i)] for i in ids] for ids in top.ids.tolist()]
    ask = {"model": "tiny", "prompt": "2+2=", "seed": 5, "temperature": 0.9}
    for n in (4, 1):
        found = client.completions.create(**ask, logprobs=n).choices[0].logprobs
        assert len(found.tokens) == len(found.top_logprobs) > 3
        for at, (token, best) in enumerate(zip(found.tokens, found.top_logprobs, strict=True)):
            assert {*best} == {token, *texts[at][:n]}
            assert best[token] == found.token_logprobs[at]
            assert best[texts[at][0]] == pytest.approx(float(top.logprobs[at, 0]), abs=1e-4)
    stream = client.completions.create(**ask, logprobs=1, stream=True)
    parts = [chunk.choices[0].logprobs for chunk in stream]
    assert [best for part in parts for best in part.top_logprobs] == found.top_logprobs


def test_top_tokens_are_listed_as_openai_lists_them():
    """A chat lists the best tokens; a text completion the chosen one as well, once."""
    tokenizer = SimpleNamespace(decode=lambda ids, **_: "".join("abcd"[i] for i in ids))
    model = SimpleNamespace(tokenizer=tokenizer)
    request = SimpleNamespace(model=model, decode=tokenizer.decode)
    logprobs = np.array([[-0.7, -1.2, -2.3], [-0.1, -2.3, -np.inf]])
    top = TopTokens(np.array([[0, 1, 2], [3, 1, -1]]), logprobs)
    source = SimpleNamespace(tokens=[2, 3], logprobs=[-2.3, -0.1], top=top)

    def listed(chat, n):
        api_request = SimpleNamespace(logprobs=True, top_logprobs=n)
        return ResponseFormat("m", chat, api_request, request).logprobs(source, range(2))

    content = listed(True, 2)["content"]
    assert [entry["token"] for entry in content] == ["c", "d"] and content[0]["logprob"] == -2.3
    best = [[each["token"] for each in entry["top_logprobs"]] for entry in content]
    assert best == [["a", "b"], ["d", "b"]] and listed(False, 0)["top_logprobs"] is None
    assert [len(entry["top_logprobs"]) for entry in listed(True, 3)["content"]] == [3, 2]
    first, second = listed(False, 2)["top_logprobs"]
    assert first == {"a": -0.7, "b": -1.2, "c": -2.3} and second == {"d": -0.1, "b": -2.3}


@pytest.mark.slow
def test_samples_have_the_seeds_of_a_batch(client, model):
    config = SAMPLER.replace(temperature=0.9, eos_early_stop=True)
    prompt = model.tokenizer.encode("2+2=", add_special_tokens=True)
    expected = lj.generate(model, [prompt] * 2, config, seed=5)
    found = client.completions.create(model="tiny", prompt="2+2=", n=2, seed=5, temperature=0.9)
    assert [each.text for each in found.choices] == expected.text


def test_offsets_count_characters_that_tokens_share():
    """Tokens are bytes, as single characters of Latin-1."""
    tokens = list("aé€b".encode())

    def decode(ids):
        return bytes(ids).decode(errors="ignore")

    every = [len(decode(tokens[:at])) for at in range(len(tokens))]
    assert text_offsets(decode, tokens, range(len(tokens))) == every
    assert text_offsets(decode, tokens * 20, range(133, 136)) == [76, 77, 77]


def test_stop_and_max_tokens(client, expected):
    stop = expected[3:6]
    found = client.chat.completions.create(model="tiny", messages=CHAT, stop=[stop])
    assert found.choices[0].message.content == expected[: expected.index(stop)]
    assert found.choices[0].finish_reason == "stop"
    found = client.chat.completions.create(model="tiny", messages=CHAT, max_tokens=3)
    assert found.usage.completion_tokens == 3 and found.choices[0].finish_reason == "length"


def test_json_and_choices(client):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    found = client.chat.completions.create(model="tiny", messages=CHAT, response_format=form)
    assert json.loads(found.choices[0].message.content)["a"] in (1, 2)
    text = "an answer that needs more than one block"
    form["json_schema"]["schema"] = {"enum": [text]}
    found = client.chat.completions.create(
        model="tiny", messages=CHAT, max_tokens=64, response_format=form
    )
    assert json.loads(found.choices[0].message.content) == text


def test_labels_have_probabilities(client):
    extra = {"llada": {"choices": ["yes", "no"]}}
    found = client.chat.completions.create(model="tiny", messages=CHAT, extra_body=extra)
    labels = found.model_extra["llada"]["choices"]
    best = max(labels, key=lambda each: each["probability"])
    assert found.choices[0].message.content == best["text"]
    assert sum(each["probability"] for each in labels) == pytest.approx(1)


def test_the_canvas_ends_as_the_answer(http, expected):
    answer = http.post("/canvas", json={"messages": CHAT})
    lines = [each for each in answer.text.splitlines() if each.startswith("data: {")]
    events = [json.loads(each.removeprefix("data: ")) for each in lines]
    head, *forwards = events
    assert head["length"] == 16 and head["block"] == 8
    assert [each["forward"] for each in forwards] == list(range(1, len(forwards) + 1))
    assert forwards[-1]["text"] == expected and forwards[-1]["finish"]
    assert forwards[-1]["phones"]["SM8750"] > 0
    cells = {cell[0]: cell for each in forwards for cell in each["cells"]}
    assert "".join(cells[at][1] for at in sorted(cells)).startswith(expected[:8])


@pytest.mark.slow
def test_a_shared_run_is_a_page(http):
    page = http.post("/share", json={"messages": CHAT})
    assert page.status_code == 200 and page.text.startswith("<!doctype html>")


def test_the_page_loads_nothing_from_elsewhere(http):
    page = http.get("/")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert not any(each in page.text for each in ("http://", "https://", "<link", "@import"))


def test_health_and_metrics(http):
    assert http.get("/health").json()["status"] == "ok"
    text = http.get("/metrics").text
    assert 'llada_requests_total{path="/health",status="200"}' in text
    assert "llada_sequences_waiting 0\n" in text


def test_a_client_that_leaves_frees_its_slot(client, server):
    service, _ = server
    stream = client.chat.completions.create(
        model="tiny", messages=CHAT, stream=True, max_tokens=128,
        extra_body={"llada": {"preset": "llada", "sampler": {"block_length": 8}}},
    )  # fmt: skip
    next(iter(stream))
    stream.close()
    deadline = time.monotonic() + 120
    while service.engine.n_running + service.engine.n_waiting and time.monotonic() < deadline:
        time.sleep(0.05)
    assert service.engine.n_running == service.engine.n_waiting == 0


def ask(**changes):
    return {"messages": CHAT, **changes}


WRONG = [
    [], 3, "text", None, {}, {"messages": []}, {"messages": "hi"}, {"messages": [1]},
    *({"messages": [{"role": role, "content": "x"}]} for role in (None, 1, "tool", "nobody", [])),
    *({"messages": [{"role": "user", "content": content}]}
      for content in (None, 3, {}, [1], [{"type": "image"}])),
    *(ask(max_tokens=value) for value in (0, -1, 1.5, "8", True, 10**9, [], {})),
    *(ask(max_completion_tokens=value) for value in (0, "x", 10**12)),
    *(ask(n=value) for value in (0, -1, 17, "2", 1.5, True, [])),
    *(ask(seed=value) for value in ("x", 1.5, 2**64, [], True)),
    *(ask(temperature=value) for value in (-1, 3, "hot", [], True)),
    *(ask(stop=value) for value in (3, [3], [""], "", ["a"] * 5, {}, [None], True)),
    *(ask(stream=value) for value in ("yes", 1, [])),
    *(ask(stream_options=value) for value in (3, [], {"include_usage": 2})),
    *(ask(logprobs=value) for value in (3, "x", [])),
    *(ask(logprobs=True, top_logprobs=value) for value in (-1, 21, "x", 1.5, True, [])),
    ask(top_logprobs=1),
    *(ask(response_format=value) for value in (
        3, "json", [], {}, {"type": "json_object"}, {"type": 3}, {"type": []},
        {"type": "json_schema"}, {"type": "json_schema", "json_schema": 3},
        {"type": "json_schema", "json_schema": {"schema": 3}},
        {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}},
        {"type": "json_schema", "json_schema": {"schema": {"$ref": "#/x"}}},
        {"type": "regex"}, {"type": "regex", "regex": 3}, {"type": "regex", "regex": "("},
        {"type": "choice"}, {"type": "choice", "choice": "x"}, {"type": "choice", "choice": [""]},
    )),
    *(ask(llada=value) for value in (
        3, [], {"x": 1}, {"preset": 3}, {"preset": "best"}, {"preset": "/etc/passwd.json"},
        {"preset": []}, {"choices": 3}, {"choices": [""]}, {"choices": ["x"] * 65},
        {"sampler": 3}, {"sampler": {"x": 1}}, {"sampler": {"gen_length": 8}},
        {"sampler": {"threshold": "x"}}, {"sampler": {"threshold": [1]}},
        {"sampler": {"accept": "os:system"}}, {"sampler": {"window": "os:path"}},
        {"sampler": {"block_length": 0}}, {"sampler": {"block_length": "x"}},
        {"sampler": {"block_length": 7.5}}, {"sampler": {"latency_table": "/etc/passwd"}},
        {"sampler": {"mask_id": -1}}, {"sampler": {"mask_id": 10**9}}, {"sampler": {"steps": 0}},
        {"sampler": {"remasking": "none"}}, {"sampler": {"cache": "all"}},
    )),
    ask(llada={"\ud800": 1}), ask(llada={"sampler": {"\ud800": 1}}),
    ask(llada={"choices": ["a"]}, n=2), ask(llada={"choices": ["a"]}, stream=True),
    *(ask(**{name: value}) for name, value in (
        ("top_p", 0.5), ("frequency_penalty", 1), ("presence_penalty", "x"), ("tools", [{}]),
        ("tool_choice", "required"), ("logit_bias", {"1": 2}), ("functions", []), ("prompt", "x"),
        ("modalities", ["audio"]), ("x" * 500, 1), ("best_of", 2),
    )),
    ask(messages=[{"role": "user", "content": "x" * 20_000}]),
    ask(messages=[{"role": "user", "content": "\ud800"}]),
    ask(messages=CHAT * 257),
]  # fmt: skip
WRONG_PROMPTS = [
    None, 3, "", [], {}, [""], [3.5], [-1], [10**9], [True], [[]], [[-1]], [["a"]], [None],
    ["a"] * 17, [1] * 100_000, "x" * 100_000,
]  # fmt: skip
RAW = [b"", b"{", b"[1", b"\xff\xfe", b"{'a': 1}", b"nan", b"[" * 100_000, b'{"messages": NaN}']
WRONG_PATHS = [
    ("GET", "/v1/chat/completions"), ("POST", "/v1/models"), ("GET", "/x"), ("PUT", "/"),
    ("GET", "/../../etc/passwd"), ("GET", "/v1/models/big"),
]  # fmt: skip


def refusal(answer):
    """Checks that an answer is one sentence in OpenAI's form; returns it."""
    assert 400 <= answer.status_code < 500, answer.text
    message = answer.json()["error"]["message"]
    assert message and "\n" not in message and len(message) <= 1000
    assert not any(each in message for each in ("Traceback", "/work", "site-packages", ".py"))
    return message


def test_two_hundred_malformed_requests_are_a_sentence_each(http):
    count = len(RAW) + len(WRONG_PATHS)
    for path, bodies in (
        ("/v1/chat/completions", WRONG),
        ("/v1/completions", [{"prompt": prompt} for prompt in WRONG_PROMPTS]),
        ("/canvas", [*WRONG[:20], ask(n=2)]),
        ("/share", WRONG[:20]),
    ):
        for body in bodies:
            content = json.dumps(body, allow_nan=True)
            refusal(http.post(path, content=content))
            count += 1
    for content in RAW:
        refusal(http.post("/v1/chat/completions", content=content))
    for method, path in WRONG_PATHS:
        refusal(http.request(method, path))
    refusal(http.post("/v1/chat/completions", json=ask(model="big")))
    assert refusal(http.post("/canvas", content=b" " * (1 << 20) + b"  ")).startswith("the body is")
    assert count >= 200


def test_a_full_queue_and_a_late_request_and_a_key():
    with serving(api_key="secret", queue=1, timeout=1e-3) as (service, address):
        with httpx.Client(base_url=address, timeout=120) as http:
            assert http.get("/health").status_code == 200
            assert http.get("/v1/models").status_code == 401
            http.headers["Authorization"] = "Bearer secret"
            assert http.get("/v1/models").status_code == 200
            full = http.post("/v1/completions", json={"prompt": ["a", "b"]})
            assert full.status_code == 503 and int(full.headers["Retry-After"]) > 0
            late = http.post("/v1/completions", json={"prompt": "a"})
            assert late.status_code == 504 and "more than its 0.001 seconds" in late.text
        assert service.engine.n_waiting == 0


@pytest.mark.slow
def test_sixty_four_clients_get_their_own_answers(server, model):
    _, address = server
    questions = [f"Anna had {n % 9 + 1} apples. She ate {n % 4}." for n in range(64)]
    lengths = [8, 16, 32]
    found = {}

    def one(place):
        with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=5) as client:
            prompt, length = questions[place], lengths[place % 3]
            answer = client.completions.create(
                model="tiny", prompt=prompt, seed=place, max_tokens=length, temperature=0.8
            )
            found[place] = answer.choices[0].text

    threads = [threading.Thread(target=one, args=(place,)) for place in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for place, text in found.items():
        config = SAMPLER.replace(temperature=0.8, gen_length=lengths[place % 3])
        prompt = model.tokenizer.encode(questions[place], add_special_tokens=True)
        assert lj.generate(model, [prompt], config, seed=place).text == [text]
    assert len(found) == 64
