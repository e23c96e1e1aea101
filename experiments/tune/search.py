"""The search: Optuna proposes samplers, and what surely loses is given up early."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tqdm import tqdm

from experiments.tune.judge import Judge, Judged, Price, digest, named
from experiments.tune.settings import SamplerFamily, TuneConfig, drawn, first_proposals
from llada_jax.sampler.config import SamplerConfig

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

STUDY = "study.log"
PROPOSALS = 4
"""For each sampler of the budget: Optuna proposes some of them again."""


class Candidate(NamedTuple):
    """A sampler that was judged on all items of the search."""

    family: SamplerFamily
    judged: Judged
    price: Price
    lost: float
    """Points of exact match below the reference."""


def search(judge: Judge, reference: Judged, folder: Path) -> tuple[list[Candidate], int, int]:
    """Returns what was judged on all items, how many samplers were tried, and how many of them
    Optuna proposed. `budget` are tried, where the families have as many: the families' own samplers
    and their neighbours first. The study is kept in the folder: the same search goes on with it,
    and finds its answers stored."""
    config, found = judge.config, dict[str, Candidate | None]()
    study = _study(config, folder)
    told = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
    proposed, given = 0, len(list(first_proposals(config.families)))
    with tqdm(total=config.budget, desc="tune", unit="sampler") as bar:
        for place in range(PROPOSALS * config.budget):
            asked = study.ask() if place >= len(told) else None
            family, sampler = drawn(config.families, partial(_draw, asked or told[place]))
            name = named(sampler)
            if name not in found:
                proposed += place >= given
                found[name] = candidate(judge, reference, family, sampler)
            if asked is not None:
                _tell(study, asked, found[name], config.loss)
            bar.update(len(found) - bar.n)
            if len(found) == config.budget:
                break
    return list(filter(None, found.values())), len(found), proposed


def candidate(
    judge: Judge, reference: Judged, family: SamplerFamily, sampler: SamplerConfig
) -> Candidate | None:
    """Judges a sampler; gives it up, and returns None, where the interval of what it loses against
    the reference lies above what is allowed."""
    difference = judged = None
    for judged in judge.searched(sampler):
        difference = judged.against(reference)
        if -100 * difference.interval.high > judge.config.loss:
            return None
    assert judged is not None and difference is not None
    return Candidate(family, judged, judge.price(judged), -100 * difference.difference)


def front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Returns, fastest first, those that no other beats in quality, seconds and joules at once."""

    def beaten(one: Candidate, other: Candidate) -> bool:
        pairs = list(zip(_costs(one), _costs(other), strict=True))
        return all(b <= a for a, b in pairs) and any(b < a for a, b in pairs)

    kept = [one for one in candidates if not any(beaten(one, other) for other in candidates)]
    return sorted(kept, key=_costs)


def fastest_allowed(candidates: Sequence[Candidate], loss: float) -> Candidate | None:
    """Returns the fastest candidate that loses at most so many points; None where all lose more."""
    return min((each for each in candidates if each.lost <= loss + 1e-9), key=_costs, default=None)


def _costs(each: Candidate) -> tuple[float, float, float]:
    joules = each.price.joules
    return each.price.seconds, each.lost, 0.0 if math.isnan(joules) else joules


def _study(config: TuneConfig, folder: Path) -> "Study":
    """Opens the study of these settings; others, on the same folder, are another study."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(folder / STUDY))),
        study_name=digest(repr(config)),
        load_if_exists=True,
    )
    known = study.get_trials(deepcopy=False)
    # A study that goes on must not draw the same again.
    study.sampler = optuna.samplers.TPESampler(seed=config.seed + len(known))
    for trial in known:
        if trial.state == optuna.trial.TrialState.RUNNING:  # of a process that was killed
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
    for places in first_proposals(config.families) if not known else ():
        study.enqueue_trial(places)
    return study


def _draw(trial: "Trial | FrozenTrial", name: str, n: int) -> int:
    if name == "family":  # which has no order
        return trial.suggest_categorical(name, range(n))
    return trial.suggest_int(name, 0, n - 1)


def _tell(study: "Study", trial: "Trial", found: Candidate | None, loss: float) -> None:
    from optuna.trial import TrialState

    trial.set_constraint("points above the loss", 100.0 if found is None else found.lost - loss)
    if found is None:
        study.tell(trial, state=TrialState.PRUNED)
    else:
        study.tell(trial, found.price.seconds)
