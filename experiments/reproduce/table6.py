"""Table 6: the ablation of llada.cpp, and why each row costs what it costs."""

from typing import Any, NamedTuple

from experiments.harness.estimates import mean_of
from experiments.harness.results import Kind
from experiments.reproduce.chapter import ONE_A_STEP, PAPER, TEXTS, Chapter, chapter, modelled
from llada_jax.phone.dynamics import SOURCE, Decoding
from llada_jax.phone.published_tasks import PublishedTasks
from llada_jax.phone.simulate import simulate
from llada_jax.phone.system import System
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


def ladder(world: PublishedTasks) -> list[Rung]:
    """Returns the nine rows of Table 6."""
    prompt = world.task("GSM8K").prompt
    whole, cached = (vanilla(prompt, 128),), (blockwise(prompt, 128),)

    def decoded(**settings: Any) -> tuple[Workload, ...]:
        return world.workloads("GSM8K", 128, Decoding(**settings))

    on_cpu, remap, swap = System(body="cpu"), System(runtime="remap"), System(runtime="swap")
    seen: Kind = "informed"
    return [
        Rung("cpu", "CPU", whole, on_cpu, ONE_A_STEP, True),
        Rung("cpu_prefix_kv", "CPU+prefixKV", cached, on_cpu, ONE_A_STEP, kind="repeated"),
        Rung("npu", "NPU", whole, remap, ONE_A_STEP, kind="repeated"),
        Rung("npu_prefix_kv", "NPU+prefixKV", cached, remap, ONE_A_STEP, kind=seen),
        Rung("somr", "+SOMR", cached, swap, ONE_A_STEP),
        Rung("mbsd", "+MBSD", decoded(commit="one", skip_logits=False, refresh=0), swap, SOURCE,
             kind=seen),
        Rung("sts", "+STS", decoded(skip_logits=False, refresh=0), swap, SOURCE, kind=seen),
        Rung("sls", "+SLS", decoded(refresh=0), swap, SOURCE, kind=seen),
        Rung("scr", "+SCR", decoded(), swap, SOURCE, True),
    ]  # fmt: skip


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
    return chapter("table6", rows, words, parts)


def _largest(parts: dict[str, float], count: int = 3) -> str:
    total = sum(parts.values())
    largest = sorted(parts.items(), key=lambda item: -item[1])[:count]
    return ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in largest)
