"""The planners by name, and ours, for denoising loops: the least stall of a step in a loop without
end, and of plans that stall equally the one that stages less.

Transfers take turns in slots, and all other weights stay mapped. Slots hold little, so a transfer
can start only shortly before its operators run: what is staged hides behind the compute of its own
neighbourhood. So plans spread transfers over the step as the compute is: many small ones where
bytes cost time, few large ones where mappings do. They are compared by what each leaves to the next
step, exactly, and with the paper's planner, which is never better.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction

from llada_jax.config import require
from llada_jax.swap.address_space import Budget, Plan, PlanError, in_slots, room_for_weights
from llada_jax.swap.graph import Graph
from llada_jax.swap.greedy_planner import PUBLISHED_SLOT_BYTES, Greedy
from llada_jax.swap.stall_times import TransferWaits, prefix_sums, stall_of, steady_stall, waits_of

LARGEST_OPERATORS = (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Sizes of slots that are tried, in largest operators."""
TRANSFERS = (*range(1, 8), *range(8, 33, 2))
"""Numbers of transfers whose slots are tried."""

Planner = Callable[[Graph, Budget], Plan]
"""Returns a plan within the budget; raises `PlanError`, with the reason, for none."""
Groups = list[list[int]]
"""Operators of each transfer, in order of use."""
Cost = tuple[Fraction, int]
"""Stall of a step, and time of its transfers, ns; smaller is better."""


def steady(graph: Graph, budget: Budget) -> Plan:
    """Returns the best of the plans that are tried. Raises PlanError where no weights fit, or not
    those of the largest operator."""
    everything = in_slots(graph, budget, [], 0)
    if everything is not None:
        return everything
    spread = _Spread(graph, budget)
    tried = sorted(spread.priced(), key=lambda each: each[0])
    fitting = (in_slots(graph, budget, groups, slots) for _, groups, slots in tried)
    found = next((plan for plan in fitting if plan is not None), None)
    if found is None:  # too many buffers: all through one slot takes a single one
        found = in_slots(graph, budget, [[index] for index in spread.weighted], 1)
    plans = [*filter(None, [found]), *_as_published(graph, budget)]
    return min(plans, key=lambda plan: (stall_of(graph, plan), sum(waits_of(graph, plan).ns)))


def _as_published(graph: Graph, budget: Budget) -> Iterator[Plan]:
    for planner in (Greedy(), Greedy(PUBLISHED_SLOT_BYTES)):
        with suppress(PlanError):
            yield planner(graph, budget)


class _Spread:
    """Transfers of a graph in its own order, spread over the step."""

    def __init__(self, graph: Graph, budget: Budget):
        self._graph, self._budget, self._sizes = graph, budget, budget.sizes(graph)
        self._room, _ = room_for_weights(graph, budget)
        self._computed = prefix_sums(graph, range(len(graph)))
        self.weighted = [index for index, size in enumerate(self._sizes) if size]

    def priced(self) -> Iterator[tuple[Cost, Groups, int]]:
        """Yields transfers that fit the room, through two slots or one of several sizes."""
        for n_slots in (2, 1):
            for slot_bytes in self._slot_sizes(n_slots):
                staged = self._spread(slot_bytes, n_slots)
                for across in (False, True) if staged else ():
                    groups = self._grouped(staged, slot_bytes, across)
                    cost = self._cost(groups, n_slots)
                    if cost is not None:
                        yield cost, groups, n_slots

    def _cost(self, groups: Groups, n_slots: int) -> Cost | None:
        """Returns what transfers cost, or None where they do not fit into the room."""
        loads = [sum(self._sizes[index] for index in group) for group in groups]
        slot_bytes, resident = max(loads, default=0), sum(self._sizes) - sum(loads)
        too_large = slot_bytes > self._budget.max_buffer_bytes
        if too_large or resident + n_slots * slot_bytes > self._room or len(groups) <= n_slots:
            return None
        ns = [self._graph.transfer_ns(group) for group in groups]
        after = [groups[j - n_slots][-1] for j in range(len(groups))]
        lag = [int(j < n_slots) for j in range(len(groups))]
        waits = TransferWaits([group[0] for group in groups], ns, after, lag)
        return steady_stall(self._computed, waits), sum(ns)

    def _slot_sizes(self, n_slots: int) -> list[int]:
        """Returns sizes that hold some operators, or with which so many transfers are enough.

        With n slots of S bytes, W - M + n S bytes are staged in a room of M; t transfers of which
        each leaves u bytes of its slot empty stage t (S - u).
        """
        limit = min(self._room // n_slots, self._budget.max_buffer_bytes)
        excess, largest = sum(self._sizes) - self._room, max(self._sizes)
        found = {self._sizes[index] for index in self.weighted}
        found.update(int(factor * largest) for factor in LARGEST_OPERATORS)
        for empty in (0, largest // 2, largest):
            found.update(-(-(excess + (n_slots + t) * empty) // t) for t in TRANSFERS)
        return sorted(size for size in found if size <= limit)

    def _spread(self, slot_bytes: int, n_slots: int) -> list[bool]:
        """Returns which operators to stage, in runs that lie where the compute does.

        The list is empty where slots of this size cannot stage enough.
        """
        sizes = self._sizes
        eligible = [0 < size <= slot_bytes for size in sizes]
        needed = sum(sizes) - (self._room - n_slots * slot_bytes)
        if needed > sum(size for size, ok in zip(sizes, eligible, strict=True) if ok):
            return []
        staged, missing, load = [False] * len(sizes), needed, 0
        total = max(1, self._computed[-1])
        for index in self.weighted:
            size = sizes[index]
            if not (eligible[index] and load and load + size <= slot_bytes and missing > 0):
                middle = self._computed[index] + self._computed[index + 1]
                behind = needed * middle // (2 * total) - (needed - missing)
                load = 0
                if not (eligible[index] and 2 * behind >= min(slot_bytes, missing) > 0):
                    continue
            staged[index], load, missing = True, load + size, missing - size
        for index in reversed(self.weighted):
            if missing > 0 and eligible[index] and not staged[index]:
                staged[index], missing = True, missing - sizes[index]
        return staged

    def _grouped(self, staged: Sequence[bool], slot_bytes: int, across: bool) -> Groups:
        """Returns transfers as large as a slot; `across` residents, or of neighbours."""
        groups: Groups = []
        load = 0
        for index in self.weighted:
            size = self._sizes[index]
            if not staged[index]:
                load = load if across else 0
            elif 0 < load <= slot_bytes - size:
                groups[-1].append(index)
                load += size
            else:
                groups.append([index])
                load = size
        return groups


PLANNERS: Mapping[str, Planner] = {"greedy": Greedy(), "steady": steady}
"""The paper's planner, and ours."""


def planner(name: str) -> Planner:
    """Returns the planner of this name; raises ValueError for an unknown one."""
    require(name in PLANNERS, f"planner is {name!r}; allowed: {', '.join(map(repr, PLANNERS))}")
    return PLANNERS[name]
