"""What a decoding run would take on phones, for a model of LLaDA-8B's shape: all of it modelled."""

from collections.abc import Iterator, Sequence

import llada_jax as lj
from experiments.harness.results import ResultRow
from llada_jax.phone.graphs import graphs_of, unknown_so_far
from llada_jax.phone.profile import Profile, load_profile
from llada_jax.phone.simulate import ForwardTimer, System, simulate
from llada_jax.phone.uncertainty import with_uncertainty
from llada_jax.phone.workload import Workload, blockwise, from_trace, vanilla

SHAPE = "llada_8b"
DOUBTED = 8


def on_phones(trace: lj.Trace, socs: Sequence[str]) -> Iterator[ResultRow]:
    """The first row of a trace on each phone, beside the paper's baselines for the same texts.

    The same forwards, of a larger model: `as_if`. Raises ValueError for a phone that has no
    profile, and where LLaDA-8B could not hold the canvas.
    """
    profiles = [load_profile(soc) for soc in socs]
    workload = as_if_llada_8b(trace)
    for profile in profiles:
        yield from _on_phone(workload, profile)
    for operation in unknown_so_far():
        print(f"warning: {operation}")


def as_if_llada_8b(trace: lj.Trace, row: int = 0) -> Workload:
    """The forwards of one row of a trace, for a model of LLaDA-8B's shape."""
    return from_trace(trace, graphs_of(SHAPE).model, row, as_if=True)


def mean_latency(workloads: Sequence[Workload], soc: str) -> tuple[float, tuple[float, float]]:
    """Seconds of a workload on a phone, on average, and their 95 % interval.

    The interval is the device model's own doubt, measured on the first `DOUBTED` workloads.
    """
    graphs, canvas = graphs_of(SHAPE), max(workload.canvas for workload in workloads)

    def mean(profile: Profile, some: Sequence[Workload]) -> float:
        phone = ForwardTimer(graphs, profile, System(), canvas)
        return sum(map(phone.latency, some)) / len(some)

    profile = load_profile(soc)
    seconds = mean(profile, workloads)
    doubt = with_uncertainty(profile, lambda moved: mean(moved, workloads[:DOUBTED])).relative
    return seconds, (seconds * max(0.0, 1 - 1.96 * doubt), seconds * (1 + 1.96 * doubt))


def _on_phone(workload: Workload, profile) -> Iterator[ResultRow]:
    graphs, system = graphs_of(SHAPE), System()
    name = f"phone/{profile.soc}"

    def row(what: str, value: float, **more) -> ResultRow:
        return ResultRow(
            name=f"{name}/{what}", value=value, unit="s", kind="modelled",
            trace_source=workload.source, **more,
        )  # fmt: skip

    sure = with_uncertainty(
        profile,
        lambda moved: ForwardTimer(graphs, moved, system, workload.canvas).latency(workload),
    )
    spread = 1.96 * sure.deviation
    bounds = max(0.0, sure.seconds - spread), sure.seconds + spread
    yield row("this_run", sure.seconds, interval=bounds)
    found = simulate(workload, graphs, profile, system)
    largest = sorted(found.parts.items(), key=lambda item: -item[1])[:4]
    for part, seconds in largest:
        yield row(f"this_run/{part}", seconds)
    prompt, tokens = workload.prompt_length, workload.tokens
    baselines = {
        "cpu": (vanilla(prompt, tokens), System(body="cpu")),
        "cpu_with_cache": (blockwise(prompt, tokens), System(body="cpu")),
        "npu": (vanilla(prompt, tokens), System(runtime="remap")),
    }
    for what, (baseline, software) in baselines.items():
        phone = ForwardTimer(graphs, profile, software, baseline.canvas)
        yield row(what, phone.latency(baseline))
