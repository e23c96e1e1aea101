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
    here = values.get("compiled_loop", values.get("host_loop_with_compilation"))
    lines = [_line("this machine", here, values[HERE])] if HERE in values else []
    for name, seconds in values.items():
        phone, _, what = name.removeprefix("phone/").partition("/")
        if what == "this_run":
            plain = values[f"phone/{phone}/{PLAIN}"]
            lines.append(_line(f"{phone}, LLaDA-8B (modelled)", seconds, plain))
    return aligned(lines, ("this run", "plain sampler", "ratio"))


def _line(where: str, run: float | None, plain: float) -> dict[str, str]:
    assert run is not None
    return {
        "": where,
        "this run": f"{run:.2f} s",
        "plain sampler": f"{plain:.1f} s",
        "ratio": f"{plain / run:.0f}x",
    }
