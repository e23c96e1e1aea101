"""Table 6: the ablation of llada.cpp, and why each row costs what it costs."""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from experiments.harness.estimates import mean_of
from experiments.harness.results import Kind, ResultRow
from experiments.reproduce.chapter import ONE_A_STEP, PAPER, TEXTS, Chapter, chapter, modelled
from llada_jax.phone.dynamics import SOURCE, Decoding
from llada_jax.phone.published_tasks import PublishedTasks
from llada_jax.phone.simulate import simulate
from llada_jax.phone.system import Runtime, System
from llada_jax.phone.workload import Workload, blockwise, vanilla


class Rung(NamedTuple):
    """One row of Table 6: which forwards, on which software."""

    name: str
    published: str
    workloads: tuple[Workload, ...]
    system: System
    source: str
    fitted: bool = False
    kind: Kind = "modelled"


def ladder(world: PublishedTasks, kernels: str = "llada_cpp", cpu: str = "plain") -> list[Rung]:
    """Returns the nine rows of Table 6."""
    prompt = world.task("GSM8K").prompt
    whole, cached = (vanilla(prompt, 128),), (blockwise(prompt, 128),)

    def npu(runtime: Runtime) -> System:
        return System(kernels=kernels, cpu=cpu, runtime=runtime)  # pyright: ignore

    def decoded(**settings: Any) -> tuple[Workload, ...]:
        return world.workloads("GSM8K", 128, Decoding(**settings))

    on_cpu = System(body="cpu", cpu=cpu)  # pyright: ignore[reportArgumentType]
    swap = npu("swap")
    seen: Kind = "informed"
    return [
        Rung("cpu", "CPU", whole, on_cpu, ONE_A_STEP, True),
        Rung("cpu_prefix_kv", "CPU+prefixKV", cached, on_cpu, ONE_A_STEP, kind="repeated"),
        Rung("npu", "NPU", whole, npu("remap"), ONE_A_STEP, kind="repeated"),
        Rung("npu_prefix_kv", "NPU+prefixKV", cached, npu("remap"), ONE_A_STEP, kind=seen),
        Rung("somr", "+SOMR", cached, swap, ONE_A_STEP),
        Rung(
            "mbsd",
            "+MBSD",
            decoded(commit="one", skip_logits=False, refresh=0),
            swap,
            SOURCE,
            kind=seen,
        ),
        Rung("sts", "+STS", decoded(skip_logits=False, refresh=0), swap, SOURCE, kind=seen),
        Rung("sls", "+SLS", decoded(refresh=0), swap, SOURCE, kind=seen),
        Rung("scr", "+SCR", decoded(), swap, SOURCE, True),
    ]


def table6(world: PublishedTasks) -> Chapter:
    """Runs the cumulative ablation, and says why each row costs what it costs."""
    cells = world.figures["fig11_s"]["SM8750"]["GSM8K"]["128"]
    fitted = {"CPU": cells["cpu"], "+SCR": cells["llada_cpp"]}
    published = dict(world.published["table6_s"]["rows"]) | fitted
    rows, words, parts = [], [], {}
    for rung in ladder(world):
        seconds = mean_of(world.seconds("SM8750", rung.system, rung.workloads))
        rows.append(
            modelled(f"table6/{rung.name}", seconds, "s", reference=published[rung.published],
                      source=f"{PAPER}, Table 6", fitted=rung.fitted, kind=rung.kind,
                      trace_source=rung.source)
        )  # fmt: skip
        found = simulate(rung.workloads[0], world.phone("SM8750", rung.system))
        parts[rung.name] = found.parts
        why = TEXTS["table6"]["why"][rung.name]
        words.append(f"`{rung.name}`: {why}; {_largest(found.parts)}.")
    order, revision = _order(rows), _revision(parts["scr"])
    return chapter("table6", rows, words, parts, order=order, revision=revision)


def _largest(parts: dict[str, float], count: int = 3) -> str:
    total = sum(parts.values())
    largest = sorted(parts.items(), key=lambda item: -item[1])[:count]
    return ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in largest)


def _order(rows: list[ResultRow]) -> str:
    """Says which steps of the ladder go the same way as in the paper, and which do not."""
    steps = [
        (after.name.split("/")[1], after.value - before.value,
         (after.reference or 0.0) - (before.reference or 0.0))
        for before, after in pairwise(rows)
    ]  # fmt: skip
    other = [step for step in steps if _sign(step[1]) != _sign(step[2])]
    text = (
        f"Of {len(steps)} steps from row to row, {len(steps) - len(other)} go the way they go in "
        "the paper."
    )
    differing = [
        f"`{name}`: {here:+.2f} s here, {there:+.2f} s there" for name, here, there in other
    ]
    return f"{text} Not so {'; '.join(differing)}." if differing else text


def _sign(change: float) -> int:
    """Returns 0 for what is no more than rounding."""
    return 0 if abs(change) < 1e-9 else int(math.copysign(1, change))


def _revision(parts: Mapping[str, float]) -> str:
    """Says how much of the CPU's revision a run waits for."""
    waited = parts.get("revision (not hidden)", 0.0)
    if not waited:
        return "In the model the CPU's revision is fully hidden behind the NPU's work."
    return f"In the model {waited:.2f} s of the CPU's revision are not hidden."
