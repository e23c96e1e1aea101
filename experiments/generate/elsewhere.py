"""What LLaDA's plain sampler would have taken (all rows in every forward, one token each), and what
both would take on phones, for a model of LLaDA-8B's shape: all of it modelled."""

from collections.abc import Iterator, Sequence
from functools import partial

import llada_jax as lj
from experiments.evaluate.result_rows import SHAPE
from experiments.harness.results import ResultRow, aligned
from llada_jax.phones.graphs import unknown_so_far
from llada_jax.phones.workload import vanilla

HERE, PLAIN = "this_machine/plain_sampler", "plain_sampler"
REPEATS = 3


def plain_sampler_here(
    model: lj.Model, prompt_length: int, sampler: lj.SamplerConfig
) -> Iterator[ResultRow]:
    """Yields its seconds on this machine: those of one forward, measured, for each token."""
    canvas = prompt_length + sampler.gen_length
    forward = lj.latency_table(model, [canvas], canvas=canvas, repeats=REPEATS)
    yield ResultRow(HERE, forward.ms[0] / 1000 * sampler.gen_length, "s", kind="modelled")


def on_phones(trace: lj.Trace, socs: Sequence[str]) -> Iterator[ResultRow]:
    """Yields the seconds of a trace's first row on each phone, and those of the plain sampler.
    Raises ValueError for a phone that has no profile, and where LLaDA-8B could not hold the
    canvas."""
    for phone in [lj.phone(soc) for soc in socs]:
        found = phone.time(trace, SHAPE)
        row = partial(ResultRow, unit="s", kind="modelled", trace_source=found.source)
        yield row(f"phone/{found.soc}/this_run", found.seconds, interval=found.interval)
        gen_length = trace.settings["sampler"]["gen_length"]
        plain = vanilla(found.workload.prompt_length, gen_length)
        timer = phone.timer(SHAPE, plain.canvas)
        yield row(f"phone/{found.soc}/{PLAIN}", phone.simulated(plain, timer).seconds)
    for operation in unknown_so_far():
        print(f"warning: {operation}")


def side_by_side(rows: Sequence[ResultRow]) -> str:
    """Shows the run's time beside the plain sampler's, here and on each phone, as a table."""
    values = {row.name: row.value for row in rows}
    times = {}
    if HERE in values:
        here = values.get("compiled_loop", values.get("host_loop_with_compilation"))
        times["this machine"] = here, values[HERE]
    for name, seconds in values.items():
        phone, _, what = name.removeprefix("phone/").partition("/")
        if what == "this_run":
            times[f"{phone}, LLaDA-8B (modelled)"] = seconds, values[f"phone/{phone}/{PLAIN}"]
    lines = []
    for where, (run, plain) in times.items():
        shown = {"this run": f"{run:.2f} s", "plain sampler": f"{plain:.1f} s"}
        lines.append({"": where, **shown, "ratio": f"{plain / run:.0f}x"})
    return aligned(lines, ("this run", "plain sampler", "ratio"))
