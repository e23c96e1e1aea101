"""Modelled times to compare a run with: LLaDA's plain sampler here, and both on phones.

The plain sampler computes all rows in every forward and commits one token, so its time is the
number of tokens times one forward. Phones run a model of LLaDA-8B's shape.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import llada_jax as lj
from experiments.evaluate.result_rows import SHAPE
from experiments.harness.results import ResultRow
from llada_jax.phones.graphs import unknown_so_far
from llada_jax.phones.workload import vanilla
from llada_jax.table import aligned

HERE, PLAIN = "this_machine/plain_sampler", "plain_sampler"
REPEATS = 3


def plain_sampler_time(
    model: lj.Model, prompt_length: int, sampler: lj.SamplerConfig
) -> Iterator[ResultRow]:
    """Yields the plain sampler's time here: one measured forward times the number of tokens."""
    canvas = prompt_length + sampler.gen_length
    forward = lj.latency_table(model, [canvas], canvas=canvas, repeats=REPEATS)
    yield ResultRow(HERE, forward.ms[0] / 1000 * sampler.gen_length, "s", kind="modelled")


def phone_times(trace: lj.Trace, socs: Sequence[str]) -> Iterator[ResultRow]:
    """Yields the time of a trace's first row on each phone, and the plain sampler's. Raises
    ValueError for a phone without a profile, and for a canvas too long for LLaDA-8B."""
    for phone in [lj.phone(soc) for soc in socs]:
        modelled = phone.time(trace, SHAPE)
        row = partial(ResultRow, unit="s", kind="modelled", trace_source=modelled.source)
        yield row(f"phone/{modelled.soc}/this_run", modelled.seconds, interval=modelled.interval)
        gen_length = trace.settings["sampler"]["gen_length"]
        plain = vanilla(modelled.workload.prompt_length, gen_length)
        timer = phone.timer(SHAPE, plain.canvas)
        yield row(f"phone/{modelled.soc}/{PLAIN}", phone.simulated(plain, timer).seconds)
    for operation in unknown_so_far():
        print(f"warning: {operation}")


def side_by_side(rows: Sequence[ResultRow]) -> str:
    """Returns a table of the run's and the plain sampler's times, here and on each phone."""
    values = {row.name: row.value for row in rows}
    times = {}
    if HERE in values and "compiled_loop" in values:  # the host loop's time includes compilation
        times["this machine (plain sampler modelled)"] = values["compiled_loop"], values[HERE]
    for name, seconds in values.items():
        phone, _, what = name.removeprefix("phone/").partition("/")
        if what == "this_run":
            times[f"{phone}, LLaDA-8B (modelled)"] = seconds, values[f"phone/{phone}/{PLAIN}"]
    lines = []
    for machine, (run, plain) in times.items():
        shown = {"this run": f"{run:.2f} s", "plain sampler": f"{plain:.1f} s"}
        lines.append({"": machine, **shown, "ratio": f"{plain / run:.0f}x"})
    return aligned(lines, ("this run", "plain sampler", "ratio"))
