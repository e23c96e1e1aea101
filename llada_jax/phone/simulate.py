"""A decoding run on a phone: the times and energies of its forwards, summed.

The step is the unit: the CPU's revisions are merged at its end (the paper's delayed merge), so no
lane reaches into the next one. Equal forwards therefore take equal time and are simulated once.
"""

from typing import NamedTuple

from llada_jax.phone.cost import UnknownOperation
from llada_jax.phone.energy import Energy, energy_of, total_energy
from llada_jax.phone.forward_timer import ForwardTimer, GraphsLike, SamplingEngineLike
from llada_jax.phone.routed_layers import Routing
from llada_jax.phone.profile import Profile
from llada_jax.phone.system import System
from llada_jax.phone.timeline import Timeline, breakdown
from llada_jax.phone.transfers import WeightTransfers
from llada_jax.phone.workload import Forward, Workload, distinct


class Simulated(NamedTuple):
    """A run on a phone: all numbers are modelled."""

    workload: Workload
    seconds: float
    parts: dict[str, float]
    """Where the seconds go; they add up to `seconds`."""
    energy: Energy
    steps: dict[Forward, Timeline]
    """Each kind of forward alone."""
    unknown: tuple[UnknownOperation, ...]
    source: str
    """What the numbers rest on: the workload's source, and of a mixture its routing."""
    experts_per_layer: float | None = None
    """Different experts that a routed layer runs in a forward, on average; None without experts."""

    def timeline(self, first: int = 0, last: int | None = None) -> Timeline:
        """Returns the events of some forwards, one after the other; the first one starts at 0."""
        events, now = [], 0.0
        chosen = list(enumerate(self.workload.forwards))[first:last]
        for index, forward in chosen:
            step = self.steps[forward]
            for event in step.shifted(now).events:
                task = event.task._replace(name=f"{event.task.name}, step {index}")
                events.append(event._replace(task=task))
            now += step.seconds
        return Timeline(tuple(events))


def simulate(
    workload: Workload,
    graphs: GraphsLike,
    profile: Profile,
    system: System | None = None,
    transfers: WeightTransfers | None = None,
    engine: SamplingEngineLike | None = None,
    routing: Routing | None = None,
) -> Simulated:
    """Returns latency, breakdown and energy of a run: sums over its forwards.

    The arguments are those of `ForwardTimer`.
    """
    timer = ForwardTimer(
        graphs, profile, system or System(), workload.canvas, transfers, engine, routing
    )
    steps: dict[Forward, Timeline] = {}
    parts: dict[str, float] = {}
    energies = []
    for forward, count in distinct(workload.forwards):
        step = steps[forward] = timer.step(forward)
        for name, seconds in breakdown(step).items():
            parts[name] = parts.get(name, 0.0) + count * seconds
        energies.append((energy_of(step, profile.power), count))
    energy = total_energy(energies)
    return Simulated(
        workload,
        energy.seconds,
        parts,
        energy,
        steps,
        timer.unknown,
        workload.source + (f"; {timer.routing.source}" if timer.routing else ""),
        timer.experts_per_layer(workload),
    )
