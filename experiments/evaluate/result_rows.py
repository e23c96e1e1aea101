"""Result rows of graded answers: quality, speed, time on phones, differences between decoders.

Scores and latencies count each different question once; speed counts every item. Times on phones
are modelled from the stored traces, for a model of the shape `SHAPE`.
"""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

import numpy as np

import llada_jax as lj
from experiments.harness.results import ResultRow
from llada_jax.config import require
from llada_jax.evaluation.graded import Evaluation
from llada_jax.evaluation.metrics import PairedComparison
from llada_jax.evaluation.tally import Tally, joined
from llada_jax.evaluation.trajectory import PUBLISHED, UNITS, regime
from llada_jax.model.architecture import architecture
from llada_jax.phones.workload import Workload, from_trace

SHAPE = "llada_8b"
UNCERTAINTY_QUESTIONS = 8  # each parameter of the device model costs a timing of all of them
REGIME = "regime"
"""Part of the names of rows that describe how a model decodes."""


def decoder_rows(
    name: str, parts: Sequence[Evaluation], socs: Sequence[str] = ()
) -> list[ResultRow]:
    """Returns the rows of a decoder over all tasks in `parts`."""
    return [
        *tally_rows(name, joined([part.tally for part in parts])),
        *_regime_rows(f"{name}/{REGIME}", parts),
        *_speed_rows(name, parts),
        *_phone_rows(name, parts, socs),
    ]


def tally_rows(name: str, tally: Tally) -> list[ResultRow]:
    """Returns exact match, strict match and the mean costs of a question, if they are known."""
    counts: dict[str, Any] = {"n": len(tally.right), "items": tally.items}
    exact: Any = {"interval": tally.interval, **counts}
    strict = []
    if tally.strict_match is not None:
        fields: Any = {"interval": tally.strict_interval, **counts}
        strict = [ResultRow(f"{name}/strict_match", tally.strict_match, "of questions", **fields)]
    values = {
        "nfe": (tally.nfe, "forwards"),
        "nfe_per_block": (tally.forwards_per_block, "forwards/block"),
        "row_forwards": (tally.row_forwards, "rows"),
        "tpf": (tally.tpf, "tokens/forward"),
    }
    return [
        ResultRow(f"{name}/exact_match", tally.exact_match, "of questions", **exact),
        *strict,
        *(
            ResultRow(f"{name}/{what}", value, unit, **counts)
            for what, (value, unit) in values.items()
            if value is not None
        ),
    ]


def _regime_rows(name: str, parts: Sequence[Evaluation]) -> Iterator[ResultRow]:
    """Yields statistics of the decoding regime, with LLaDA-8B's published values as references.
    Yields nothing if blocks do not begin at the prompt's end, or if traces are missing."""
    block_causal = any(
        trace.settings["model"]["block_length"]
        for part in parts
        for _, trace in part.store.traces()
    )
    if block_causal or not all(part.rows for part in parts):
        return
    card = regime(trajectory for part in parts for trajectory in part.trajectories())
    for what, value in card._asdict().items():
        reference, source = PUBLISHED.get(what, (None, None))
        if np.isfinite(value):
            yield ResultRow(
                f"{name}/{what}", value, UNITS[what], reference=reference, source=source
            )


def _speed_rows(name: str, parts: Sequence[Evaluation]) -> Iterator[ResultRow]:
    """Yields answer tokens per second, of batches without compilation if there are any."""
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
    """Yields the modelled mean latency of a question on each phone."""
    runs = [run for part in parts for run in workloads(part)] if socs else []
    for soc in socs:
        seconds, interval = mean_latency(runs, soc)
        counts: Any = {"n": len(runs), "items": sum(len(part.right) for part in parts)}
        fields: Any = {"interval": interval, "trace_source": runs[0].source, **counts}
        yield ResultRow(f"{name}/phone/{soc}", seconds, "s", kind="modelled", **fields)


def mean_latency(workloads: Sequence[Workload], soc: str) -> tuple[float, tuple[float, float]]:
    """Returns the mean seconds of workloads on a phone, and a 95 % interval by the uncertainty of
    the device model, which is computed from the first few workloads."""
    phone, canvas = lj.phone(soc), max(workload.canvas for workload in workloads)

    timer = phone.run_timer(SHAPE, canvas)
    seconds = fmean(map(timer.seconds, workloads))
    first = workloads[:UNCERTAINTY_QUESTIONS]
    forwards = tuple(forward for workload in first for forward in workload.forwards)
    relative = timer.uncertain(first[0]._replace(forwards=forwards)).relative
    return seconds, (seconds * max(0.0, 1 - 1.96 * relative), seconds * (1 + 1.96 * relative))


def workloads(evaluation: Evaluation, shape: str = SHAPE) -> list[Workload]:
    """Returns the forwards of each question, for a model of a shape. Raises ValueError if a batch
    has no trace."""
    counted, model = evaluation.counted, architecture(shape)
    runs = [
        from_trace(trace, model, row)
        for batch, trace in evaluation.store.traces()
        for row, generation in enumerate(batch.generations)
        if generation.index in counted
    ]
    require(
        len(runs) == len(counted),
        f"{evaluation.store} has traces of {len(runs)} questions; allowed: of all {len(counted)}",
    )
    return runs


def comparison_rows(baseline: Evaluation, evaluation: Evaluation) -> list[ResultRow]:
    """Returns the difference to a baseline on the same questions, and its p-value."""
    result = evaluation.compared_with(baseline).against
    assert result is not None
    name = f"{evaluation.name}/against/{baseline.settings['sampler_name']}"
    difference, p_value = difference_rows(name, result, len(evaluation.right))
    return [
        difference,
        ResultRow(f"{name}/gained", result.gained, "questions"),
        ResultRow(f"{name}/lost", result.lost, "questions"),
        p_value,
    ]


def difference_rows(name: str, result: PairedComparison, items: int) -> tuple[ResultRow, ResultRow]:
    """Returns a difference of exact match on a number of items, and its p-value."""
    fields: Any = {"n": result.n, "items": items, "interval": result.interval}
    difference = ResultRow(f"{name}/difference", result.difference, "of questions", **fields)
    return difference, ResultRow(f"{name}/p_value", result.p_value, "McNemar, exact, two-sided")
