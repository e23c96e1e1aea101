"""Searches the fastest sampler for a phone that keeps the quality, and confirms it on new items.

    python -m experiments.tune
    python -m experiments.tune phone=SM8650 'tasks=[word_problems]' loss=0.5 budget=60
    python -m experiments.tune phone=here backend=litert items=200

The search tries the samplers of `families` unchanged, then with one setting changed, then with
settings that Optuna proposes. Each sampler answers items of all tasks, `at_once` at a time, until
the interval of its loss against `reference` is above `loss` points. The time of an answer is
modelled for the phone, or measured here (`phone=here`). The fastest sampler within the loss,
perhaps the reference itself, is compared with the reference and the published sampler on items that
the search has not used, since the winner of a search looks better than it is on the items of the
search.

The run folder gets `best.json`, which `sampler=<file>` of every verb and `SamplerConfig.preset`
read, `front.png`, and the study with its answers, so that the same command on the same folder
(`hydra.run.dir`) continues an interrupted search.
"""

import json
import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from experiments.harness.pictures import ScorePoint, cost_curves, require_plots, save
from experiments.harness.results import Kind, ResultRow
from experiments.harness.run import Run, entry_point
from experiments.tune.judge import Judge, Judged, Price
from experiments.tune.search import Candidate, candidate, fastest_allowed, front, search
from experiments.tune.settings import HERE, SamplerFamily, TuneConfig
from llada_jax.sampler.config import SamplerConfig

BEST = "best.json"


def tune(config: TuneConfig, run: Run) -> None:
    """Searches, measures the effect of each setting, confirms, and writes the preset."""
    require_plots("front.png")
    model = run.of(config.load())
    run.begin()
    judge = Judge(config, model, Path(config.answers or run.folder / "answers"))
    *_, reference = judge.searched(config.reference)
    *_, published = judge.searched(config.published)
    candidates, tried, proposed = search(judge, reference, run.folder)
    compared = [
        Candidate(
            SamplerFamily(name=name, sampler=answers.sampler), answers, judge.price(answers), lost
        )
        for name, answers, lost in (
            ("reference", reference, 0.0),
            ("published", published, -100 * published.against(reference).difference),
        )
    ]
    candidates.append(compared[0])
    best = fastest_allowed(candidates, config.loss)
    assert best is not None, "the reference loses nothing against itself"
    _draw(config, run, [*candidates, compared[1]], best)
    rows = [
        ResultRow("tune/tried", tried, "samplers"),
        ResultRow("tune/proposed", proposed, "of them by Optuna"),
        *_front_rows(front(candidates), config.kind),
    ]
    rows += _reasons(judge, reference, best)
    rows += _confirmation(config, judge, best.judged.sampler)
    about = f"tuned for {config.phone} on {', '.join(config.tasks)}, to lose {config.loss} points"
    run.write(BEST, _preset_text(best.judged.sampler, about))
    run.finish(rows)


def _preset_text(sampler: SamplerConfig, about: str) -> str:
    """Returns a preset file with the settings that differ from the defaults. It has no answer
    length, because tasks and prompts decide that."""
    defaults = SamplerConfig().as_dict()
    changed = {
        name: value for name, value in sampler.as_dict().items()
        if value != defaults[name] and name not in ("gen_length", "steps")
    }  # fmt: skip
    return json.dumps({"about": about, "sampler": changed}, indent=2) + "\n"


def _reasons(judge: Judge, reference: Judged, best: Candidate) -> Iterator[ResultRow]:
    """Yields the effect of each changed setting: the best sampler against one without the
    change."""
    chosen = best.judged.sampler
    base, values = best.family.sampler.as_dict(), chosen.as_dict()
    for name in best.family.over.searched:
        usual, value = base[name], values[name]
        if usual == value:
            continue
        without = candidate(judge, reference, best.family, chosen.replace(**{name: usual}))
        what = f"tune/why/{name}:{value} in place of {usual}"
        if without is None:
            yield ResultRow(f"{what}/allowed", 0.0, "without it more is lost than is allowed")
            continue
        ratio = best.price.seconds / without.price.seconds
        yield ResultRow(f"{what}/seconds", ratio, "x as long", kind=judge.config.kind)
        yield ResultRow(f"{what}/exact_match", without.lost - best.lost, "points")


def _confirmation(config: TuneConfig, judge: Judge, best: SamplerConfig) -> Iterator[ResultRow]:
    """Yields the best sampler's score and time on items that the search has not used, compared
    with the reference and the published sampler, and its time with each planner."""
    found, others = judge.confirmed(best), ("reference", "published")
    judged = {name: judge.confirmed(getattr(config, name)) for name in others}
    prices, n = judge.prices({"confirmed": found, **judged}), len(found.tally.right)
    price, timed = prices["confirmed"], partial(ResultRow, kind=config.kind)
    share = partial(ResultRow, unit="of questions", n=n)
    yield share("tune/confirmed/exact_match", found.tally.exact_match,
                interval=found.tally.interval)  # fmt: skip
    yield from _price_rows("tune/confirmed", price, kind=config.kind)
    for name, other in judged.items():
        seconds, paired = prices[name].seconds, found.against(other)
        yield timed(f"tune/{name}/seconds", seconds, "s")
        yield share(f"tune/{name}/exact_match", other.tally.exact_match,
                    interval=other.tally.interval)  # fmt: skip
        yield timed(f"tune/against_{name}/seconds", price.seconds / seconds, "x as long")
        yield share(f"tune/against_{name}/difference", paired.difference, interval=paired.interval)
    for planner in config.planners if config.phone != HERE else ():
        seconds = judge.price(found, planner).seconds
        yield timed(f"tune/planner/{planner}", seconds / price.seconds, "x as long")


def _front_rows(candidates: Sequence[Candidate], kind: Kind) -> Iterator[ResultRow]:
    for number, one in enumerate(candidates):
        name, n = f"tune/front/{number}/{described(one)}", len(one.judged.tally.right)
        yield from _price_rows(name, one.price, n=n, kind=kind)
        yield ResultRow(f"{name}/lost", one.lost, "points")


def _price_rows(name: str, price: Price, **fields: Any) -> Iterator[ResultRow]:
    yield ResultRow(f"{name}/seconds", price.seconds, "s", **fields)
    if math.isfinite(price.joules):
        yield ResultRow(f"{name}/joules", price.joules, "J", **fields)


def described(one: Candidate) -> str:
    """Returns `staged@theta_visible:0.8,theta_stable:0.99`."""
    settings = one.judged.sampler.as_dict()
    return f"{one.family.name}@{','.join(f'{n}:{settings[n]}' for n in one.family.over.searched)}"


def _draw(config: TuneConfig, run: Run, candidates: Sequence[Candidate], best: Candidate) -> None:
    curves: dict[str, list[ScorePoint]] = {}
    for name, one in [*((one.family.name, one) for one in candidates), ("best", best)]:
        tally = one.judged.tally
        point = ScorePoint(one.price.seconds, tally.exact_match, *tally.interval)
        curves.setdefault(name, []).append(point)
    title = f"{', '.join(config.tasks)} on {config.phone}: {config.items} items each"
    save(cost_curves(title, curves, "seconds an answer"), run.folder / "front.png")


main = entry_point("tune", tune, TuneConfig)
