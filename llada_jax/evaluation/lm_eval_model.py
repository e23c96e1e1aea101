"""A model of this package as an `LM` of lm-evaluation-harness (the extra `eval`).

    lm = LmEvalModel(model, SamplerConfig.from_flat(...))
    lm_eval.simple_evaluate(lm, tasks=["boolq"], task_manager=TaskManager(include_path=folder))

Likelihoods are LLaDA's bound (`llada_jax.evaluation.likelihood`), which no sampler changes; texts
come from the sampler. No torch is needed or imported.
"""

import hashlib
import json
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from llada_jax.api.decoding import generate_stream
from llada_jax.api.loading import Model
from llada_jax.config import require
from llada_jax.evaluation.environment import environment
from llada_jax.evaluation.generations import (
    ALONE,
    Generation,
    GenerationBatch,
    GenerationStore,
    Worker,
)
from llada_jax.evaluation.likelihood import Pair, log_likelihoods
from llada_jax.evaluation.task import Item
from llada_jax.sampler.config import SamplerConfig

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
    """A folder with a store for texts and one for likelihoods, which outlives a run.

    The harness keeps prompts, filters and metrics, in one process: each worker has it ask
    everything, answers its own batches of that, and leaves the rest; the last one answers what
    lacks and reads the others' answers.
    """

    folder: Path
    settings: Mapping[str, Any]
    """Everything that the answers depend on beside the requests, as plain JSON."""
    batch_size: int
    """Requests whose answers are stored together."""
    worker: Worker = ALONE
    answered: int = 0
    """Requests that were answered here, and not read."""

    def to(
        self,
        kind: str,
        requests: Sequence[Any],
        answer: Callable[[Sequence[int]], Sequence[Any]],
        lacking: Any,
    ) -> list[Any]:
        """Has this worker's batches that the store lacks answered, by the places of their requests.

        Returns all answers that are there by now; `lacking` stands in for others', of which no
        metric means anything. Raises ValueError for a store of other settings or other requests.
        """
        texts = [[str(part) for part in request.args] for request in requests]
        digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
        settings = {**self.settings, "requests": digest}
        store = GenerationStore.begin(self.folder / kind, settings)
        if not self.worker.is_alone:
            store = store.shared(self.batch_size)
        found = {each.index: json.loads(each.text) for each in store.generations()}
        # The longest first: prompts of like length share a batch.
        order = sorted(range(len(texts)), key=lambda place: -len("".join(texts[place])))
        for first in range(0, len(order), self.batch_size):
            batch = order[first : first + self.batch_size]
            places = sorted(place for place in batch if place not in found)
            if not places or not self.worker.takes(first // self.batch_size):
                continue
            began = time.perf_counter()
            answers = dict(zip(places, answer(places), strict=True))
            stored = []
            for place in places:
                context, *others = texts[place]
                whose = f"{requests[place].task_name} {requests[place].doc_id}"
                item = Item(context, "".join(others), whose)
                stored.append(Generation(place, item, json.dumps(answers[place]), [], 0, 0))
            seconds = time.perf_counter() - began
            store.add(GenerationBatch(stored, seconds, False, environment()))
            found |= answers
            self.answered += len(places)
        return [found.get(place, lacking) for place in range(len(texts))]


class _Request(NamedTuple):
    """What a task wants to be generated."""

    prompt: list[int]
    until: tuple[str, ...]
    max_tokens: int


class LmEvalModel(LM):
    """What the harness asks, answered by a masked-diffusion model.

    Args:
      sampler: how texts are decoded. Its `gen_length` is the canvas, whatever a task asks for;
        a task's `max_gen_toks` only cuts what was written.
      backend: where texts are decoded, as in `llada_jax.generate`.
      mc_num: forwards for each likelihood; see `log_likelihoods`.
      batch_size: prompts that are decoded together, and canvases of a forward of likelihoods.
      seed: of the mask patterns, and of sampling (`seeds`).
      progress: show progress bars.
      kept: where answers are stored, and read where they are there.

    Raises ValueError that names what is wrong with the model or, before it computes, a request.
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
            raise ValueError("the model has no tokenizer.json; allowed: one that has")
        require(mc_num >= 1, f"mc_num is {mc_num}; allowed: 1 or more")
        require(batch_size >= 1, f"batch_size is {batch_size}; allowed: 1 or more")
        self._model, self._tokenizer = model, model.tokenizer
        self._sampler, self._backend = sampler, backend
        self._mc_num, self._batch_size, self._seed = mc_num, batch_size, seed
        self._progress, self._kept = progress, kept
        encoded = self._tokenizer.encode("", add_special_tokens=True)
        self._opening = encoded[:1] if encoded[:1] == [self._tokenizer.bos_id] else []

    @property
    def tokenizer_name(self) -> str:
        """Returns a name of the chat template, for the harness's caches of prompts."""
        template = self._tokenizer.chat_template or ""
        return f"llada_jax-{hashlib.sha256(template.encode()).hexdigest()[:16]}"

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Returns the tokenizer's template, of which there is one, as the harness records it."""
        return (self._tokenizer.chat_template or "") if chat_template else ""

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        return self._tokenizer.apply_chat_template(chat_history, add_generation_prompt)

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Returns the bound of log p(continuation | context) of each; and False, since whether
        greedy decoding gives the continuation is not found out."""

        def bounds(places: Sequence[int]) -> list[float]:
            values = log_likelihoods(
                self._model.params,
                self._model.config,
                [self._pair(*requests[place].args) for place in places],
                mc_num=self._mc_num,
                batch_size=self._batch_size,
                seed=self._seed,
                progress=self._progress,
            )
            return list(map(float, values))

        everything = range(len(requests))
        kept = self._kept and self._kept.to("likelihoods", requests, bounds, 0.0)
        return [(value, False) for value in (bounds(everything) if kept is None else kept)]

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise NotImplementedError("likelihoods of texts longer than the model are not computed")

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Returns what the sampler writes after each context, up to the first stop string."""
        seeds = self.seeds(requests)

        def texts(places: Sequence[int]) -> list[str]:
            return self._texts([requests[i] for i in places], [seeds[i] for i in places])

        if self._kept is None:
            return texts(range(len(requests)))
        return self._kept.to("texts", requests, texts, "")

    def seeds(self, requests: Sequence[Instance]) -> list[int]:
        """Returns the seed of each request's sampling: by its task, its item and how often that was
        asked before, whatever else is asked."""
        before: Counter[str] = Counter()
        found = []
        for request in requests:
            name = f"{request.task_name} {request.doc_id}"
            found.append((self._seed + zlib.crc32(f"{name} {before[name]}".encode())) % 2**31)
            before[name] += 1
        return found

    def _texts(self, requests: Sequence[Instance], seeds: Sequence[int]) -> list[str]:
        asked = [self._request(*request.args) for request in requests]
        texts = [""] * len(asked)
        with tqdm(desc="texts", total=len(asked), disable=not self._progress) as bar:
            for until in dict.fromkeys(each.until for each in asked):  # a sampler for each
                places = [place for place, each in enumerate(asked) if each.until == until]
                stream = generate_stream(
                    self._model,
                    [asked[place].prompt for place in places],
                    self._sampler.replace(stop=until),
                    places=self._batch_size,
                    backend=self._backend,
                    seed=[seeds[place] for place in places],
                )
                for place, found in zip(places, stream, strict=True):
                    texts[place] = self._text(found.answers[0], asked[place])
                    arguments = requests[place].args
                    self.cache_hook.add_partial("generate_until", arguments, texts[place])
                    bar.update()
        return texts

    def _encode(self, text: str) -> list[int]:
        """Encodes with the BOS that the tokenizer puts before a text which does not spell it."""
        spelled = self._tokenizer.special_tokens.get("bos_token")
        opening = [] if spelled and text.startswith(spelled) else self._opening
        return opening + self._tokenizer.encode(text)

    def _pair(self, context: str, continuation: str) -> Pair:
        """Returns ids of both, cut where those of the whole text allow; spaces go to the right."""
        if not context:
            bos = self._tokenizer.bos_id
            return [] if bos is None else [bos], self._tokenizer.encode(continuation)
        stripped = context.rstrip(" ")
        continuation, context = context[len(stripped) :] + continuation, stripped
        prompt, whole = self._encode(context), self._encode(context + continuation)
        joined = whole[: len(prompt)] == prompt
        return prompt, whole[len(prompt) :] if joined else self._tokenizer.encode(continuation)

    def _request(self, context: str, settings: dict[str, Any]) -> _Request:
        unknown = next((name for name in settings if name not in _REQUEST_SETTINGS), None)
        allowed = f"{', '.join(_REQUEST_SETTINGS)} (the sampler has the others)"
        told = f"a task's generation_kwargs have {unknown!r}; allowed: {allowed}"
        require(unknown is None, told)
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

    def _text(self, answer: Iterable[int], asked: _Request) -> str:
        """Returns what comes before the first stop string, given as a token or as text."""
        stops = {self._tokenizer.backend.token_to_id(stop) for stop in asked.until}
        kept = takewhile(lambda token: token not in stops, islice(answer, asked.max_tokens))
        text = self._tokenizer.decode(list(map(int, kept)))
        cuts = [text.find(stop) for stop in asked.until if stop in text]
        return text[: min(cuts, default=len(text))]
