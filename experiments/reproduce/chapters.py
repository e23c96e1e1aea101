"""The chapters of the report, in order, and what was chosen with their figures in view."""

from collections.abc import Callable, Mapping

from experiments.reproduce.chapter import Chapter
from experiments.reproduce.fig8 import dynamics
from experiments.reproduce.fig11 import fig11
from experiments.reproduce.fig13 import fig13a, fig13c
from experiments.reproduce.fig14 import fig14
from experiments.reproduce.native_kernels import genie, ledger3b
from experiments.reproduce.parts import platform
from experiments.reproduce.table2 import table2
from experiments.reproduce.table6 import table6
from experiments.reproduce.table7 import table7
from experiments.reproduce.whatif import whatif
from llada_jax.phone.published_tasks import PublishedTasks

CHAPTERS: Mapping[str, Callable[[PublishedTasks], Chapter]] = {
    chapter.__name__: chapter
    for chapter in (
        *(table2, dynamics, table6, fig11, table7, fig13a, fig13c, fig14),
        *(genie, ledger3b, platform, whatif),
    )
}

CHOICES = (
    "Table 2's step holds no mapping event. Otherwise `table6/npu_prefix_kv` would be a quarter "
    "too fast: chosen with Table 6 in view.",
    "How drafts become confident where one token is committed at a time (their chance shrinks "
    "with what a forward brings of news). An earlier version of the process gave 69 s for "
    "`table6/mbsd`: chosen with Table 6 in view.",
    "A visible token of the current block stays in the window until it is stable, instead of "
    "becoming the CPU's to revise at once: chosen with Table 6 and Figure 11 in view.",
    "The NPU baseline of Llama-3-8B maps its buffers again in every step, as LLaDA's does: chosen "
    "with Figure 11's Llama cells in view.",
    "Paging gives every temporary an offset of its own: the paper does not say why paging fails, "
    "and this was chosen with Table 7 in view.",
    "What a session can map at one time is only known to lie between 3,840 and 4,096 MiB; the "
    "middle was chosen with Table 7 in view.",
    "Temporaries are 16 bits wide, as the paper's kernels keep them. They were 32 bits wide in an "
    "earlier version, with which the first row of Table 7 failed as published.",
)
"""Of structure, not numbers, that were made while figures were known which the report then calls
predictions."""
