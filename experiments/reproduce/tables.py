"""Tables 6 and 7: the ablation of llada.cpp, and which settings fit into the address space."""

from typing import Any, NamedTuple

from experiments.harness.estimates import mean_of
from experiments.harness.results import Kind
from experiments.reproduce.chapter import PAPER, TEXTS, Chapter, chapter, modelled, phone_of
from llada_jax.phone.dynamics import Decoding
from llada_jax.phone.memory import Footprint, footprint
from llada_jax.phone.profile import load_profile
from llada_jax.phone.published_tasks import PublishedTasks
from llada_jax.phone.simulate import simulate
from llada_jax.phone.system import Runtime, System
from llada_jax.phone.workload import Workload, blockwise, vanilla

ADDRESS_SPACE_MIB = (3840, 4096)
"""What is known of the limit on SM8750, whose middle the profile has: so much was mapped at one
time (Seunghui98/nntrainer 52_flash_experts_on_htp_task.md), and more than 32 bits cannot be."""


class Rung(NamedTuple):
    """One row of Table 6: which forwards, on which software."""

    name: str
    published: str
    workloads: tuple[Workload, ...]
    system: System
    kind: Kind = "modelled"


def ladder(world: PublishedTasks) -> list[Rung]:
    """Returns the nine rows of Table 6."""
    prompt = world.task("GSM8K").prompt
    whole, cached = (vanilla(prompt, 128),), (blockwise(prompt, 128),)

    def decoded(**settings: Any) -> tuple[Workload, ...]:
        return world.workloads("GSM8K", 128, Decoding(**settings))

    on_cpu, remap, swap = System(body="cpu"), System(runtime="remap"), System(runtime="swap")
    without_sls = {"skip_logits": False, "refresh": 0}
    return [
        Rung("cpu", "CPU", whole, on_cpu),
        Rung("cpu_prefix_kv", "CPU+prefixKV", cached, on_cpu, "repeated"),
        Rung("npu", "NPU", whole, remap, "repeated"),
        Rung("npu_prefix_kv", "NPU+prefixKV", cached, remap, "informed"),
        Rung("somr", "+SOMR", cached, swap),
        Rung("mbsd", "+MBSD", decoded(commit="one", **without_sls), swap, "informed"),
        Rung("sts", "+STS", decoded(**without_sls), swap, "informed"),
        Rung("sls", "+SLS", decoded(refresh=0), swap, "informed"),
        Rung("scr", "+SCR", decoded(), swap),
    ]


def table6(world: PublishedTasks) -> Chapter:
    """Runs the cumulative ablation, and says why each row costs what it costs."""
    cells = world.figures["fig11_s"]["SM8750"]["GSM8K"]["128"]
    fitted = {"CPU": cells["cpu"], "+SCR": cells["llada_cpp"]}
    published = dict(world.published["table6_s"]["rows"]) | fitted
    rows, words, parts = [], [], {}
    for rung in ladder(world):
        phone = phone_of("llada_8b", "SM8750", rung.system)
        seconds = mean_of([*map(phone.latency, rung.workloads)])
        rows.append(
            modelled(f"table6/{rung.name}", seconds, "s", reference=published[rung.published],
                      source=f"{PAPER}, Table 6", fitted=rung.published in fitted,
                      kind=rung.kind, trace_source=rung.workloads[0].source)
        )  # fmt: skip
        parts[rung.name] = simulate(rung.workloads[0], phone).parts
        why = TEXTS["table6"]["why"][rung.name]
        words.append(f"`{rung.name}`: {why}; {_largest(parts[rung.name])}.")
    return chapter("table6", rows, words, parts)


def _largest(parts: dict[str, float]) -> str:
    total, largest = sum(parts.values()), sorted(parts.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in largest)


def table7(world: PublishedTasks) -> Chapter:
    """Says which settings fit into the address space."""
    runtimes: dict[str, Runtime] = {"No SOMR": "remap", "Paging only": "paging", "SOMR": "swap"}
    memory, prompt = load_profile("SM8750").memory, world.task("GSM8K").prompt
    rows, words = [], []
    for setting, batch, target, published in world.published["table7"]["rows"]:
        system, canvas = System(runtime=runtimes[setting]), prompt + target
        found = footprint(system, world.graphs.model, memory, canvas=canvas, rows=batch)
        name = f"table7/{setting.lower().replace(' ', '_')}/{batch}"
        rows.append(
            modelled(name, 1 if found.fits else -1, "runs (1) or fails (-1)", fitted=False,
                      kind="informed", source=f"{PAPER}, Table 7",
                      reference=-1 if published == "failed" else 1)
        )  # fmt: skip
        words.append(f"`{name}`: {_outcome(found, published == 'failed')}.")
    limit = memory.address_space_mib
    return chapter("table7", rows, words, ends=ADDRESS_SPACE_MIB, limit=limit)


def _outcome(found: Footprint, failed: bool) -> str:
    """Says whether a setting runs, and whether that hangs on the limit's place."""
    runs = ("fails", "runs")
    low, high = (runs[found._replace(limit=limit).fits] for limit in ADDRESS_SPACE_MIB)
    met = "as published" if found.fits != failed else "not as published"
    text = f"{runs[found.fits]}, {met}: {found.reason}"
    if low == high:
        return f"{text}; {low} at both ends of the limit's range"
    return f"{text}; it {low} at 3,840 and {high} at 4,096, so the model does not tell"
