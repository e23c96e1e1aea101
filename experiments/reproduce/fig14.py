"""Figure 14: energy of LLaDA on the CPU over llada.cpp."""

from typing import Any

from experiments.harness.estimates import ratio
from experiments.reproduce.chapter import PAPER, Chapter, chapter, modelled
from llada_jax.phone.dynamics import SOURCE, Decoding
from llada_jax.phone.published_tasks import PublishedTasks
from llada_jax.phone.simulate import simulate
from llada_jax.phone.system import System
from llada_jax.phone.workload import blockwise


def fig14(world: PublishedTasks) -> Chapter:
    """Compares the energy of LLaDA on the CPU over llada.cpp."""
    figure = world.published["fig14"]
    joules, watts = ((part["LLaDA CPU"], part["LLaDA llada.cpp"])
                     for part in (figure["energy_J"], figure["power_W"]))  # fmt: skip
    published = joules[0] / joules[1]
    implied = published * watts[1] / watts[0]
    cached = blockwise(world.task("GSM8K").prompt, 128)
    cpu = simulate(cached, world.phone("SM8750", System(body="cpu"))).energy
    runs = [
        simulate(each, world.phone("SM8750", System())).energy
        for each in world.workloads("GSM8K", 128, Decoding())
    ]
    above_idle, seconds = [run.above_idle for run in runs], [run.seconds for run in runs]
    cpu_alone = cpu.above_idle / cpu.seconds
    more: Any = {"fitted": False, "trace_source": SOURCE, "source": f"{PAPER}, Figure 14"}
    rows = [
        modelled("fig14/energy_ratio", ratio([cpu.above_idle] * len(runs), above_idle), "times",
                  reference=published, **more),
        modelled("fig14/energy_ratio_on_the_papers_time_base",
                  ratio([implied * cpu_alone * each for each in seconds], above_idle), "times",
                  **more),
        modelled("fig14/power_ratio",
                  ratio([cpu.watts * each for each in seconds], [run.joules for run in runs]),
                  "times", reference=watts[0] / watts[1], **more),
    ]  # fmt: skip
    return chapter("fig14", rows, implied=implied, published=published)
