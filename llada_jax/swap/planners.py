"""The `steady` planner for decoding loops, and all planners by name.

`steady` minimizes the stall per step of an endless loop, and then the time of the transfers. Groups
of staged weights use one or two slots in turn; all other weights are resident. A slot is small, so
a transfer can start only shortly before its operators run, and only the compute just before them
can hide it. So the staged weights are spread over the step in proportion to the compute: as many
small transfers if copies are slow, or few large ones if mappings are. Candidates with different
slot sizes are compared by their exact stall, and with the paper's planner, so the result is never
worse.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction

from llada_jax.config import require
from llada_jax.swap.address_space import Budget, Plan, PlanError, in_slots, room_for_weights
from llada_jax.swap.graph import Graph
from llada_jax.swap.greedy_planner import PUBLISHED_SLOT_BYTES, Greedy
from llada_jax.swap.stall_times import TransferWaits, prefix_sums, stall_of, steady_stall, waits_of

_SLOT_FACTORS = (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Candidate sizes of a slot, relative to the largest operator."""
_TRANSFER_COUNTS = (*range(1, 8), *range(8, 33, 2))
"""Candidate numbers of transfers, minus the number of slots. They determine sizes of a slot."""

Planner = Callable[[Graph, Budget], Plan]
"""Returns a plan within the budget. Raises `PlanError` with the reason if there is none."""
Groups = list[list[int]]
"""Indices of the operators of each transfer, in order of use."""
Cost = tuple[Fraction, int]
"""Stall per step and time of the transfers, in ns."""


def steady(graph: Graph, budget: Budget) -> Plan:
    """Returns the best candidate. Raises PlanError if the largest operator does not fit."""
    all_resident = in_slots(graph, budget, [], 0)
    if all_resident is not None:
        return all_resident
    search = _CandidateSearch(graph, budget)
    candidates = sorted(search.candidates(), key=lambda candidate: candidate[0])
    # A candidate fits the bytes of the budget, but may need too many buffers.
    fitting = (in_slots(graph, budget, groups, n_slots) for _, groups, n_slots in candidates)
    best = next((plan for plan in fitting if plan is not None), None)
    if best is None:  # staging everything through one slot needs one buffer only
        best = in_slots(graph, budget, [[index] for index in search.weighted], 1)
    plans = [*filter(None, [best]), *_published_plans(graph, budget)]
    return min(plans, key=lambda plan: (stall_of(graph, plan), sum(waits_of(graph, plan).ns)))


def _published_plans(graph: Graph, budget: Budget) -> Iterator[Plan]:
    for planner in (Greedy(), Greedy(PUBLISHED_SLOT_BYTES)):
        with suppress(PlanError):
            yield planner(graph, budget)


class _CandidateSearch:
    """Candidate groups of staged operators, in the order of the graph."""

    def __init__(self, graph: Graph, budget: Budget):
        self._graph, self._budget, self._sizes = graph, budget, budget.sizes(graph)
        self._room, _ = room_for_weights(graph, budget)
        self._computed = prefix_sums(graph, range(len(graph)))
        # Indices of the operators with weights.
        self.weighted = [index for index, size in enumerate(self._sizes) if size]

    def candidates(self) -> Iterator[tuple[Cost, Groups, int]]:
        """Yields cost, groups and number of slots of the candidates that fit into the room."""
        for n_slots in (2, 1):
            for slot_bytes in self._slot_sizes(n_slots):
                staged = self._choose_staged(slot_bytes, n_slots)
                for across_residents in (False, True) if staged else ():
                    groups = self._group(staged, slot_bytes, across_residents)
                    cost = self._cost(groups, n_slots)
                    if cost is not None:
                        yield cost, groups, n_slots

    def _cost(self, groups: Groups, n_slots: int) -> Cost | None:
        """Returns the cost of a candidate, or None if it does not fit into the room."""
        loads = [sum(self._sizes[index] for index in group) for group in groups]
        slot_bytes, resident = max(loads, default=0), sum(self._sizes) - sum(loads)
        too_large = slot_bytes > self._budget.max_buffer_bytes
        if too_large or resident + n_slots * slot_bytes > self._room or len(groups) <= n_slots:
            return None
        ns = [self._graph.transfer_ns(group) for group in groups]
        freed_at = [groups[j - n_slots][-1] for j in range(len(groups))]
        lag = [int(j < n_slots) for j in range(len(groups))]
        waits = TransferWaits([group[0] for group in groups], ns, freed_at, lag)
        return steady_stall(self._computed, waits), sum(ns)

    def _slot_sizes(self, n_slots: int) -> list[int]:
        """Returns candidate sizes of a slot: of operators, and from candidate numbers of transfers.

        With n slots of S bytes in a room of M bytes, W - M + n S of the W bytes must be staged. If
        t transfers leave u bytes of their slots empty, they stage t (S - u). These are equal for
        S = (W - M + t u) / (t - n). `_TRANSFER_COUNTS` are values of t - n.
        """
        limit = min(self._room // n_slots, self._budget.max_buffer_bytes)
        excess, largest = sum(self._sizes) - self._room, max(self._sizes)
        slot_sizes = {self._sizes[index] for index in self.weighted}
        slot_sizes.update(int(factor * largest) for factor in _SLOT_FACTORS)
        for empty in (0, largest // 2, largest):
            slot_sizes.update(-(-(excess + (n_slots + t) * empty) // t) for t in _TRANSFER_COUNTS)
        return sorted(size for size in slot_sizes if size <= limit)

    def _choose_staged(self, slot_bytes: int, n_slots: int) -> list[bool]:
        """Returns which operators to stage, or an empty list if too few fit into the slots.

        Runs of neighbours that fill a slot are spread over the step. The staged bytes before an
        operator are kept in proportion to the compute before it: a new run begins when they are
        behind by half a slot.
        """
        sizes = self._sizes
        eligible = [0 < size <= slot_bytes for size in sizes]
        needed = sum(sizes) - (self._room - n_slots * slot_bytes)
        if needed > sum(size for size, ok in zip(sizes, eligible, strict=True) if ok):
            return []
        staged, missing, run_bytes = [False] * len(sizes), needed, 0
        total = max(1, self._computed[-1])
        for index in self.weighted:
            size = sizes[index]
            fits_run = eligible[index] and run_bytes and run_bytes + size <= slot_bytes
            if not (fits_run and missing > 0):
                twice_middle = self._computed[index] + self._computed[index + 1]
                behind = needed * twice_middle // (2 * total) - (needed - missing)
                run_bytes = 0
                if not (eligible[index] and 2 * behind >= min(slot_bytes, missing) > 0):
                    continue
            staged[index], run_bytes, missing = True, run_bytes + size, missing - size
        # Rounding may leave some bytes: they are staged at the end of the step.
        for index in reversed(self.weighted):
            if missing > 0 and eligible[index] and not staged[index]:
                staged[index], missing = True, missing - sizes[index]
        return staged

    def _group(self, staged: Sequence[bool], slot_bytes: int, across_residents: bool) -> Groups:
        """Returns the staged operators in groups that fit into a slot.

        Groups consist of neighbours, unless they may continue `across_residents`.
        """
        groups: Groups = []
        group_bytes = 0
        for index in self.weighted:
            size = self._sizes[index]
            if not staged[index]:
                group_bytes = group_bytes if across_residents else 0
            elif 0 < group_bytes <= slot_bytes - size:
                groups[-1].append(index)
                group_bytes += size
            else:
                groups.append([index])
                group_bytes = size
        return groups


PLANNERS: Mapping[str, Planner] = {"greedy": Greedy(), "steady": steady}
"""`greedy` is the planner of the llada.cpp paper, `steady` is optimized for loops."""


def planner(name: str) -> Planner:
    """Returns a planner by name. Raises ValueError for an unknown name."""
    require(name in PLANNERS, f"planner is {name!r}; allowed: {', '.join(map(repr, PLANNERS))}")
    return PLANNERS[name]
