"""What LLaDA's plain sampler would have taken: all rows in every forward, one token each."""

from collections.abc import Iterator, Sequence

import llada_jax as lj
from experiments.harness.results import ResultRow, aligned

HERE, PLAIN = "this_machine/plain_sampler", "plain_sampler"
REPEATS = 3


def plain_sampler_here(
    model: lj.Model, prompt_length: int, sampler: lj.SamplerConfig
) -> Iterator[ResultRow]:
    """Yields its seconds on this machine: those of one forward, measured, for each token."""
    canvas = prompt_length + sampler.gen_length
    forward = lj.latency_table(model, [canvas], canvas=canvas, repeats=REPEATS)
    yield ResultRow(HERE, forward.ms[0] / 1000 * sampler.gen_length, "s", kind="modelled")


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
