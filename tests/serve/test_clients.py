"""`llada serve` as other programs meet it: lm-evaluation-harness, an export, a server that dies."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

import llada_jax as lj

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("openai", reason="needs OpenAI's client")

import httpx
import openai

from llada_jax.checkpoint import model_path
from llada_jax.config import ExportConfig
from tests.serve.test_server import CHAT, SAMPLER, serving

pytestmark = pytest.mark.slow
PATIENCE = 600  # seconds: programs are compiled


def test_lm_eval_chats_with_the_server(tmp_path, monkeypatch):
    """Its answers, and so its score, are those of `lj.generate`."""
    pytest.importorskip("lm_eval", reason="needs the extra eval")
    pytest.importorskip("tenacity", reason="lm_eval's client needs it")
    import lm_eval
    from lm_eval.tasks import TaskManager

    model = lj.load("tiny")
    questions = ["2+2=", "Is 7 odd?", "Anna had 4 apples."]
    chats = [[{"role": "user", "content": question}] for question in questions]
    sampler = SAMPLER.replace(stop=("\n\n",))
    answers = lj.generate(model, [model.tokenizer.encode_chat(chat) for chat in chats], sampler)
    lines = [
        {"question": question, "answer": answer}
        for question, answer in zip(questions, answers.text, strict=True)
    ]
    lines[2]["answer"] += "?"  # one of them is wrong
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = {
        "task": "asked", "dataset_path": "json", "output_type": "generate_until",
        "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test",
        "doc_to_text": "{{question}}", "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 16},
        "metric_list": [{"metric": "exact_match"}],
    }  # fmt: skip
    (tmp_path / "asked.yaml").write_text(json.dumps(task))
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    with serving() as (_, address):
        url = f"{address}/v1/chat/completions"
        found = lm_eval.simple_evaluate(
            "local-chat-completions", tasks=["asked"], apply_chat_template=True,
            model_args={"model": "tiny", "base_url": url, "num_concurrent": 1, "max_retries": 1},
            task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
            bootstrap_iters=0,
        )  # fmt: skip
    assert found["results"]["asked"]["exact_match,none"] == pytest.approx(2 / 3)


def test_an_export_is_served(tmp_path):
    pytest.importorskip("ai_edge_litert", reason="needs the extra npu")
    pytest.importorskip("litert_converter", reason="needs the extra npu")
    settings = ExportConfig(quant="float32", rows=(8, 64), caches=(128,))
    lj.export(model_path("tiny"), tmp_path / "export", settings, verify=False)
    with serving(tmp_path / "export", backend="litert") as (service, address):
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        with client:
            ask = {"model": "export", "messages": CHAT, "logprobs": True}
            found = client.chat.completions.create(**ask, top_logprobs=1)
            with pytest.raises(openai.BadRequestError, match="reports the predicted token alone"):
                client.chat.completions.create(**ask, top_logprobs=2)
            stream = client.chat.completions.create(model="export", messages=CHAT, stream=True)
            pieces = [chunk.choices[0].delta.content for chunk in stream]
        prompt = service.model.tokenizer.encode_chat(CHAT)
        expected = lj.generate(service.model, [prompt], SAMPLER, backend="litert").text[0]
    assert found.choices[0].message.content == "".join(pieces) == expected
    for token in found.choices[0].logprobs.content:
        assert [best.token for best in token.top_logprobs] == [token.token]


def test_a_killed_server_gives_errors_and_comes_back():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "llada_jax.cli", "serve", "tiny", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"

    def start():
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=dict(os.environ))
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                httpx.get(f"{url}/health").raise_for_status()
                return process
            except httpx.HTTPError:
                assert process.poll() is None
                time.sleep(0.2)
        raise AssertionError("the server did not start")

    def ask(outcomes, stream):
        body = {"prompt": "2+2=", "max_tokens": 64, "stream": stream}
        try:
            with httpx.stream(
                "POST", f"{url}/v1/completions", json=body, timeout=PATIENCE
            ) as answer:
                outcomes.append((answer.status_code, answer.read()))
        except httpx.HTTPError as error:
            outcomes.append(error)

    process, outcomes = start(), []
    try:
        clients = [threading.Thread(target=ask, args=(outcomes, i % 2 == 1)) for i in range(8)]
        for client in clients:
            client.start()
        time.sleep(1)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for client in clients:
            client.join(timeout=60)
        assert len(outcomes) == 8, "a client hangs"
        assert any(isinstance(outcome, httpx.HTTPError) for outcome in outcomes)
        process = start()
        again = []
        ask(again, False)
        assert again[0][0] == 200
    finally:
        process.terminate()
        process.wait(timeout=60)
