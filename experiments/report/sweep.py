"""Hydra's callback at the end of a sweep: it writes a report of the sweep's jobs."""

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig


class SweepPage(Callback):
    """Named in `conf` by each verb that has results."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        # Hydra makes this callback for single runs too, which must not wait for these imports.
        from experiments.report.__main__ import sweep_page
        from experiments.report.runs import runs_in

        folder = Path(config.hydra.sweep.dir)
        sweep_page(folder, runs_in(folder))
