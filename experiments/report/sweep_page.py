"""The joint table and the pictures of a sweep, as soon as its last job is done."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from omegaconf import OmegaConf

from experiments.harness.results import ResultRow
from experiments.harness.run import RESULTS, Run

PAGE = "report.md"


def sweep_page(folder: Path, jobs: Sequence[Path]) -> None:
    """Writes `report.md`, its pictures and their `results.json` into the folder of a sweep, whose
    jobs have folders of their own. Does nothing for a single job, and for workers that only decode.
    """
    if len(jobs) < 2 or not all((job / RESULTS).is_file() for job in jobs):
        return
    if find_spec("matplotlib") is None:
        print("\nno joint table and picture: the extra `plots` is not installed")
        return
    from experiments.report.__main__ import ReportConfig, report

    config = ReportConfig(title=folder.name, runs=tuple(map(str, jobs)), baseline=None)
    report(config, _SweepFolder(folder, OmegaConf.create()))


class _SweepFolder(Run):
    """The folder of a sweep, which is no run itself: it has no settings and no environment."""

    def begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def finish(self, results: Sequence[ResultRow], shown: str | None = None) -> None:
        """Writes `results.json`, and prints the page."""
        super().finish(results, (self.folder / PAGE).read_text(encoding="utf-8"))
        print(f"this page is {self.folder / PAGE}")
