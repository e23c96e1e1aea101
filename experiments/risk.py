"""Calibrates thresholds whose expected share of wrong tokens is bounded, and checks the bound.

    python -m experiments.risk
    python -m experiments.risk calibrated_on=choices 'shifted=[yes_no]' items=200
    python -m experiments.risk calibrated_on=word_problems 'shifted=[yes_no]' 'alphas=[0.1]'

A token is wrong if it differs from the answer that the same model writes with one token per
forward (`llada_jax.evaluation.risk`). Two families of thresholds are calibrated: one threshold for
all tokens (`fixed`), and a fitted table by position and step of the block (`table`). Each is
decoded on held-out items of other seeds, on which its risk must be at most alpha on average, and on
other tasks, for which there is no bound and the check must warn.

The run folder gets `risk.png` and, for each alpha, `table_<alpha>.json`, which `sampler=<file>` of
every verb and `SamplerConfig.preset` read, in addition to the files of every run.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

import llada_jax as lj
from experiments.harness.estimates import mean_of, ratio
from experiments.harness.pictures import GRID, new_figure, require_plots, save
from experiments.harness.questions import prompts_of, tokenizer_of
from experiments.harness.results import ResultRow, share_row
from experiments.harness.run import Run, entry_point
from llada_jax.config import require, require_counts, require_numbers
from llada_jax.evaluation.evaluate import with_answer_length
from llada_jax.evaluation.risk import (
    Predictions,
    calibrate,
    drift,
    fit_offsets,
    predictions_of,
    warning,
    wrong_share,
)
from llada_jax.evaluation.tally import bootstrapped
from llada_jax.evaluation.task import TaskItems
from llada_jax.evaluation.tasks import load_task
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.rules.threshold_table import ThresholdTable
from llada_jax.sampler.trace import Event

RESAMPLES = 1000
SEQUENTIAL = ThresholdTable(shift=float("inf"))


@dataclass(frozen=True, kw_only=True)
class RiskConfig:
    """Settings of the verb; conf/risk.yaml explains each."""

    model: str
    calibrated_on: str
    alphas: tuple[float, ...]
    thresholds: tuple[float, ...]
    fit_seed: int
    fit_items: int
    fit_threshold: float
    steps: int
    least: int
    seed: int
    items: int
    held_out_seeds: tuple[int, ...]
    held_out_items: int
    shifted: tuple[str, ...]
    shifted_items: int
    batch: int
    level: float
    block_length: int = 32
    places: int = 32

    def __post_init__(self) -> None:
        for name in (self.calibrated_on, *self.shifted):
            _ = load_task(name)  # checks the name
        require_counts(
            self, "fit_items", "steps", "least", "items", "held_out_items", "shifted_items",
            "batch", "places",
        )  # fmt: skip
        require_numbers(self, "level", above=0, most=1)
        for name in ("alphas", "held_out_seeds"):
            require(len(getattr(self, name)) > 0, f"{name} is empty; allowed: one or more")
        for alpha in self.alphas:
            _ = calibrate(np.zeros((self.items, 1)), alpha)  # checks the two together
        ascending = sorted({*self.thresholds}) == [*self.thresholds] != []
        require(
            ascending and 0 < self.thresholds[0] and self.thresholds[-1] < 1,
            f"thresholds are {self.thresholds}; allowed: ascending, above 0 and below 1",
        )
        require(
            self.fit_threshold in self.thresholds,
            f"fit_threshold is {self.fit_threshold}; allowed: one of {self.thresholds}",
        )
        seeds = self.fit_seed, self.seed, *self.held_out_seeds
        require(len({*seeds}) == len(seeds), f"seeds are {seeds}; allowed: different ones")


class Decoded(NamedTuple):
    """Answers of a rule to some items, an entry for each item."""

    loss: np.ndarray  # share of wrong tokens
    forwards: np.ndarray
    doubt: np.ndarray  # mean of 1 - confidence at commits, which needs no sequential answer


class Items:
    """Items of a task with their sequential answers."""

    def __init__(self, model: lj.Model, config: RiskConfig, task: str, seed: int, n: int) -> None:
        self.name, self.model, self.places = task, model, config.places
        self.items = TaskItems(task=load_task(task), count=n, seed=seed)
        base = SamplerConfig(block_length=config.block_length)
        base = base.replace(cache="blockwise", eos_early_stop=True)
        self.sampler = with_answer_length(base, self.items.task)
        sequential = self._evaluated(SEQUENTIAL)
        self.sequential = {i: np.array(answer) for i, answer in sequential.answers.items()}
        self.forwards = np.array([generation.nfe for generation in sequential.generations])

    def _evaluated(self, rule: ThresholdTable) -> lj.Evaluation:
        return lj.evaluate(
            self.model, self.items.task, self.sampler.replace(rule=rule), items=self.items.count,
            seed=self.items.seed, places=self.places,
        )  # fmt: skip

    def predictions(self, rule: ThresholdTable) -> Predictions:
        """Returns the predictions of all forwards with a right context."""
        questions = [self.items.item(index).question for index in range(self.items.count)]
        prompts, parts = prompts_of(self.model, questions), []
        for first in range(0, len(prompts), self.places):
            chosen = prompts[first : first + self.places]
            sampler = self.sampler.replace(rule=rule)
            result = lj.generate(self.model, chosen, sampler, trace="scores")
            parts += [
                predictions_of(result.trace, row, self.sequential[first + row])
                for row in range(len(chosen))
            ]
        return Predictions(*map(np.concatenate, zip(*parts, strict=True)))

    def decoded(self, rule: ThresholdTable) -> Decoded:
        evaluation, columns = self._evaluated(rule), []
        answers = evaluation.answers
        for batch, trace in evaluation.store.traces():
            commits = trace.event_kind == Event.COMMIT
            row, doubt = trace.event_row[commits], 1 - trace.event_confidence[commits]
            doubts = np.bincount(row, doubt) / np.bincount(row)
            for generation, doubt in zip(batch.generations, doubts, strict=True):
                answer = np.array(answers[generation.index])
                loss = wrong_share(answer, self.sequential[generation.index])
                columns.append((loss, generation.nfe, doubt))
        return Decoded(*np.array(columns, float).T)


def measure(config: RiskConfig, run: Run) -> None:
    """Fits, calibrates, and checks on held-out items and other tasks."""
    require_plots("risk.png")
    model = run.of(lj.load(config.model))
    _ = tokenizer_of(model)  # checks that there is one
    run.begin()
    shifts = [float(np.log(t / (1 - t))) for t in config.thresholds]
    fitting = Items(model, config, config.calibrated_on, config.fit_seed, config.fit_items)
    fit_shift = shifts[config.thresholds.index(config.fit_threshold)]
    found = fitting.predictions(ThresholdTable(shift=fit_shift))
    tables = {
        "fixed": ((0.0,),),
        "table": fit_offsets(found, config.block_length, config.steps, config.least),
    }
    parts = [Items(model, config, config.calibrated_on, config.seed, config.items)]
    for seed in config.held_out_seeds:
        parts.append(Items(model, config, config.calibrated_on, seed, config.held_out_items))
    shifted = [Items(model, config, name, config.seed, config.shifted_items)
               for name in config.shifted]  # fmt: skip
    rows = run.recorded(_sequential_rows(parts[1:]))
    curves = {}
    for name, offsets in tables.items():
        rules = [ThresholdTable(shift=shift, offsets=offsets) for shift in shifts]
        grid = [[items.decoded(rule) for rule in rules] for items in parts]
        curves[name] = Curve(config, [*rules, SEQUENTIAL], grid, parts)
        rows += run.recorded(curves[name].rows(name, shifted))
        for alpha in config.alphas:
            rule = curves[name].chosen(alpha)
            if name == "table" and rule is not SEQUENTIAL:
                sampler = parts[0].sampler.replace(rule=rule)
                run.write(f"table_{alpha}.json", _preset(config, sampler, alpha))
    rows += run.recorded(_comparison_rows(config, curves["table"], curves["fixed"]))
    save(figure_of(config, curves, rows), run.folder / "risk.png")
    run.finish(rows)


def _preset(config: RiskConfig, sampler: SamplerConfig, alpha: float) -> str:
    """Returns a preset file of the settings that differ from the defaults, but the lengths."""
    defaults = SamplerConfig().as_dict()
    changed = {
        name: value for name, value in sampler.as_dict().items()
        if value != defaults.get(name) and name not in ("gen_length", "steps")
    }  # fmt: skip
    about = f"at most {alpha} wrong tokens expected for {config.model} on {config.calibrated_on}"
    return json.dumps({"about": about, "sampler": changed}) + "\n"


def _sequential_rows(parts: Sequence[Items]) -> list[ResultRow]:
    forwards = np.concatenate([part.forwards for part in parts])
    return [_mean_row("sequential/forwards", forwards, "forwards")]


def _mean_row(name: str, values: np.ndarray, unit: str) -> ResultRow:
    mean = mean_of(values.tolist())
    low, high = mean.interval or (0.0, np.inf)
    return ResultRow(name, mean.value, unit, n=mean.n, interval=(max(0.0, low), high))


class Curve:
    """A family of thresholds from bold to cautious, decoded on the calibration's items and on the
    held-out ones. The last point is the sequential answer."""

    def __init__(
        self, config: RiskConfig, rules: list[ThresholdTable], grid: list[list[Decoded]],
        parts: Sequence[Items],
    ) -> None:  # fmt: skip
        self.config, self.rules = config, rules
        zeros = [np.zeros((part.items.count, 1)) for part in parts]
        self.loss = [
            np.hstack([np.column_stack([one.loss for one in of_part]), zero])
            for of_part, zero in zip(grid, zeros, strict=True)
        ]
        self.calibration, self.held_out = self.loss[0], np.concatenate(self.loss[1:])
        self.forwards = np.concatenate([
            np.column_stack([*(one.forwards for one in of_part), part.forwards])
            for of_part, part in zip(grid[1:], parts[1:], strict=True)
        ])  # fmt: skip
        self.doubt = [np.column_stack([one.doubt for one in of_part]) for of_part in grid]

    def index(self, alpha: float) -> int:
        return calibrate(self.calibration, alpha)

    def chosen(self, alpha: float) -> ThresholdTable:
        return self.rules[self.index(alpha)]

    def rows(self, name: str, shifted: Sequence[Items]) -> list[ResultRow]:
        rows = []
        for threshold, loss, forwards in zip(
            self.config.thresholds, self.held_out.T, self.forwards.T, strict=False
        ):
            rows.append(_mean_row(f"{name}/at/{threshold}/risk", loss, "of tokens"))
            rows.append(_mean_row(f"{name}/at/{threshold}/forwards", forwards, "forwards"))
        for alpha in self.config.alphas:
            at, here = self.index(alpha), f"{name}/alpha/{alpha}"
            if at == len(self.config.thresholds):
                raise ValueError(
                    f"thresholds end at {self.config.thresholds[-1]}, whose risk is above alpha "
                    f"{alpha}; allowed: also higher ones"
                )
            odds = np.exp(self.rules[at].shift)
            rows.append(ResultRow(f"{here}/threshold", odds / (1 + odds), "confidence"))
            rows.append(_mean_row(f"{here}/calibration/risk", self.calibration[:, at], "of tokens"))
            rows.append(_mean_row(f"{here}/held_out/risk", self.held_out[:, at], "of tokens"))
            rows.append(_mean_row(f"{here}/held_out/forwards", self.forwards[:, at], "forwards"))
            risks = self._risks_of_splits(alpha)
            fields = {
                "n": RESAMPLES,
                "interval": tuple(np.quantile(risks, [0.025, 0.975]).tolist()),
            }
            rows.append(ResultRow(f"{here}/splits/risk", risks.mean(), "of tokens", **fields))
            rows.append(self._warned_row(f"{here}/held_out", at, np.vstack(self.doubt[1:])[:, at]))
            for items in shifted:
                one = items.decoded(self.rules[at])
                rows.append(_mean_row(f"{here}/{items.name}/risk", one.loss, "of tokens"))
                rows.append(_mean_row(f"{here}/{items.name}/forwards", one.forwards, "forwards"))
                rows.append(self._warned_row(f"{here}/{items.name}", at, one.doubt))
                p_value = drift(self.doubt[0][:, at], one.doubt)
                if text := warning(p_value, self.config.level, alpha):
                    tqdm.write(f"{items.name}: {text}")
        return rows

    def _risks_of_splits(self, alpha: float) -> np.ndarray:
        """Returns the held-out risk for random divisions into calibration and held-out items: the
        bound is for their mean."""
        rng, both = np.random.default_rng(0), np.concatenate(self.loss)
        risks, n = [], self.config.items
        for _ in range(RESAMPLES):
            shuffled = rng.permutation(both)
            risks.append(shuffled[n:, calibrate(shuffled[:n], alpha)].mean())
        return np.array(risks)

    def _warned_row(self, name: str, at: int, doubt: np.ndarray) -> ResultRow:
        """Returns the share of batches of items for which the check warns."""
        size = self.config.batch
        batches = [doubt[first : first + size] for first in range(0, len(doubt) - size + 1, size)]
        level = self.config.level
        warned = sum(drift(self.doubt[0][:, at], batch) < level for batch in batches)
        return share_row(f"{name}/warned", warned, len(batches), f"of batches of {size}")


def _comparison_rows(config: RiskConfig, table: Curve, fixed: Curve) -> list[ResultRow]:
    """Returns the forwards of the table divided by the forwards of a fixed threshold: as calibrated
    for alpha, and where both have the same risk on the held-out items."""
    rows, n = [], len(table.held_out)
    for alpha in config.alphas:
        ours, theirs = table.index(alpha), fixed.index(alpha)

        def at_equal_risk(items: np.ndarray, alpha: float = alpha) -> float:
            return _forwards_at(table, alpha, items) / _forwards_at(fixed, alpha, items)

        found = {
            f"alpha/{alpha}": ratio(
                table.forwards[:, ours].tolist(), fixed.forwards[:, theirs].tolist()
            ),
            f"equal_risk/{alpha}": bootstrapped(at_equal_risk, n, RESAMPLES),
        }
        rows += [
            ResultRow(f"against_fixed/{key}/forwards", one.value, "times", n=n,
                      interval=one.interval)
            for key, one in found.items()
        ]  # fmt: skip
    return rows


def _forwards_at(curve: Curve, risk: float, items: np.ndarray) -> float:
    """Returns the forwards at a risk, linear between two points of the curve."""
    risks = np.maximum.accumulate(curve.held_out[items].mean(axis=0)[::-1])
    return float(np.interp(risk, risks, curve.forwards[items].mean(axis=0)[::-1]))


def figure_of(config: RiskConfig, curves: Mapping[str, Curve], rows: Sequence[ResultRow]) -> Any:
    figure = new_figure(10.0, 4.0)
    left, right = figure.subplots(1, 2)
    values = {row.name: row.value for row in rows}
    for number, task in enumerate(("held_out", *config.shifted)):
        risks = [values[f"table/alpha/{alpha}/{task}/risk"] for alpha in config.alphas]
        label = f"{config.calibrated_on}, held out" if task == "held_out" else task
        left.plot(config.alphas, risks, "o-" if number == 0 else "s--", markersize=4, label=label)
    left.plot(config.alphas, config.alphas, color="black", linewidth=1, label="the bound")
    left.set(xlabel="chosen level alpha", ylabel="share of wrong tokens", xscale="log")
    left.set_yscale("symlog", linthresh=min(config.alphas) / 2)
    for name, curve in curves.items():
        right.plot(curve.forwards.mean(axis=0)[:-1], curve.held_out.mean(axis=0)[:-1], "o-",
                   markersize=3, label=name)  # fmt: skip
    right.set(xlabel="forwards per answer", ylabel="share of wrong tokens, held out")
    right.set_yscale("symlog", linthresh=min(config.alphas) / 10)
    for axis in (left, right):
        axis.grid(**GRID)
        axis.legend(fontsize="small")
    return figure


main = entry_point("risk", measure, RiskConfig)
