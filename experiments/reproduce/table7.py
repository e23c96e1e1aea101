"""Table 7: which settings fit into the address space."""

from experiments.reproduce.chapter import PAPER, Chapter, chapter, modelled
from llada_jax.phone.memory import Footprint, footprint
from llada_jax.phone.profile import load_profile
from llada_jax.phone.published_tasks import PublishedTasks
from llada_jax.phone.system import Runtime, System

ADDRESS_SPACE_MIB = (3840, 4096)
"""What is known of the limit on SM8750, whose middle the profile has: so much was mapped at one
time (Seunghui98/nntrainer 52_flash_experts_on_htp_task.md), and more than 32 bits cannot be."""


def table7(world: PublishedTasks) -> Chapter:
    """Says which settings fit into the address space."""
    runtimes: dict[str, Runtime] = {"No SOMR": "remap", "Paging only": "paging", "SOMR": "swap"}
    memory, prompt = load_profile("SM8750").memory, world.task("GSM8K").prompt
    rows, words = [], []
    for setting, batch, target, published in world.published["table7"]["rows"]:
        found = footprint(
            System(runtime=runtimes[setting]), world.graphs.model, memory, canvas=prompt + target,
            rows=batch,
        )  # fmt: skip
        name = f"table7/{setting.lower().replace(' ', '_')}/{batch}"
        rows.append(
            modelled(name, 1 if found.fits else -1, "runs (1) or fails (-1)", fitted=False,
                      kind="informed", source=f"{PAPER}, Table 7",
                      reference=-1 if published == "failed" else 1)
        )  # fmt: skip
        words.append(f"`{name}`: {_outcome(found, published == 'failed')}.")
    limit = memory.address_space_mib
    return chapter("table7", rows, words, ends=ADDRESS_SPACE_MIB, limit=limit)


def _outcome(found: Footprint, failed: bool) -> str:
    """Says whether a setting runs, and whether that hangs on the limit's place."""
    ends = [found._replace(limit=limit).fits for limit in ADDRESS_SPACE_MIB]
    met = "as published" if found.fits != failed else "not as published"
    text = f"{_runs(found.fits)}, {met}: {found.reason}"
    if len(set(ends)) == 1:
        return f"{text}; {_runs(ends[0])} at both ends of the limit's range"
    low, high = map(_runs, ends)
    return f"{text}; it {low} at 3,840 and {high} at 4,096, so the model does not tell"


def _runs(fits: bool) -> str:
    return "runs" if fits else "fails"
