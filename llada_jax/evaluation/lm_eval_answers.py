"""What the harness asks, answered through a store that workers fill and that outlives a run.

lm-evaluation-harness keeps prompts, filters and metrics, in one process: each worker has it ask
everything, answers its own batches of that, and leaves the rest; the last one answers what lacks
and reads the others' answers.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from llada_jax.config import require
from llada_jax.evaluation.environment import environment
from llada_jax.evaluation.generations import Generation, GenerationBatch, GenerationStore
from llada_jax.evaluation.lm_eval_model import LmEvalModel
from llada_jax.evaluation.task import Item
from llada_jax.evaluation.worker import ALONE, Worker

Answer = Callable[[Sequence[int]], Sequence[Any]]
"""Answers the requests at some places."""


class StoredAnswers(LM):
    """A model of the harness whose answers are kept in a folder.

    Args:
      folder: a store for texts and one for likelihoods.
      settings: everything that the answers depend on beside the requests, as plain JSON.
      batch_size: requests whose answers are stored together.
      worker: which batches are answered; to other requests that have no answer, an empty text and
        a likelihood of 1 stand in, and no metric of theirs means anything.

    Raises ValueError, when it is asked, for a folder of other settings or other requests.
    """

    def __init__(
        self,
        model: LmEvalModel,
        folder: Path,
        settings: Mapping[str, Any],
        batch_size: int,
        worker: Worker = ALONE,
    ) -> None:
        super().__init__()
        self.answered = 0
        self._model, self._folder, self._settings = model, folder, settings
        self._batch_size, self._worker = batch_size, worker

    @property
    def tokenizer_name(self) -> str:
        return self._model.tokenizer_name

    def chat_template(self, chat_template: bool | str = False) -> str:
        return self._model.chat_template(chat_template)

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        return self._model.apply_chat_template(chat_history, add_generation_prompt)

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Returns texts, as the model's `generate_until`."""
        seeds = self._model.seeds(requests)

        def texts(places: Sequence[int]) -> list[str]:
            asked = [requests[place] for place in places]
            return self._model.texts(asked, [seeds[place] for place in places])

        return self._stored("texts", requests, texts, "")

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Returns bounds of likelihoods, as the model's `loglikelihood`."""

        def likelihoods(places: Sequence[int]) -> list[tuple[float, bool]]:
            return self._model.loglikelihood([requests[place] for place in places])

        return list(map(tuple, self._stored("likelihoods", requests, likelihoods, (0.0, False))))

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        return self._model.loglikelihood_rolling(requests)

    def _stored(
        self, kind: str, requests: Sequence[Instance], answer: Answer, lacking: Any
    ) -> list[Any]:
        """Answers this worker's batches that the store lacks; returns what is there."""
        texts = [[str(part) for part in request.args] for request in requests]
        digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
        settings = {**self._settings, "requests": digest}
        store = GenerationStore.begin(self._folder / kind, settings)
        if not self._worker.is_alone:
            store = store.shared(self._batch_size)
        found = {each.index: json.loads(each.text) for each in store.generations()}
        require(len(found.keys() - range(len(texts))) == 0, f"{store} has answers to more requests")
        # The longest first: prompts of like length share a batch.
        order = sorted(range(len(texts)), key=lambda place: -len("".join(texts[place])))
        for first in range(0, len(order), self._batch_size):
            places = [i for i in order[first : first + self._batch_size] if i not in found]
            if places and self._worker.takes(first // self._batch_size):
                began = time.perf_counter()
                answers = answer(places)
                pairs = sorted(zip(places, answers, strict=True))
                stored = [_generation(i, requests[i], texts[i], each) for i, each in pairs]
                seconds = time.perf_counter() - began
                store.add(GenerationBatch(stored, seconds, False, environment()))
                found |= pairs
                self.answered += len(places)
        return [found.get(place, lacking) for place in range(len(texts))]


def _generation(place: int, request: Instance, texts: Sequence[str], answer: Any) -> Generation:
    item = Item(texts[0], "".join(texts[1:]), f"{request.task_name} {request.doc_id}")
    return Generation(place, item, json.dumps(answer, ensure_ascii=False), [], 0, 0)
