"""The chapters of the report, in order."""

from collections.abc import Callable, Mapping

from experiments.reproduce.calibrated import commits, dynamics, table2
from experiments.reproduce.chapter import Chapter
from experiments.reproduce.fig11 import fig11, fig12
from experiments.reproduce.fig13 import fig13a, fig13c, fig14
from experiments.reproduce.parts import genie, held_out, ledger3b, platform
from experiments.reproduce.tables import table6, table7
from llada_jax.phone.published_tasks import PublishedTasks

CHAPTERS: Mapping[str, Callable[[PublishedTasks], Chapter]] = {
    each.__name__: each
    for each in (
        *(table2, dynamics, commits, table6, fig11, fig12, table7, fig13a, fig13c, fig14),
        *(genie, ledger3b, platform, held_out),
    )
}
