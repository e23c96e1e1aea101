"""Compares decoders with the best possible schedule: the fewest forwards for the same answers.

    python -m experiments.oracle
    python -m experiments.oracle 'samplers=[{name: mine, sampler: {threshold: 0.8}}]'
    python -m experiments.oracle \
      'regimes=[{name: sums, task: long_addition, items: 8, block_length: 32, gen_length: 64}]'

The oracle (`llada_jax.api.schedule`) knows the sequential answer of each item, and commits
only its tokens. A decoder's gap is its forwards divided by the oracle's. A token waits needlessly
in a forward that predicts it as the sequential answer has it and leaves it masked; it is committed
too early if it differs from the sequential answer's token.

The run folder gets `oracle.png` in addition to the files of every run.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from tqdm import tqdm

import llada_jax as lj
from experiments.harness.estimates import mean_of, ratio
from experiments.harness.pictures import new_figure, save
from experiments.harness.questions import prompts_of, tokenizer_of
from experiments.harness.results import ResultRow, share_row
from experiments.harness.run import Run, entry_point
from llada_jax.api.schedule import Schedule, best_schedule
from llada_jax.config import require, require_counts
from llada_jax.evaluation.task import Item
from llada_jax.evaluation.tasks import load_task
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.trace import Event

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PROMPT_LENGTH = 96
"""Regimes with prompts of up to this length share compiled programs."""
SHARE = "share of answers equal to the sequential one"
MARKERS = "sD^v<>Pphd*"
"""Of rules in the figure: with nine colors, 99 rules look different."""
BOUNDS = {
    "curve_lower": {"color": "0.75", "linewidth": 6, "label": "oracle, lower bound"},
    "curve": {"color": "black", "linewidth": 1.5, "label": "oracle, best schedule found"},
}
"""Lines of the oracle's curves; where they coincide, the thin one is on the wide one."""


@dataclass(frozen=True, kw_only=True)
class Regime:
    """Items of a task, and the blocks in which they are answered."""

    name: str
    task: str
    items: int
    block_length: int
    gen_length: int
    difficulty: int | None = None
    beam: int = 8
    max_states: int = 4096

    def __post_init__(self) -> None:
        _ = load_task(self.task)  # checks the name
        require_counts(self, "items", "block_length", "gen_length", "max_states")
        require_counts(self, "beam", least=0)

    @property
    def lengths(self) -> dict[str, int]:
        return {"gen_length": self.gen_length, "block_length": self.block_length}


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """A sampler. The regime sets lengths, cache and early stop."""

    name: str
    sampler: SamplerConfig | None = None
    """None for the preset `name`."""

    def within(self, regime: Regime) -> SamplerConfig:
        """Returns the sampler with the lengths, cache and early stop of a regime."""
        sampler = self.sampler or SamplerConfig.preset(self.name)
        return sampler.replace(**regime.lengths, cache="blockwise", eos_early_stop=True)


@dataclass(frozen=True, kw_only=True)
class OracleConfig:
    """Settings of the verb; conf/oracle.yaml explains each."""

    model: str
    seed: int
    regimes: tuple[Regime, ...]
    samplers: tuple[Decoder, ...]

    def __post_init__(self) -> None:
        require(len(self.regimes) > 0, "regimes is empty; allowed: one or more")
        for decoder in self.samplers:
            _ = decoder.within(self.regimes[0])  # checks that there is such a preset


class Decoded(NamedTuple):
    """What a decoder did with the items of a regime, an entry for each item."""

    forwards: np.ndarray
    equal: np.ndarray  # whether the answer is the sequential one, token for token
    right: np.ndarray
    tokens: np.ndarray  # of the answer, with its end
    waits: np.ndarray  # forwards in which a mask was predicted right and left, over all tokens
    early: np.ndarray  # commits of tokens that the sequential answer does not have
    waits_of: dict[str, int]  # by kind of token
    early_of: dict[str, int]


def compare(config: OracleConfig, run: Run) -> None:
    """Searches the schedules of every regime, and runs every decoder on its items."""
    model = run.of(lj.load(config.model))
    _ = tokenizer_of(model)  # checks that there is one
    run.begin()
    rows: list[ResultRow] = []
    for regime in config.regimes:
        items = fitting_items(model, regime, config.seed)
        prompts = prompts_of(model, (item.question for item in items))
        sampler = SamplerConfig.preset("blockwise", **regime.lengths)
        schedules = [
            best_schedule(
                model, prompt, sampler, beam=regime.beam, max_states=regime.max_states,
                prompt_length=PROMPT_LENGTH,
            )
            for prompt in tqdm(prompts, f"{regime.name}, oracle")
        ]  # fmt: skip
        rows += run.recorded(oracle_rows(regime.name, schedules))
        for decoder in config.samplers:
            one = decode(model, prompts, items, decoder.within(regime), schedules, regime)
            rows += run.recorded(decoder_rows(f"{regime.name}/{decoder.name}", schedules, one))
    save(figure_of({row.name: row.value for row in rows}), run.folder / "oracle.png")
    run.finish(rows)


def fitting_items(model: lj.Model, regime: Regime, seed: int) -> list[Item]:
    """Returns the first different test items, those that fit the canvas with their end token."""
    encode, task, items = tokenizer_of(model).encode, load_task(regime.task), {}
    for item in task.items(seed, "test", difficulty=regime.difficulty):
        if len(encode(item.answer)) < regime.gen_length:
            items.setdefault(item.question, item)
        if len(items) == regime.items:
            break
    return list(items.values())


def decode(
    model: lj.Model,
    prompts: Sequence[Sequence[int]],
    items: Sequence[Item],
    sampler: SamplerConfig,
    schedules: Sequence[Schedule],
    regime: Regime,
) -> Decoded:
    """Decodes the items, and compares every forward with the sequential answers."""
    assert model.tokenizer is not None
    result = lj.generate(model, prompts, sampler, trace="scores", prompt_length=PROMPT_LENGTH)
    trace, task, kept = result.trace, load_task(regime.task), []
    waits_of, early_of = Counter[str](), Counter[str]()
    for row, schedule in enumerate(schedules):
        mine = (trace.event_row == row) & (trace.event_position >= len(prompts[row]))
        position = trace.event_position[mine] - len(prompts[row])
        kind, step, token = (
            getattr(trace, f"event_{name}")[mine] for name in ("kind", "step", "token")
        )
        n_tokens = schedule.n_required
        inside = position < n_tokens
        final = schedule.tokens[np.minimum(position, len(schedule.tokens) - 1)]
        committed = kind == Event.COMMIT
        first = np.full(len(schedule.tokens) + 1, len(trace.rows))
        np.minimum.at(first, position[committed], step[committed])
        is_open = (kind == Event.SCORE) & (step < first[position]) & inside
        waits, early = is_open & (token == final), committed & (token != final) & inside
        for which, counts in ((waits, waits_of), (early, early_of)):
            counts.update(kind_of(model.tokenizer.decode([id_])) for id_ in final[which].tolist())
        equal = np.array_equal(result.generated[row][:n_tokens], schedule.tokens[:n_tokens])
        right = task.verify(items[row], result.text[row])
        kept.append((result.nfe[row], equal, right, n_tokens, waits.sum(), early.sum()))
    forwards, equal, rights, tokens, waits, early = map(np.array, zip(*kept, strict=True))
    return Decoded(forwards, equal, rights, tokens, waits, early, waits_of, early_of)


def kind_of(text: str) -> str:
    """Returns the kind of a token: a number, a word, a sign, or an end (no text)."""
    if not text:
        return "ends"
    if any(character.isdigit() for character in text):
        return "numbers"
    return "words" if any(character.isalpha() for character in text) else "signs"


def oracle_rows(name: str, schedules: Sequence[Schedule]) -> list[ResultRow]:
    lower, upper, sequential = (
        np.array([getattr(schedule, field) for schedule in schedules], float)
        for field in ("lower", "upper", "sequential")
    )
    exact = sum(schedule.is_exact for schedule in schedules)
    blocks = [block for schedule in schedules for block in schedule.blocks]
    proven = sum(block.lower == block.upper for block in blocks)
    greedy = sum(block.greedy == block.upper for block in blocks)
    stuck = sum(block.greedy is None for block in blocks)
    n = len(schedules)
    found = {
        "forwards": mean_of(upper.tolist()),
        "forwards_lower": mean_of(lower.tolist()),
        "sequential": mean_of(sequential.tolist()),
    }
    means = [
        ResultRow(f"{name}/oracle/{key}", mean.value, "forwards", n=n, interval=mean.interval)
        for key, mean in found.items()
    ]
    curves = {"curve": frontier(schedules, "upper"), "curve_lower": frontier(schedules, "lower")}
    return [
        *means,
        *(
            ResultRow(f"{name}/oracle/{key}/{kept}", value, "forwards", n=n)
            for key, curve in curves.items()
            for kept, value in enumerate(curve)
        ),
        share_row(f"{name}/oracle/exact", exact, n, "of answers"),
        share_row(f"{name}/oracle/exact_blocks", proven, len(blocks), "of blocks"),
        share_row(f"{name}/oracle/greedy", greedy, len(blocks), "of blocks"),
        share_row(f"{name}/oracle/stuck", stuck, len(blocks), "of blocks"),
    ]


def decoder_rows(name: str, schedules: Sequence[Schedule], one: Decoded) -> list[ResultRow]:
    upper, lower = (
        np.array([getattr(schedule, bound) for schedule in schedules], float)
        for bound in ("upper", "lower")
    )
    n = len(upper)
    shares = {
        "forwards": (one.forwards, np.ones(n), "forwards"),
        "gap": (one.forwards, upper, "times"),
        "gap_to_bound": (one.forwards, lower, "times"),
    }
    if one.equal.any():
        same = one.equal
        shares["gap_if_equal"] = (one.forwards[same], upper[same], "times")
    shares["waits"] = (one.waits, one.tokens, "forwards/token")
    shares["early"] = (one.early, one.tokens, "of tokens")
    rows = []
    for key, (above, below, unit) in shares.items():
        found = ratio(above.tolist(), below.tolist())
        row = ResultRow(f"{name}/{key}", found.value, unit, n=found.n, interval=found.interval)
        rows.append(row)
    rows.append(share_row(f"{name}/equal", int(one.equal.sum()), n, "of answers"))
    rows.append(share_row(f"{name}/right", int(one.right.sum()), n, "of answers"))
    for key, counts in (("waits", one.waits_of), ("early", one.early_of)):
        total = sum(counts.values())
        rows += [share_row(f"{name}/{key}/{kind}", count, total, f"of {key}")
                 for kind, count in sorted(counts.items())]  # fmt: skip
    return rows


def frontier(schedules: Sequence[Schedule], bound: Literal["lower", "upper"]) -> list[float]:
    """Returns the oracle's curve by one of its bounds: the mean forwards if 0, 1, ... answers must
    equal the sequential ones. The items with the longest schedules are given up first, and take
    one forward per block."""
    needed = np.sort([getattr(schedule, bound) for schedule in schedules])
    least = np.sort([len(schedule.blocks) for schedule in schedules])
    n = len(needed)
    return [float(needed[:k].sum() + least[k:].sum()) / n for k in range(n + 1)]


def figure_of(values: Mapping[str, float]) -> "Figure":
    """Draws the share of equal answers by forwards, a panel for each regime.

    Args:
      values: values of result rows by name, of this run or stored.
    """
    suffix = "/oracle/forwards"
    regimes = [name.removesuffix(suffix) for name in values if name.endswith(suffix)]
    rules = dict.fromkeys(name.split("/")[1] for name in values if name.endswith("/equal"))
    others = [rule for rule in rules if not rule.startswith("threshold")]
    styles = {rule: {"color": f"C{1 + number % 9}", "marker": MARKERS[number % len(MARKERS)]}
              for number, rule in enumerate(others)}  # fmt: skip
    columns = min(3, len(regimes) + 1)
    rows = math.ceil((len(regimes) + 1) / columns)  # the legend has a panel
    figure = new_figure(4.4 * columns, 4.2 * rows)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    entries: dict[str, Any] = {}
    for axes, regime in zip(panels, regimes, strict=False):
        of_regime = {name.removeprefix(f"{regime}/"): value for name, value in values.items()
                     if name.startswith(f"{regime}/")}  # fmt: skip
        _draw_regime(axes, of_regime, styles)
        axes.set_title(regime)
        handles, names = axes.get_legend_handles_labels()
        entries |= dict(zip(names, handles, strict=True))
    for unused in panels[len(regimes) :]:
        unused.axis("off")
    panels[len(regimes)].legend(entries.values(), entries, loc="center", ncols=2, fontsize="small")
    return figure


def _draw_regime(
    axes: "Axes", values: Mapping[str, float], styles: Mapping[str, Mapping[str, Any]]
) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    for key, style in BOUNDS.items():
        curve = [value for name, value in values.items() if name.startswith(f"oracle/{key}/")]
        axes.plot(curve, np.linspace(0, 1, len(curve)), **style)
    points = {name.removesuffix("/equal"): (values[name.replace("/equal", "/forwards")], value)
              for name, value in values.items() if name.endswith("/equal")}  # fmt: skip
    line = sorted(point for rule, point in points.items() if rule not in styles)
    if line:
        axes.plot(*zip(*line, strict=True), "o-", markersize=5, label="thresholds")
    for rule, style in styles.items():
        if rule in points:
            axes.plot(*points[rule], linestyle="", fillstyle="none", label=rule, **style)
    axes.set(xlabel="forwards per answer", ylabel=SHARE, xscale="log", ylim=(-0.03, 1.05))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(color="0.9")


main = entry_point("oracle", compare, OracleConfig)
