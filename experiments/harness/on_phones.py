"""What a decoding run would take on phones, for a model of LLaDA-8B's shape: all of it modelled."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import llada_jax as lj
from experiments.harness.results import ResultRow
from llada_jax.phone.graphs import unknown_so_far
from llada_jax.phone.profile import Profile
from llada_jax.phone.system import System
from llada_jax.phone.uncertainty import with_uncertainty
from llada_jax.phone.workload import Workload, blockwise, vanilla

SHAPE = "llada_8b"
DOUBTED = 8
SHOWN_PARTS = 4


def on_phones(trace: lj.Trace, socs: Sequence[str]) -> Iterator[ResultRow]:
    """Yields rows of a trace's first row on each phone, beside the paper's baselines for its text.

    Raises ValueError for a phone that has no profile, and where LLaDA-8B could not hold the canvas.
    """
    for phone in [lj.phone(soc) for soc in socs]:
        yield from _on_phone(trace, phone)
    for operation in unknown_so_far():
        print(f"warning: {operation}")


def mean_latency(workloads: Sequence[Workload], soc: str) -> tuple[float, tuple[float, float]]:
    """Returns seconds of a workload on a phone, on average, and their 95 % interval.

    The interval is the device model's own doubt, measured on the first `DOUBTED` workloads.
    """
    phone, canvas = lj.phone(soc), max(workload.canvas for workload in workloads)

    def mean(profile: Profile, some: Sequence[Workload]) -> float:
        timer = replace(phone, profile=profile).timer(SHAPE, canvas)
        return sum(map(timer.latency, some)) / len(some)

    seconds = mean(phone.profile, workloads)
    doubt = with_uncertainty(phone.profile, lambda moved: mean(moved, workloads[:DOUBTED])).relative
    return seconds, (seconds * max(0.0, 1 - 1.96 * doubt), seconds * (1 + 1.96 * doubt))


def _on_phone(trace: lj.Trace, phone: lj.Phone) -> Iterator[ResultRow]:
    found = phone.time(trace, SHAPE)

    def row(what: str, value: float, **more) -> ResultRow:
        return ResultRow(
            name=f"phone/{found.soc}/{what}", value=value, unit="s", kind="modelled",
            trace_source=found.source, **more,
        )  # fmt: skip

    yield row("this_run", found.seconds, interval=found.interval)
    for part, seconds in list(found.breakdown.items())[:SHOWN_PARTS]:
        yield row(f"this_run/{part}", seconds)
    prompt, tokens = found.workload.prompt_length, found.workload.tokens
    gen_length = trace.settings["sampler"]["gen_length"]
    baselines = {
        "cpu": (vanilla(prompt, tokens), System(body="cpu")),
        "cpu_with_cache": (blockwise(prompt, tokens), System(body="cpu")),
        "npu": (vanilla(prompt, tokens), System(runtime="remap")),
        "plain_sampler": (vanilla(prompt, gen_length), phone.system),
    }
    for what, (baseline, software) in baselines.items():
        other = replace(phone, system=software)
        timer = other.timer(SHAPE, baseline.canvas)
        yield row(what, other.simulated(baseline, timer).seconds)
