"""Mixture-of-experts models that do not fit on the accelerator: who runs, keeps and moves experts.

    python -m experiments.experts
    python -m experiments.experts parts=[phones] phones.npu=vendor phones.cpu=tuned
    python -m experiments.experts parts=[schedules]

HybriMoE's tables are predicted and compared with the paper's; then every policy is simulated on
phones, with mixture-of-experts dLLMs. The run folder also gets the recorded routing and pictures.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from experiments.experts.paper import PaperConfig, predict_paper
from experiments.experts.phones import PhonesConfig, simulate_phones
from experiments.experts.pictures import draw_pictures
from experiments.experts.recorded import RecordedConfig, run_recorded, trained_subject
from experiments.experts.schedules import measure_schedules
from experiments.harness.pictures import require_plots
from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from llada_jax.config import require, require_choice

Part = Literal["paper", "phones", "schedules", "recorded"]


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """What is run. The comments are in conf/experts.yaml."""

    seed: int = 0
    parts: tuple[str, ...] = ("paper", "phones", "schedules", "recorded")
    paper: PaperConfig = field(default_factory=PaperConfig)
    phones: PhonesConfig = field(default_factory=PhonesConfig)
    recorded: RecordedConfig = field(default_factory=RecordedConfig)
    pictures: bool = True

    def __post_init__(self) -> None:
        require(self.seed >= 0, f"seed is {self.seed}; allowed: 0 or more")
        require(bool(self.parts), "parts is empty; allowed: at least one")
        for part in self.parts:
            require_choice("part", part, Part)


def experts(config: ExpertsConfig, run: Run) -> None:
    """All parts, one after another."""
    parts: dict[str, Callable[[], Iterator[ResultRow]]] = {
        "paper": partial(predict_paper, config.paper, config.seed),
        "phones": partial(simulate_phones, config.phones, config.seed),
        "schedules": partial(measure_schedules, config.seed),
        "recorded": partial(run_recorded, config.recorded, config.seed, run),
    }
    if "recorded" in config.parts and config.recorded.trained is not None:
        _ = trained_subject(config.recorded.trained, config.seed)  # which checks the model
    if config.pictures:
        require_plots("pictures=true")
    run.begin()
    rows = []
    for part in config.parts:
        for row in parts[part]():
            run.record(row.as_dict())
            rows.append(row)
    if config.pictures:
        draw_pictures(rows, run.folder)
    run.finish(rows)


main = entry_point("experts", experts, ExpertsConfig)


if __name__ == "__main__":
    main()
