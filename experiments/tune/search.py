"""The search: Optuna proposes samplers; one that surely loses too much is abandoned early.

The families' own samplers and those with one setting changed come first, so that small searches are
systematic. The study is stored in the run folder; a resumed search replays its trials, whose
answers are stored too, and continues with new proposals.
"""

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
PROPOSALS_PER_SAMPLER = 4  # Optuna proposes some samplers again, so allow more than the budget


class Candidate(NamedTuple):
    """A sampler that was judged on all items of the search."""

    family: SamplerFamily
    judged: Judged
    price: Price
    lost: float
    """Points of exact match below the reference."""


def search(judge: Judge, reference: Judged, folder: Path) -> tuple[list[Candidate], int, int]:
    """Returns the candidates that were judged on all items, the number of samplers tried, and the
    number of these that Optuna proposed. At most `budget` samplers are tried."""
    config, found = judge.config, dict[str, Candidate | None]()
    study = _study(config, folder)
    finished = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
    proposed, n_first = 0, len(list(first_proposals(config.families)))
    with tqdm(total=config.budget, desc="tune", unit="sampler") as bar:
        for number in range(PROPOSALS_PER_SAMPLER * config.budget):
            new = study.ask() if number >= len(finished) else None
            family, sampler = drawn(config.families, partial(_draw, new or finished[number]))
            name = named(sampler)
            if name not in found:
                proposed += number >= n_first
                found[name] = candidate(judge, reference, family, sampler)
            if new is not None:
                _tell(study, new, found[name], config.loss)
            bar.update(len(found) - bar.n)
            if len(found) == config.budget:
                break
    return list(filter(None, found.values())), len(found), proposed


def candidate(
    judge: Judge, reference: Judged, family: SamplerFamily, sampler: SamplerConfig
) -> Candidate | None:
    """Judges a sampler. Returns None, without answering the remaining items, if the interval of its
    loss against the reference is above the allowed loss."""
    difference = judged = None
    for judged in judge.searched(sampler):
        difference = judged.against(reference)
        if -100 * difference.interval.high > judge.config.loss:
            return None
    assert judged is not None and difference is not None
    return Candidate(family, judged, judge.price(judged), -100 * difference.difference)


def front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Returns the Pareto front of seconds, quality and joules, fastest first."""

    def beaten(one: Candidate, other: Candidate) -> bool:
        pairs = list(zip(_costs(one), _costs(other), strict=True))
        return all(b <= a for a, b in pairs) and any(b < a for a, b in pairs)

    kept = [one for one in candidates if not any(beaten(one, other) for other in candidates)]
    return sorted(kept, key=_costs)


def fastest_allowed(candidates: Sequence[Candidate], loss: float) -> Candidate | None:
    """Returns the fastest candidate that loses at most `loss` points, or None."""
    return min((one for one in candidates if one.lost <= loss + 1e-9), key=_costs, default=None)


def _costs(candidate: Candidate) -> tuple[float, float, float]:
    joules = candidate.price.joules
    return candidate.price.seconds, candidate.lost, 0.0 if math.isnan(joules) else joules


def _study(config: TuneConfig, folder: Path) -> "Study":
    """Opens the study of these settings; a folder may have several studies."""
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
    # Another seed, so that a resumed study does not draw the same samplers again.
    study.sampler = optuna.samplers.TPESampler(seed=config.seed + len(known))
    for trial in known:
        if trial.state == optuna.trial.TrialState.RUNNING:  # its process was killed
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
    for places in first_proposals(config.families) if not known else ():
        study.enqueue_trial(places)
    return study


def _draw(trial: "Trial | FrozenTrial", name: str, n: int) -> int:
    if name == "family":  # has no order
        return trial.suggest_categorical(name, range(n))
    return trial.suggest_int(name, 0, n - 1)


def _tell(study: "Study", trial: "Trial", found: Candidate | None, loss: float) -> None:
    from optuna.trial import TrialState

    trial.set_constraint("points above the loss", 100.0 if found is None else found.lost - loss)
    if found is None:
        study.tell(trial, state=TrialState.PRUNED)
    else:
        study.tell(trial, found.price.seconds)
