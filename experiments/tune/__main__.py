"""Searches the best sampler for a phone, a task and a quality, and confirms it on other items.

    python -m experiments.tune
    python -m experiments.tune phone=SM8650 'tasks=[word_problems]' loss=0.5 budget=60
    python -m experiments.tune phone=here backend=litert items=200

The samplers of the `families` are tried as they are, then with one setting changed, and then as
Optuna proposes. Each answers items of all tasks in turns of `at_once`,
until its loss against `reference` surely is more than `loss` points. What its forwards take is
modelled for the phone, or measured here (`phone=here`). The fastest that loses no more, which may
be the reference itself, is then confirmed, with the reference and the published sampler, on items
that the search never saw.

The run folder gets `best.json`, which `sampler=<file>` of every verb and `SamplerConfig.preset`
take, `front.png`, and the study and its answers: the same command on the same folder
(`hydra.run.dir`) goes on where an interrupted run stopped.
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
    """Searches, says which setting does what, confirms, and writes the preset."""
    require_plots("front.png")
    model = run.of(config.load())
    run.begin()
    judge = Judge(config, model, Path(config.answers or run.folder / "answers"))
    *_, reference = judge.searched(config.reference)
    *_, published = judge.searched(config.published)
    candidates, tried, proposed = search(judge, reference, run.folder)
    compared = [
        Candidate(SamplerFamily(name=name, sampler=each.sampler), each, judge.price(each), lost)
        for name, each, lost in (
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
    run.write(BEST, preset_text(best.judged.sampler, about))
    run.finish(rows)


def preset_text(sampler: SamplerConfig, about: str) -> str:
    """Returns a preset file: the settings of a sampler that are not the defaults. The answer's
    length is not among them, as tasks and prompts decide it."""
    usual, left_out = SamplerConfig().as_dict(), ("gen_length", "steps")
    changed = {name: each for name, each in sampler.as_dict().items() if each != usual[name]}
    kept = {name: each for name, each in changed.items() if name not in left_out}
    return json.dumps({"about": about, "sampler": kept}, indent=2) + "\n"


def _reasons(judge: Judge, reference: Judged, best: Candidate) -> Iterator[ResultRow]:
    """Yields what each setting of the best sampler does: without it, all else as it is."""
    chosen = best.judged.sampler
    base, values = best.family.sampler.as_dict(), chosen.as_dict()
    for name in best.family.over.given:
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
    """Yields what the best sampler gains over the reference and the published one, on items that
    the search never saw; and what the planners of the phone's address space make of it."""
    found, others = judge.confirmed(best), ("reference", "published")
    judged = {name: judge.confirmed(getattr(config, name)) for name in others}
    prices, n = judge.prices({"confirmed": found, **judged}), len(found.tally.right)
    price, timed = prices["confirmed"], partial(ResultRow, kind=config.kind)
    share = partial(ResultRow, unit="of questions", n=n)
    yield share("tune/confirmed/exact_match", found.tally.exact_match,
                interval=found.tally.interval)  # fmt: skip
    yield from _price_rows("tune/confirmed", price, kind=config.kind)
    for name, other in judged.items():
        theirs, apart = prices[name].seconds, found.against(other)
        yield timed(f"tune/{name}/seconds", theirs, "s")
        yield share(f"tune/{name}/exact_match", other.tally.exact_match,
                    interval=other.tally.interval)  # fmt: skip
        yield timed(f"tune/against_{name}/seconds", price.seconds / theirs, "x as long")
        yield share(f"tune/against_{name}/difference", apart.difference, interval=apart.interval)
    for planner in config.planners if config.phone != HERE else ():
        seconds = judge.price(found, planner).seconds
        yield timed(f"tune/planner/{planner}", seconds / price.seconds, "x as long")


def _front_rows(candidates: Sequence[Candidate], kind: Kind) -> Iterator[ResultRow]:
    for number, each in enumerate(candidates):
        name, n = f"tune/front/{number}/{described(each)}", len(each.judged.tally.right)
        yield from _price_rows(name, each.price, n=n, kind=kind)
        yield ResultRow(f"{name}/lost", each.lost, "points")


def _price_rows(name: str, price: Price, **told: Any) -> Iterator[ResultRow]:
    yield ResultRow(f"{name}/seconds", price.seconds, "s", **told)
    if math.isfinite(price.joules):
        yield ResultRow(f"{name}/joules", price.joules, "J", **told)


def described(each: Candidate) -> str:
    """Returns `staged@theta_visible:0.8,theta_stable:0.99`."""
    settings = each.judged.sampler.as_dict()
    return f"{each.family.name}@{','.join(f'{n}:{settings[n]}' for n in each.family.over.given)}"


def _draw(config: TuneConfig, run: Run, candidates: Sequence[Candidate], best: Candidate) -> None:
    curves: dict[str, list[ScorePoint]] = {}
    for name, each in [*((each.family.name, each) for each in candidates), ("best", best)]:
        tally = each.judged.tally
        point = ScorePoint(each.price.seconds, tally.exact_match, *tally.interval)
        curves.setdefault(name, []).append(point)
    title = f"{', '.join(config.tasks)} on {config.phone}: {config.items} items each"
    save(cost_curves(title, curves, "seconds an answer"), run.folder / "front.png")


main = entry_point("tune", tune, TuneConfig)
