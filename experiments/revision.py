"""Compares ways to revise with the best single threshold of each task, at equal strict quality.

    python -m experiments.revision
    python -m experiments.revision 'tasks=[{name: yes_no, choice_items: 50, items: 100}]'
    python -m experiments.revision 'thresholds=[0.7,0.8,0.9]' hydra.run.dir=outputs/revision

For each task and way, the threshold is chosen on other items: the cheapest one with at least the
way's strict match there. Both then answer the items of the comparison. A way pays if it computes
fewer rows than a threshold of equal strict match (interpolated between thresholds).

Whether it pays is predicted from the other items, without grades. Each answer is compared with the
sequential one (one token per forward). If a way that commits from threshold t repairs a share r of
the first wrong tokens that t commits, it should leave (1 - r) times the wrong answers of t; it pays
if a threshold that leaves so few costs more rows than the way.

The same command on the same folder (`hydra.run.dir`) continues an interrupted run. The run folder
gets `revision.png` and the answers in addition to the files of every run.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import llada_jax as lj
from experiments.harness.estimates import ratio
from experiments.harness.pictures import GRID, new_figure, require_plots, save
from experiments.harness.questions import tokenizer_of
from experiments.harness.results import ResultRow, share_row
from experiments.harness.run import Run, entry_point
from llada_jax.config import require, require_counts
from llada_jax.evaluation.evaluate import Trial, with_answer_length
from llada_jax.evaluation.graded import Evaluation, compared
from llada_jax.evaluation.risk import predictions_of
from llada_jax.evaluation.tally import Tally, cost_at_equal_quality, joined
from llada_jax.evaluation.task import TaskItems, ValidationItems
from llada_jax.evaluation.tasks import load_task
from llada_jax.sampler.config import SamplerConfig

SEQUENTIAL = "sequential"
CHOICE, TEST = "choice", "test"
UNSURE = 0.9
"""Tokens that are committed below this confidence are the band that revision is for."""


@dataclass(frozen=True, kw_only=True)
class TaskCounts:
    """A task, with the number of items to choose by and the number to compare on."""

    name: str
    choice_items: int
    items: int
    new: bool = False
    """Whether the prediction was made up without this task."""

    def __post_init__(self) -> None:
        _ = load_task(self.name)  # checks the name
        require_counts(self, "choice_items", "items")


@dataclass(frozen=True, kw_only=True)
class Way:
    """A sampler. The verb sets lengths, cache and early stop."""

    name: str
    commits_at: float
    """The threshold, one of those that are compared, at which the way commits tokens."""
    sampler: SamplerConfig


@dataclass(frozen=True, kw_only=True)
class RevisionConfig:
    """Settings of the verb; conf/revision.yaml explains each."""

    model: str
    seed: int
    choice_seed: int
    tasks: tuple[TaskCounts, ...]
    thresholds: tuple[float, ...]
    ways: tuple[Way, ...]

    def __post_init__(self) -> None:
        for name in ("tasks", "ways"):
            require(len(getattr(self, name)) > 0, f"{name} is empty; allowed: one or more")
        thresholds, ascending = self.thresholds, sorted({*self.thresholds})
        require(
            [*thresholds] == ascending and len(ascending) > 1,
            f"thresholds are {thresholds}; allowed: two or more, ascending",
        )
        for way in self.ways:
            require(
                way.commits_at in thresholds,
                f"commits_at of {way.name} is {way.commits_at}; allowed: one of {thresholds}",
            )
        for task in self.tasks:
            _ = self.items(task, CHOICE)  # checks that the seeds differ
            require(
                load_task(task.name).strict is not None, f"task {task.name} has no strict match"
            )

    def items(self, task: TaskCounts, part: str) -> TaskItems:
        one = load_task(task.name)
        if part == TEST:
            return TaskItems(task=one, count=task.items, seed=self.seed)
        return ValidationItems(
            task=one, count=task.choice_items, seed=self.choice_seed, scored_seed=self.seed,
            scored_items=task.items,
        )  # fmt: skip

    @property
    def samplers(self) -> dict[str, SamplerConfig]:
        """All samplers by name, the thresholds first. The quota of one token is sequential."""
        ways = {str(t): SamplerConfig.from_flat({"threshold": t}) for t in self.thresholds}
        ways[SEQUENTIAL] = SamplerConfig()
        ways |= {way.name: way.sampler for way in self.ways}
        return {n: s.replace(cache="blockwise", eos_early_stop=True) for n, s in ways.items()}


def compare(config: RevisionConfig, run: Run) -> None:
    """Decodes all items, chooses, compares and predicts."""
    require_plots("revision.png")
    model = run.of(lj.load(config.model))
    _ = tokenizer_of(model)  # checks that there is one
    run.begin()
    rows, points = [], []
    strict: dict[str, list[Tally]] = {name: [] for name in config.samplers if name != SEQUENTIAL}
    for task in config.tasks:
        parts = {
            (part, name): _evaluated(model, config, task, part, name, run)
            for name in config.samplers
            for part in (CHOICE, TEST)
            if (part, name) != (TEST, SEQUENTIAL)
        }
        for (part, name), evaluation in parts.items():
            tally = _strict(evaluation)
            rows += _counts(f"{task.name}/{part}/{name}", tally)
            if part == TEST:
                strict[name].append(tally)
        for way in config.ways:
            point = Point.of(config, task, way, parts)
            points.append(point)
            rows += run.recorded(point.rows)
    every = {name: joined(tallies) for name, tallies in strict.items()}
    rows += run.recorded(_rows_of_all(config, every))
    rows += run.recorded(_prediction_rows(points))
    save(figure_of(config, every, points), run.folder / "revision.png")
    run.finish(rows)


def _evaluated(
    model: lj.Model, config: RevisionConfig, task: TaskCounts, part: str, name: str, run: Run
) -> Evaluation:
    items = config.items(task, part)
    sampler = with_answer_length(config.samplers[name], items.task)
    trial = Trial(model=model, items=items, sampler_name=name, sampler=sampler)
    return trial.run(trial.store(run.folder / "cells" / task.name / f"{part}-{name}"))


def _counts(name: str, strict: Tally) -> Iterator[ResultRow]:
    yield share_row(f"{name}/strict_match", sum(strict.right), len(strict.right), "of questions")
    yield ResultRow(f"{name}/row_forwards", _mean_rows(strict), "rows")


def _rows_of_all(config: RevisionConfig, strict: Mapping[str, Tally]) -> Iterator[ResultRow]:
    """Yields the results on the questions of all tasks together, and the cost of each way relative
    to one threshold of equal strict match for all of them."""
    curve = [strict[str(threshold)] for threshold in config.thresholds]
    for name, tally in strict.items():
        yield from _counts(f"all/{name}", tally)
    for way in config.ways:
        equal = cost_at_equal_quality(strict[way.name], curve)
        yield ResultRow(f"all/{way.name}/equal_strict/row_forwards", equal.value, "times",
                        interval=equal.interval, n=len(curve[0].right))  # fmt: skip


def _mean_rows(tally: Tally) -> float:
    assert tally.row_forwards is not None, "traces are stored"
    return tally.row_forwards


def _strict(evaluation: Evaluation) -> Tally:
    """Returns the counts with strict match in the place of exact match."""
    return evaluation.tally._replace(right=evaluation.tally.strict)


class Point(NamedTuple):
    """A way on a task: its cost relative to a threshold of equal strict match, and the prediction
    of it."""

    task: TaskCounts
    way: str
    measured: float
    interval: tuple[float, float]
    predicted: float
    rows: list[ResultRow]

    @classmethod
    def of(
        cls, config: RevisionConfig, task: TaskCounts, way: Way,
        parts: Mapping[tuple[str, str], Evaluation],
    ) -> "Point":  # fmt: skip
        curve, name = [*map(str, config.thresholds)], f"{task.name}/{way.name}"
        choice = {n: _strict(parts[CHOICE, n]) for n in (*curve, way.name)}
        best = max(choice[n].exact_match for n in curve)
        wanted = min(best, choice[way.name].exact_match)
        enough = [n for n in curve if choice[n].exact_match >= wanted]
        baseline = min(enough, key=lambda n: _mean_rows(choice[n]))
        ours, theirs = parts[TEST, way.name], parts[TEST, baseline]
        paired, costs = (
            compared([ours], [theirs], strict=True),
            ratio(ours.tally.rows, theirs.tally.rows),
        )
        times: Any = {"unit": "times", "n": paired.n}
        equal = cost_at_equal_quality(_strict(ours), [_strict(parts[TEST, one]) for one in curve])
        law = predicted(way, curve, parts)
        rows = [
            ResultRow(f"{name}/baseline", float(baseline), "threshold"),
            ResultRow(f"{name}/against/row_forwards", costs.value, interval=costs.interval,
                      **times),
            ResultRow(f"{name}/against/strict_match", paired.difference, "of questions",
                      n=paired.n, interval=paired.interval),
            ResultRow(f"{name}/equal_strict/row_forwards", equal.value, interval=equal.interval,
                      **times),
            *law.rows(name),
        ]  # fmt: skip
        return cls(task, way.name, equal.value, equal.interval, law.ratio, rows)


class Law(NamedTuple):
    """What the choice's items tell about a way, by comparison with sequential answers."""

    unsure: int  # tokens that were committed below `UNSURE`, with a right context
    unsure_wrong: int  # of these
    first_wrong: int  # wrong tokens of the first forward that commits one
    repaired: int  # of these
    ratio: float
    """Predicted cost, relative to a threshold that leaves as many wrong answers."""

    def rows(self, name: str) -> Iterator[ResultRow]:
        if self.unsure:
            yield share_row(f"{name}/unsure_wrong", self.unsure_wrong, self.unsure, "of tokens")
        if self.first_wrong:
            yield share_row(f"{name}/repaired", self.repaired, self.first_wrong, "of wrong tokens")
        yield ResultRow(f"{name}/predicted/row_forwards", self.ratio, "times")


def predicted(way: Way, curve: Sequence[str], parts: Mapping[tuple[str, str], Evaluation]) -> Law:
    """Predicts a way's cost relative to a threshold of equal quality from the choice's items."""
    choice = {name: parts[CHOICE, name] for name in (*curve, way.name, SEQUENTIAL)}
    answers = {name: evaluation.answers for name, evaluation in choice.items()}
    sequential, final, low = answers[SEQUENTIAL], answers[way.name], str(way.commits_at)
    unsure, unsure_wrong, repairs = 0, 0, []
    for batch, trace in choice[low].store.traces():
        for row, generation in enumerate(batch.generations):
            if generation.index not in sequential:
                continue  # the folder has answers of a run with more items
            right, revised = sequential[generation.index], final[generation.index]
            found = predictions_of(trace, row, np.array(right))
            band = found.confidence < UNSURE
            unsure, unsure_wrong = unsure + band.sum(), unsure_wrong + (band & found.wrong).sum()
            at = found.position[found.wrong].tolist()
            repairs += [revised[place : place + 1] == right[place : place + 1] for place in at]
    wrong = [np.mean([answers[name][i] != sequential[i] for i in sequential]) for name in curve]
    costs = [_mean_rows(choice[name].tally) for name in curve]
    left = wrong[curve.index(low)] * (1 - np.mean(repairs or [0]))
    cost = _mean_rows(choice[way.name].tally) / cost_of_wrong_share(left, wrong, costs)
    return Law(int(unsure), int(unsure_wrong), len(repairs), sum(repairs), cost)


def cost_of_wrong_share(share: float, wrong: Sequence[float], costs: Sequence[float]) -> float:
    """Returns the cost at a share of wrong answers, linear between points of a curve from cheap to
    expensive. A point that leaves no fewer wrong answers than a cheaper one is left out."""
    best_before = np.minimum.accumulate([np.inf, *wrong[:-1]])
    better = np.asarray(wrong) < best_before
    return float(np.interp(share, np.array(wrong)[better][::-1], np.array(costs)[better][::-1]))


def _prediction_rows(points: Sequence[Point]) -> Iterator[ResultRow]:
    """Yields how well the prediction tells whether and how much a way pays, on the tasks that it
    was made up on and on new ones. There, guesses are compared that measure nothing of a new task:
    that a way costs as much as a threshold, or what it did on the known tasks (the geometric
    mean)."""
    new = [point for point in points if point.task.new]
    known = [point for point in points if not point.task.new]
    for name, chosen in (("known", known), ("new", new)):
        yield from _agreement(f"prediction/{name}", chosen, [p.predicted for p in chosen])
    yield from _agreement("prediction/new/as_threshold", new, [1.0] * len(new))
    if new and known:
        costs = [[np.log(p.measured) for p in known if p.way == one.way] for one in new]
        guesses = [float(np.exp(np.mean(cost))) for cost in costs]
        yield from _agreement("prediction/new/as_known", new, guesses)


def _agreement(
    name: str, points: Sequence[Point], predicted: Sequence[float]
) -> Iterator[ResultRow]:
    """Yields how many predictions are on the measured side of 1, for all points and for those whose
    interval excludes 1, and their mean relative error."""
    if not points:
        return
    right = np.array([(c < 1) == (p.measured < 1) for p, c in zip(points, predicted, strict=True)])
    clear = np.array([not point.interval[0] <= 1 <= point.interval[1] for point in points])
    of = "of tasks and ways"
    yield share_row(f"{name}/right", int(right.sum()), len(right), of)
    if clear.any():
        yield share_row(f"{name}/clear/right", int(right[clear].sum()), int(clear.sum()), of)
    errors = np.abs(np.log(predicted) - np.log([point.measured for point in points]))
    yield ResultRow(f"{name}/error", float(np.expm1(errors.mean())), "relative", n=len(points))


def figure_of(config: RevisionConfig, strict: Mapping[str, Tally], points: Sequence[Point]) -> Any:
    """Draws strict match by cost on all tasks, with thresholds as a line, and the costs at equal
    strict match by those predicted."""
    figure = new_figure(10.5, 4.6)
    left, right = figure.subplots(1, 2)
    curve = [strict[str(threshold)] for threshold in config.thresholds]
    costs, shares = [*map(_mean_rows, curve)], [100 * tally.exact_match for tally in curve]
    left.plot(costs, shares, "o-", color="0.4", markersize=4, label="one threshold")
    for at, value, threshold in zip(costs, shares, config.thresholds, strict=True):
        left.annotate(str(threshold), (at, value), (6, -9), textcoords="offset points", fontsize=8)
    colors = {way.name: f"C{number}" for number, way in enumerate(config.ways)}
    for name, color in colors.items():
        low, high = strict[name].interval
        value = strict[name].exact_match
        arms = [[100 * (value - low)], [100 * (high - value)]]
        left.errorbar([_mean_rows(strict[name])], [100 * value], yerr=arms, fmt="o", color=color,
                      elinewidth=0.7, capsize=2, label=name)  # fmt: skip
    left.set(xlabel="rows an answer", ylabel="strict match of all tasks, %")
    left.legend(fontsize="small")
    for number, task in enumerate(config.tasks):
        mine = [point for point in points if point.task is task]
        marker: Any = "osD^vP*X"[number % 8]
        filled = {"markerfacecolor": "none"} if task.new else {}
        for point in mine:
            arms = np.abs(np.array([point.interval]).T - point.measured)
            right.errorbar([point.predicted], [point.measured], yerr=arms, fmt=marker,
                           color=colors[point.way], elinewidth=0.7, capsize=2, markersize=6,
                           **filled)  # fmt: skip
        right.plot([], [], marker, color="0.3", label=task.name, **filled)
    right.axline((1, 1), slope=1, color="0.8", linewidth=1)
    for line in (right.axhline, right.axvline):
        line(1, color="0.6", linewidth=1)
    right.set(xlabel="predicted cost, relative to a threshold of equal quality",
              ylabel="measured, at equal strict match")  # fmt: skip
    right.legend(fontsize="small")
    for axes in (left, right):
        axes.grid(**GRID)
    return figure


main = entry_point("revision", compare, RevisionConfig)
