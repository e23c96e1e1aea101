"""Figure 14: watts and joules, whose doubt is a factor."""

from statistics import fmean
from typing import Any

from experiments.reproduce.bands import band, phone_of
from experiments.reproduce.chapter import ONE_A_STEP, PAPER, Chapter, chapter, modelled
from llada_jax.phone.dynamics import SOURCE, Decoding
from llada_jax.phone.published_tasks import PublishedTasks
from llada_jax.phone.simulate import Energy, simulate
from llada_jax.phone.system import System
from llada_jax.phone.uncertainty import POWER_SPREAD
from llada_jax.phone.workload import autoregressive, blockwise

RUNS = 4


def fig14(world: PublishedTasks) -> Chapter:
    """Compares the watts and the joules of four systems."""
    figure, prompt = world.published["fig14"], world.task("GSM8K").prompt
    llama = autoregressive(prompt, 128)
    runs = {
        "LLaDA CPU": ((blockwise(prompt, 128),), world.phone("SM8750", System(body="cpu"))),
        "LLaDA llada.cpp": (world.workloads("GSM8K", 128, Decoding())[:RUNS],
                            world.phone("SM8750", System())),
        "Llama CPU": ((llama,), phone_of("llama3_8b", "SM8750", System(body="cpu"))),
        "Llama NPU": ((llama,), phone_of("llama3_8b", "SM8750", System(runtime="wide"))),
    }  # fmt: skip
    rows = []
    for name, (workloads, timer) in runs.items():
        energies = [simulate(each, timer).energy for each in workloads]
        found = Energy(*map(fmean, zip(*energies, strict=True)))
        source = SOURCE if "llada.cpp" in name else ONE_A_STEP
        more: Any = {"fitted": False, "source": f"{PAPER}, Figure 14", "trace_source": source}
        label = name.replace(" ", "_").lower()
        for what, value, unit, published in (
            ("watts", found.watts, "W", figure["power_W"]),
            ("joules", found.above_idle, "J", figure["energy_J"]),
        ):
            rows.append(
                modelled(f"fig14/{label}/{what}", value, unit, reference=published[name],
                          band=band(value, POWER_SPREAD, world.spread), **more)
            )  # fmt: skip
    joules = [figure["energy_J"][name] for name in ("LLaDA CPU", "LLaDA llada.cpp")]
    watts = [figure["power_W"][name] for name in ("LLaDA CPU", "LLaDA llada.cpp")]
    published = joules[0] / joules[1]
    return chapter("fig14", rows, published=published, implied=published * watts[1] / watts[0])
