"""A model of this package as an `LM` of lm-evaluation-harness (the extra `eval`).

    lm = LmEvalModel(model, SamplerConfig.from_flat(...))
    lm_eval.simple_evaluate(lm, tasks=["boolq"], task_manager=TaskManager(include_path=folder))

Likelihoods are exact for autoregressive models and LLaDA's bound for others
(`llada_jax.evaluation.likelihood`), and do not depend on the sampler; generated texts come from the
sampler. torch is neither needed nor imported.
"""

import hashlib
import json
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat, takewhile
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from llada_jax.api.decoding import generate_stream
from llada_jax.api.model import Model
from llada_jax.config import require
from llada_jax.evaluation.environment import environment
from llada_jax.evaluation.generations import (
    ALONE,
    Generation,
    GenerationBatch,
    GenerationStore,
    Worker,
)
from llada_jax.evaluation.likelihood import Pair, estimated_likelihoods, greedy_answers
from llada_jax.evaluation.task import Item
from llada_jax.sampler.config import SamplerConfig
from llada_jax.text import TOKENIZER_SOURCES

try:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
except ImportError as error:
    raise ImportError(
        f"lm-evaluation-harness is not installed ({error}); install the extra: "
        "pip install 'llada_jax[eval]'"
    ) from error

_REQUEST_SETTINGS = ("until", "max_gen_toks", "do_sample", "temperature")


@dataclass
class StoredAnswers:
    """A folder with one store for texts and one for likelihoods, kept between runs.

    The harness builds prompts and computes metrics in one process and cannot split its requests.
    So each worker lets the harness make all requests, answers its batches and returns a placeholder
    for the others; the last worker finds all answers in the store and gets the real metrics.
    """

    folder: Path
    settings: Mapping[str, Any]
    """Everything that the answers depend on except the requests, as plain JSON."""
    batch_size: int
    """Requests whose answers are stored together."""
    worker: Worker = ALONE
    answered: int = 0
    """Number of requests answered by this worker, as opposed to read from the store."""

    def to(
        self,
        kind: str,
        requests: Sequence[Any],
        answer: Callable[[Sequence[int]], Sequence[Any]],
        placeholder: Any,
    ) -> list[Any]:
        """Calls `answer` with the indices of requests that are this worker's and not in the store.

        Returns all answers that exist by then, and `placeholder` for others; metrics over
        placeholders are meaningless. Raises ValueError if the store has other settings or requests.
        """
        texts = [[str(part) for part in request.args] for request in requests]
        digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
        settings = {**self.settings, "requests": digest}
        store = GenerationStore.begin(self.folder / kind, settings)
        if not self.worker.is_alone:
            store = store.shared(self.batch_size)
        answers = {g.index: json.loads(g.text) for g in store.generations()}
        # Longest first, because prompts of similar length should share a batch.
        order = sorted(range(len(texts)), key=lambda index: -len("".join(texts[index])))
        for first in range(0, len(order), self.batch_size):
            batch = order[first : first + self.batch_size]
            missing = sorted(index for index in batch if index not in answers)
            if not missing or not self.worker.takes(first // self.batch_size):
                continue
            began = time.perf_counter()
            new = dict(zip(missing, answer(missing), strict=True))
            generations = []
            for index in missing:
                context, *others = texts[index]
                name = f"{requests[index].task_name} {requests[index].doc_id}"
                item = Item(context, "".join(others), name)
                generations.append(Generation(index, item, json.dumps(new[index]), [], 0, 0))
            seconds = time.perf_counter() - began
            store.add(GenerationBatch(generations, seconds, False, environment()))
            answers |= new
            self.answered += len(missing)
        return [answers.get(index, placeholder) for index in range(len(texts))]


class _Request(NamedTuple):
    """A generation request: encoded prompt, stop strings and maximum number of tokens."""

    prompt: list[int]
    until: tuple[str, ...]
    max_tokens: int


class LmEvalModel(LM):
    """Answers the harness's requests with a model of this package.

    Args:
      sampler: How texts are decoded. Its `gen_length` is the canvas, whatever a task requests; a
        task's `max_gen_toks` only truncates the text.
      backend: Where texts are decoded, as in `llada_jax.generate`.
      mc_num: Forward passes for each likelihood; see `estimated_likelihoods`.
      batch_size: Prompts decoded together, and canvases in a forward pass for likelihoods.
      seed: Seed of the mask patterns, and of sampling (`seeds`).
      progress: Show progress bars.
      kept: Store of answers; answers in it are not computed again.

    Attributes:
      standard_errors: Monte Carlo standard errors of the likelihoods in nats, in the order of the
        requests, by the name of the task and the id of the item.

    Raises ValueError that names the problem with the model or, before computing, with a request.
    """

    def __init__(
        self,
        model: Model,
        sampler: SamplerConfig,
        *,
        backend: str = "xla",
        mc_num: int = 128,
        batch_size: int = 16,
        seed: int = 0,
        progress: bool = True,
        kept: StoredAnswers | None = None,
    ) -> None:
        super().__init__()
        if model.tokenizer is None:
            raise ValueError(f"the model has no tokenizer; allowed: one with {TOKENIZER_SOURCES}")
        require(mc_num >= 1, f"mc_num is {mc_num}; allowed: 1 or more")
        require(batch_size >= 1, f"batch_size is {batch_size}; allowed: 1 or more")
        self._model, self._tokenizer = model, model.tokenizer
        self._sampler, self._backend = sampler, backend
        self._mc_num, self._batch_size, self._seed = mc_num, batch_size, seed
        self._progress, self._kept = progress, kept
        self.standard_errors: dict[tuple[str | None, int | None], list[float]] = defaultdict(list)
        encoded = self._tokenizer.encode("", add_special_tokens=True)
        self._opening = encoded[:1] if encoded[:1] == [self._tokenizer.bos_id] else []

    @property
    def tokenizer_name(self) -> str:
        """Identifies the chat template in the harness's caches of prompts."""
        template = self._tokenizer.chat_template or ""
        return f"llada_jax-{hashlib.sha256(template.encode()).hexdigest()[:16]}"

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Returns the tokenizer's only template, which the harness records."""
        return (self._tokenizer.chat_template or "") if chat_template else ""

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        return self._tokenizer.apply_chat_template(chat_history, add_generation_prompt)

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Returns pairs of log p(continuation | context) or its bound, and whether greedy decoding
        after the context gives the continuation (`greedy_answers`)."""
        return self._likelihoods("likelihoods", requests, greedy_answers)

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Returns log p(text) or its bound, after BOS if there is one. Raises ValueError for a text
        that does not fit into the model: likelihoods of its parts would be of another text."""
        return [value for value, _ in self._likelihoods("rolling", requests)]

    def _likelihoods(
        self,
        kind: str,
        requests: Sequence[Instance],
        is_greedy: Callable[..., Iterable[bool]] | None = None,
    ) -> list[tuple[float, bool]]:
        """Returns likelihoods and whether `is_greedy`, and notes the standard errors."""

        def scores(indices: Sequence[int]) -> list[tuple[float, bool, float]]:
            pairs = [self._pair(*("", *requests[index].args)[-2:]) for index in indices]
            model = self._model.params, self._model.config, pairs
            estimates = estimated_likelihoods(
                *model,
                mc_num=self._mc_num,
                batch_size=self._batch_size,
                seed=self._seed,
                progress=self._progress,
            )
            greedy = is_greedy(*model, batch_size=self._batch_size) if is_greedy else repeat(False)
            columns = zip(estimates.value, greedy, estimates.error, strict=False)
            return [(float(value), bool(same), float(error)) for value, same, error in columns]

        if self._kept is None:
            answers = scores(range(len(requests)))
        else:
            answers = self._kept.to(f"{kind}_with_errors", requests, scores, (0.0, False, 0.0))
        for request, (_, _, error) in zip(requests, answers, strict=True):
            self.standard_errors[request.task_name, request.doc_id].append(error)
        return [(value, same) for value, same, _ in answers]

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Returns the sampler's text after each context, up to the first stop string."""
        seeds = self.seeds(requests)

        def texts(indices: Sequence[int]) -> list[str]:
            return self._texts([requests[i] for i in indices], [seeds[i] for i in indices])

        if self._kept is None:
            return texts(range(len(requests)))
        return self._kept.to("texts", requests, texts, "")

    def seeds(self, requests: Sequence[Instance]) -> list[int]:
        """Returns a sampling seed for each request, from its task, its item and the number of
        earlier requests for that item: it does not depend on the other requests."""
        repeats: Counter[str] = Counter()
        seeds = []
        for request in requests:
            name = f"{request.task_name} {request.doc_id}"
            seeds.append((self._seed + zlib.crc32(f"{name} {repeats[name]}".encode())) % 2**31)
            repeats[name] += 1
        return seeds

    def _texts(self, requests: Sequence[Instance], seeds: Sequence[int]) -> list[str]:
        encoded = [self._request(*request.args) for request in requests]
        texts = [""] * len(encoded)
        with tqdm(desc="texts", total=len(encoded), disable=not self._progress) as bar:
            for until in dict.fromkeys(request.until for request in encoded):  # a sampler for each
                indices = [i for i, request in enumerate(encoded) if request.until == until]
                stream = generate_stream(
                    self._model,
                    [encoded[i].prompt for i in indices],
                    self._sampler.replace(stop=until),
                    places=self._batch_size,
                    backend=self._backend,
                    seed=[seeds[i] for i in indices],
                )
                for i, result in zip(indices, stream, strict=True):
                    texts[i] = self._text(result.answers[0], encoded[i])
                    self.cache_hook.add_partial("generate_until", requests[i].args, texts[i])
                    bar.update()
        return texts

    def _encode(self, text: str) -> list[int]:
        """Encodes a text with the tokenizer's BOS in front, unless the text begins with it."""
        spelled = self._tokenizer.special_tokens.get("bos_token")
        opening = [] if spelled and text.startswith(spelled) else self._opening
        return opening + self._tokenizer.encode(text)

    def _pair(self, context: str, continuation: str) -> Pair:
        """Returns the ids of both, split where the ids of the joined text allow it; spaces between
        them go to the continuation."""
        if not context:
            bos = self._tokenizer.bos_id
            return [] if bos is None else [bos], self._tokenizer.encode(continuation)
        stripped = context.rstrip(" ")
        continuation, context = context[len(stripped) :] + continuation, stripped
        prompt, whole = self._encode(context), self._encode(context + continuation)
        is_prefix = whole[: len(prompt)] == prompt
        answer = whole[len(prompt) :] if is_prefix else self._tokenizer.encode(continuation)
        return prompt, answer

    def _request(self, context: str, settings: dict[str, Any]) -> _Request:
        unknown = next((name for name in settings if name not in _REQUEST_SETTINGS), None)
        require(
            unknown is None,
            f"a task's generation_kwargs have {unknown!r}; allowed: {', '.join(_REQUEST_SETTINGS)} "
            "(the sampler has the others)",
        )
        temperature = settings.get("temperature", 1.0) if settings.get("do_sample") else None
        require(
            temperature in (None, self._sampler.temperature),
            f"a task samples at temperature {temperature}; allowed: the sampler's "
            f"({self._sampler.temperature})",
        )
        until = settings.get("until") or []
        return _Request(
            self._encode(context),
            (until,) if isinstance(until, str) else tuple(until),
            int(settings.get("max_gen_toks", self._sampler.gen_length)),
        )

    def _text(self, answer: Iterable[int], request: _Request) -> str:
        """Decodes an answer up to the first stop string, which may be one special token."""
        stops = {self._tokenizer.backend.token_to_id(stop) for stop in request.until}
        kept = takewhile(lambda token: token not in stops, islice(answer, request.max_tokens))
        text = self._tokenizer.decode(list(map(int, kept)))
        cuts = [text.find(stop) for stop in request.until if stop in text]
        return text[: min(cuts, default=len(text))]
