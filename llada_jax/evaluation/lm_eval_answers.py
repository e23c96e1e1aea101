"""Answers to the harness's requests in a store, which workers fill and which outlives a run.

lm-evaluation-harness keeps prompts, filters and metrics, in one process: each worker has it ask
everything, answers its own batches of that, and leaves the rest; the last one answers what lacks
and reads the others' answers.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llada_jax.evaluation.environment import environment
from llada_jax.evaluation.generations import Generation, GenerationBatch, GenerationStore
from llada_jax.evaluation.task import Item
from llada_jax.evaluation.worker import ALONE, Worker


@dataclass
class StoredAnswers:
    """A folder with a store for texts and one for likelihoods."""

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
