"""What routing is like, recorded or drawn, beside what is published of other models'."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from experiments.harness.results import ResultRow
from llada_jax.experts.routing import (
    RoutingTrace,
    experts_per_step,
    gate_accuracy,
    imbalance,
    row_reuse,
    step_similarity,
)

PUBLISHED = {
    "similarity_1": (0.985, "TIDE, arXiv 2605.20179: LLaDA2"),
    "similarity_5": (0.95, "TIDE, arXiv 2605.20179: LLaDA2, above"),
    "gate/1": (0.78, "FATE on DeepSeek-V2-Lite, as arXiv 2511.10676 has it"),
}


def statistics_of(trace: RoutingTrace, name: str) -> Iterator[ResultRow]:
    """Yields reuse, gates' accuracy by layers ahead, and skew, beside what is published."""
    reuse, keeps = row_reuse(trace), ~trace.changed[1:]
    mean = partial(np.nanmean, dtype=float)
    values = {
        "experts_per_step": (experts_per_step(trace), f"of {trace.n_experts} experts"),
        "similarity_1": (step_similarity(trace), "cosine"),
        "similarity_5": (step_similarity(trace, lag=5), "cosine"),
        "imbalance": (imbalance(trace).mean(), "x the mean load"),
        "reuse/token_stays": (mean(reuse[keeps]), "of a row's experts"),
        "reuse/token_changes": (mean(reuse[~keeps]), "of a row's experts"),
    }
    for ahead, share in enumerate(gate_accuracy(trace), 1):
        values[f"gate/{ahead}"] = (share, "of a row's experts")
    drawn = trace.settings.get("source", "").startswith("synthetic")
    kind = "modelled" if drawn else "measured"
    row = partial(ResultRow, kind=kind, fingerprint=trace.settings.get("fingerprint"))
    for what, (value, unit) in values.items():
        reference, source = PUBLISHED.get(what, (None, None))
        yield row(f"{name}/{what}", value, unit, reference=reference, source=source)
