"""Result rows of graded answers: quality, speed, time on phones, and what differs from others."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import llada_jax as lj
from experiments.harness.results import ResultRow
from llada_jax.config import require
from llada_jax.evaluation.graded import Evaluation
from llada_jax.evaluation.metrics import PairedComparison
from llada_jax.evaluation.tally import Cost, Tally, cost_at_equal_quality, joined, recovered_share
from llada_jax.evaluation.trajectory import PUBLISHED, UNITS, regime
from llada_jax.model.architecture import architecture
from llada_jax.phones.profile import Profile
from llada_jax.phones.uncertainty import with_uncertainty
from llada_jax.phones.workload import Workload, from_trace

SHAPE, DOUBTED = "llada_8b", 8
"""Of modelled latencies: the model's shape, and how many questions tell their doubt."""
REGIME = "regime"
"""In the names of the rows that say how a model decodes."""
EQUAL_ROWS, EQUAL_FORWARDS = "at_equal_quality/row_forwards", "at_equal_quality/nfe"
_COSTS: Mapping[str, Cost] = {EQUAL_ROWS: "rows", EQUAL_FORWARDS: "forwards"}
BROUGHT_BACK = "brought_back"


def decoder_rows(
    name: str, parts: Sequence[Evaluation], socs: Sequence[str] = ()
) -> list[ResultRow]:
    """Gives quality and latency on phones over all questions of all parts; speed over all items."""
    return [
        *tally_rows(name, joined([part.tally for part in parts])),
        *_regime_rows(f"{name}/{REGIME}", parts),
        *_speed_rows(name, parts),
        *_phone_rows(name, parts, socs),
    ]


def tally_rows(name: str, found: Tally) -> list[ResultRow]:
    """Gives exact match, tokens a forward, and of forwards, blocks and rows what is known."""
    counts: dict[str, Any] = {"n": len(found.right), "items": found.items}
    exact: Any = {"interval": found.interval, **counts}
    values = {
        "nfe": (found.nfe, "forwards"),
        "nfe_per_block": (found.forwards_per_block, "forwards/block"),
        "row_forwards": (found.row_forwards, "rows"),
        "tpf": (found.tpf, "tokens/forward"),
    }
    return [
        ResultRow(f"{name}/exact_match", found.exact_match, "of questions", **exact),
        *(
            ResultRow(f"{name}/{what}", value, unit, **counts)
            for what, (value, unit) in values.items()
            if value is not None
        ),
    ]


def _regime_rows(name: str, parts: Sequence[Evaluation]) -> Iterator[ResultRow]:
    """Yields the regime card, beside what LLaDA-8B has; nothing where a model's blocks do not begin
    at the prompt, or a trace was not kept."""
    block_causal = any(
        trace.settings["model"]["block_length"]
        for part in parts
        for _, trace in part.store.traces()
    )
    if block_causal or not all(part.rows for part in parts):
        return
    found = regime(each for part in parts for each in part.trajectories())
    for what, value in found._asdict().items():
        reference, source = PUBLISHED.get(what, (None, None))
        if np.isfinite(value):
            yield ResultRow(
                f"{name}/{what}", value, UNITS[what], reference=reference, source=source
            )


def _speed_rows(name: str, parts: Sequence[Evaluation]) -> Iterator[ResultRow]:
    """Yields answer tokens a second of whole batches, without compilation where there are such."""
    whole = [batch for part in parts for batch in part.timed]
    if not whole:
        return
    warm = [batch for batch in whole if not batch.compiled]
    what = "tokens_per_second" if warm else "tokens_per_second_with_compilation"
    timed = warm or whole
    tokens = sum(generation.length for batch in timed for generation in batch.generations)
    seconds = sum(batch.seconds for batch in timed)
    yield ResultRow(f"{name}/{what}", tokens / seconds, "tokens/s")


def _phone_rows(name: str, parts: Sequence[Evaluation], socs: Sequence[str]) -> Iterator[ResultRow]:
    """Yields the mean latency of a question on each phone, by forwards of LLaDA-8B's shape."""
    runs = [run for part in parts for run in workloads(part)] if socs else []
    for soc in socs:
        seconds, interval = mean_latency(runs, soc)
        counts: Any = {"n": len(runs), "items": sum(len(part.right) for part in parts)}
        told: Any = {"interval": interval, "trace_source": runs[0].source, **counts}
        yield ResultRow(f"{name}/phone/{soc}", seconds, "s", kind="modelled", **told)


def mean_latency(workloads: Sequence[Workload], soc: str) -> tuple[float, tuple[float, float]]:
    """Returns seconds of a workload on a phone, on average, and their 95 % interval, which is the
    device model's own doubt, measured on the first ones."""
    phone, canvas = lj.phone(soc), max(workload.canvas for workload in workloads)

    def mean(profile: Profile, some: Sequence[Workload]) -> float:
        timer = replace(phone, profile=profile).timer(SHAPE, canvas)
        return sum(map(timer.latency, some)) / len(some)

    seconds = mean(phone.profile, workloads)
    doubt = with_uncertainty(phone.profile, lambda moved: mean(moved, workloads[:DOUBTED])).relative
    return seconds, (seconds * max(0.0, 1 - 1.96 * doubt), seconds * (1 + 1.96 * doubt))


def workloads(found: Evaluation, shape: str = SHAPE) -> list[Workload]:
    """Returns the forwards of each question, for a model of a shape. Raises ValueError where a
    batch has no trace."""
    counted, model = found.counted, architecture(shape)
    runs = [
        from_trace(trace, model, row)
        for batch, trace in found.store.traces()
        for row, generation in enumerate(batch.generations)
        if generation.index in counted
    ]
    require(
        len(runs) == len(counted),
        f"{found.store} has traces of {len(runs)} questions; allowed: of all {len(counted)}",
    )
    return runs


def comparison_rows(baseline: Evaluation, found: Evaluation) -> list[ResultRow]:
    """Gives the difference to a baseline on the same questions, and whether it could be chance."""
    result = found.compared_with(baseline).against
    assert result is not None
    name = f"{found.name}/against/{baseline.settings['sampler_name']}"
    difference, p_value = difference_rows(name, result, len(found.right))
    return [
        difference,
        ResultRow(f"{name}/gained", result.gained, "questions"),
        ResultRow(f"{name}/lost", result.lost, "questions"),
        p_value,
    ]


def difference_rows(name: str, result: PairedComparison, items: int) -> tuple[ResultRow, ResultRow]:
    """Gives a difference of exact match, found on so many items, and its p-value."""
    known: Any = {"n": result.n, "items": items, "interval": result.interval}
    difference = ResultRow(f"{name}/difference", result.difference, "of questions", **known)
    return difference, ResultRow(f"{name}/p_value", result.p_value, "McNemar, exact, two-sided")


def equal_quality_rows(
    name: str, found: Tally, curve: Sequence[Tally], baseline: Tally
) -> Iterator[ResultRow]:
    """Yields what a decoder costs in times a threshold of equal quality, and which share it brings
    back of what the curve's first threshold loses against the baseline, if that loses any."""
    told: Any = {"n": len(found.right), "items": found.items}
    for what, cost in _COSTS.items():
        if not all(getattr(each, cost) for each in (found, *curve)):
            continue  # no trace was kept
        value, interval = cost_at_equal_quality(found, curve, cost)
        yield ResultRow(f"{name}/{what}", value, "times", interval=interval, **told)
    if sum(baseline.right) > sum(curve[0].right):
        value, interval = recovered_share(found, curve[0], baseline)
        if np.isfinite(interval).all():
            unit = "of answers lost"
            yield ResultRow(f"{name}/{BROUGHT_BACK}", value, unit, interval=interval, **told)
