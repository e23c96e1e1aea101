"""The fewest forwards in which a model can write a given answer: an oracle for commits.

A rule that never changes a token can lose in two ways: it leaves a mask that the model already
predicts as the final answer has it, or it commits a token that the final answer does not have. The
oracle knows the answer and does neither. The answer is the sequential one: one token per forward,
in the model's own order of confidence.

All tokens on the oracle's canvas are the answer's, so the set of committed positions describes a
state of a block. One forward of the state tells which masks the model predicts right, and any of
them may be committed. More context does not always help, so committing all of them may be worse
than committing some, and the search is over sets:

1. A beam search gives a schedule, and thus an upper bound. It follows the commits of all right
   predictions and of all but one, and the sequential schedule, so that it cannot get stuck.
2. Breadth-first search evaluates every set that any schedule can reach with 1, 2, ... forwards. If
   none of them can be finished with the next forward, one more is needed: a lower bound. The bounds
   meet unless the sets exceed `max_states`.

Blocks are finished from left to right and their final tokens are known, so they are searched one by
one, and bounds add up. The minimum over all subsets of commits is exact: no dominance between sets
is assumed.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from llada_jax.api.decoding import generate, start
from llada_jax.api.model import Model
from llada_jax.config import require
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.rules import Quota
from llada_jax.sampler.runner import Decoding, decode_step
from llada_jax.sampler.state import MASKED, STABLE, DecodeState
from llada_jax.sampler.windows import Blockwise, DualCache, PrefixCache, WholeCanvas

PredictedRight = Callable[[Bool[np.ndarray, "N C"]], Bool[np.ndarray, "N C"]]
"""Given sets of committed positions, which positions a forward predicts as the answer has them."""
FEW_SETS = 8
"""So many sets have a smaller compiled size than `batch_size`: most paths need one at a time."""
MAX_BLOCK = 62
"""Positions of a block: sets are the bits of an int64."""


class BlockSchedule(NamedTuple):
    """Bounds on the forwards of a block of C positions, and the schedule of the upper one."""

    lower: int
    upper: int
    forwards: Int[np.ndarray, " C"]
    """The forward, from 1, that commits each position; 0 for none: after the end of the answer."""
    greedy: int | None
    """Forwards of committing every right prediction at once; None if that gets stuck."""
    states: int
    """Number of sets that were evaluated."""


class Schedule(NamedTuple):
    """The oracle's schedule of an answer."""

    tokens: Int[np.ndarray, " G"]
    """The sequential answer."""
    n_required: int
    """Tokens up to the first one at which decoding stops: those that must be committed."""
    sequential: int
    """Forwards of the sequential schedule."""
    blocks: tuple[BlockSchedule, ...]
    """Blocks up to the one in which the answer ends."""

    @property
    def lower(self) -> int:
        """No schedule of commits needs fewer forwards."""
        return sum(block.lower for block in self.blocks)

    @property
    def upper(self) -> int:
        """The forwards of the best schedule that was found."""
        return sum(block.upper for block in self.blocks)

    @property
    def is_exact(self) -> bool:
        return self.lower == self.upper


def best_schedule(
    model: Model,
    prompt: Iterable[int],
    config: SamplerConfig | None = None,
    *,
    beam: int = 8,
    max_states: int = 1 << 16,
    batch_size: int = 128,
    prompt_length: int = 0,
) -> Schedule:
    """Finds the schedule with the fewest forwards whose answer is the sequential one.

    Args:
      config: Lengths, window and early stop. Its rule is not read. With `eos_early_stop` only the
        tokens up to the first end token must be committed.
      beam: Sets that the search for an upper bound keeps. 0 searches no better schedule than the
        one that commits all right predictions at once.
      max_states: Sets per block that the search for the lower bound may evaluate. 2 to the power
        of `block_length` always suffices.
      batch_size: Sets that share a forward.
      prompt_length: As in `generate`.

    Raises:
      ValueError: As `generate`; and for settings under which a forward does not depend on the set
        of committed positions alone: a sampling temperature, windows that move, and models with
        causal attention or shifted outputs.
    """
    prompt, config = list(prompt), config or SamplerConfig()
    _check(model, config, beam, max_states, batch_size)
    config = config.replace(rule=Quota(), steps=config.gen_length)
    run = generate(model, [prompt], config, trace=True, prompt_length=prompt_length)
    steps = run.trace.commit_steps()[0, len(prompt) : len(prompt) + config.gen_length]
    decoding, state = start(model, [prompt], config, top_logprobs=1, prompt_length=prompt_length)
    answer = run.generated[0]
    canvas = state.tokens.at[:, len(prompt) : len(prompt) + config.gen_length].set(answer)
    ends = np.asarray(decoding.spec.ends(state._replace(tokens=canvas)))[0]
    ends = ends[len(prompt) : len(prompt) + config.gen_length] & config.eos_early_stop
    n_required = int(np.argmax(ends)) + 1 if ends.any() else config.gen_length
    blocks, size = [], config.block_length
    for first in range(0, n_required, size):
        here = slice(first, first + size)
        committed = np.unique(steps[here][steps[here] >= 0])
        order = np.searchsorted(committed, steps[here]) + 1  # forwards of this block, from 1
        required = np.arange(first, first + size) < n_required
        opened, right = _first_forward(decoding, state, answer[here], len(prompt) + first)

        def predicted_right(
            sets: Bool[np.ndarray, "N C"], opened=opened, right=right, first=first, here=here
        ) -> Bool[np.ndarray, "N C"]:
            if not sets.any():
                return np.broadcast_to(right, sets.shape)
            parts = (sets[i : i + batch_size] for i in range(0, len(sets), batch_size))
            most = batch_size if len(sets) > FEW_SETS else FEW_SETS
            args = answer[here], len(prompt) + first, most
            return np.concatenate([_right(decoding, opened, part, *args) for part in parts])

        reference = np.where(steps[here] >= 0, order, 0)
        blocks.append(
            fewest_forwards(predicted_right, reference, required, beam=beam, max_states=max_states)
        )
        state = _with_block(opened, answer[here], len(prompt) + first, config.block_length)
    return Schedule(answer, n_required, int(run.nfe[0]), tuple(blocks))


def _check(
    model: Model, config: SamplerConfig, beam: int, max_states: int, batch_size: int
) -> None:
    for name, value, least in (
        ("beam", beam, 0),
        ("max_states", max_states, 1),
        ("batch_size", batch_size, 1),
    ):
        require(value >= least, f"{name} is {value}; allowed: {least} or more")
    windows = (WholeCanvas, PrefixCache, DualCache, Blockwise)
    require(
        type(config.window) in windows,
        f"window is {config.window}; allowed: {', '.join(w.__name__ for w in windows)}",
    )
    require(config.temperature == 0, f"temperature is {config.temperature}; allowed: 0")
    require(config.drafter is None, f"drafter is {config.drafter}; allowed: None")
    length = config.block_length
    require(length <= MAX_BLOCK, f"block_length is {length}; allowed: 1 to {MAX_BLOCK}")
    plain = model.config.causal is None and not model.config.shift_logits
    require(
        plain and model.config.block_length is None,
        "the model is causal, shifts its outputs or has blocks of its own; allowed: bidirectional",
    )


def _first_forward(
    decoding: Decoding, state: DecodeState, answer: Int[np.ndarray, " C"], at: int
) -> tuple[DecodeState, Bool[np.ndarray, " C"]]:
    """Runs the first forward of a block, which also fills the cache. Returns the state with that
    cache and the block still masked, and which positions were predicted right."""
    after, _ = _step(decoding, state)
    assert after.top is not None
    right = np.asarray(after.top.ids[0, at : at + len(answer), 0]) == answer
    kept = {name: getattr(after, name) for name in ("cache", "n_cached", "nfe")}
    return state._replace(block_step=state.block_step + 1, **kept), right


def _right(
    decoding: Decoding,
    opened: DecodeState,
    sets: Bool[np.ndarray, "N C"],
    answer: Int[np.ndarray, " C"],
    at: int,
    most: int,
) -> Bool[np.ndarray, "N C"]:
    padded = np.zeros((most, len(answer)), bool)  # one compiled size
    padded[: len(sets)] = sets
    ids = _predict(decoding, opened, padded, answer.astype(np.int32), np.int32(at))
    return (np.asarray(ids) == answer)[: len(sets)]


_step = jax.jit(decode_step)


@jax.jit
def _predict(
    decoding: Decoding,
    opened: DecodeState,
    sets: Bool[Array, "B C"],
    answer: Int[Array, " C"],
    at: Int[Array, ""],
) -> Int[Array, "B C"]:
    """Returns the predictions of a block's masks, with the answer's tokens in each set. All sets
    share the state of the one sequence, in which the block is masked."""
    opened = jax.tree.map(lambda leaf: jnp.repeat(leaf, len(sets), axis=0), opened)
    after, _ = decode_step(decoding, _with_sets(opened, sets, answer, at, decoding.spec.mask_id))
    assert after.top is not None
    return jax.lax.dynamic_slice_in_dim(after.top.ids[..., 0], at, sets.shape[1], axis=1)


def _with_sets(
    state: DecodeState,
    sets: Bool[Array, "B C"],
    answer: Int[Array, " C"],
    at: Int[Array, ""] | int,
    mask_id: int,
) -> DecodeState:
    tokens = jnp.where(sets, answer, mask_id).astype(state.tokens.dtype)
    status = jnp.where(sets, STABLE, MASKED).astype(state.status.dtype)
    put = jax.lax.dynamic_update_slice_in_dim
    return state._replace(
        tokens=put(state.tokens, tokens, at, axis=1), status=put(state.status, status, at, axis=1)
    )


def _with_block(
    opened: DecodeState, answer: Int[np.ndarray, " C"], at: int, block_length: int
) -> DecodeState:
    """Returns the state at the start of the next block, as `decide` would leave it."""
    everything = jnp.ones((1, len(answer)), bool)
    state = _with_sets(opened, everything, jnp.asarray(answer), at, 0)
    return state._replace(
        block=state.block + 1,
        block_step=jnp.zeros_like(state.block_step),
        block_masks=jnp.full_like(state.block_masks, block_length),
    )


def fewest_forwards(
    predicted_right: PredictedRight,
    reference: Int[np.ndarray, " C"],
    required: Bool[np.ndarray, " C"],
    *,
    beam: int = 8,
    max_states: int = 1 << 16,
) -> BlockSchedule:
    """Searches the schedules of one block; the algorithm is in the module's docstring.

    Args:
      predicted_right: A deterministic function; it is called once for each set.
      reference: A schedule that is possible: the forward, from 1, that commits each position, or 0
        for none. It bounds the forwards, whatever `predicted_right` returns for its sets.
      required: Positions that must be committed.
      beam, max_states: As in `best_schedule`.
    """
    size = len(reference)
    require(size <= MAX_BLOCK, f"the block has {size} positions; allowed: 1 to {MAX_BLOCK}")
    search = _Search(predicted_right, size, _pack(required[None])[0])
    greedy = search.greedy()
    path = [_committed_by(reference, k) for k in range(int(reference[required].max()))]
    if greedy is not None and len(greedy) < len(path):
        path = greedy
    if beam:
        path = search.beam(path, reference, beam)
    lower, shorter = search.prove(len(path), max_states)
    path = shorter or path
    forwards = np.zeros(size, int)
    if path == []:
        return BlockSchedule(0, 0, forwards, 0, len(search.known))
    last = search.known.get(path[-1], 0) | search.required
    bits = 1 << np.arange(size)
    for index, after in enumerate([*path[1:], path[-1] | last]):
        forwards[((after & ~path[index]) & bits) > 0] = index + 1
    return BlockSchedule(
        lower, len(path), forwards, None if greedy is None else len(greedy), len(search.known)
    )


class _Search:
    """Sets are integers; `known` has the right predictions of each set that was evaluated. A path
    is the list of sets before each forward, and `required` holds after its last one."""

    def __init__(self, predicted_right: PredictedRight, size: int, required: int) -> None:
        self.size, self.required = size, required
        self.known: dict[int, int] = {}
        self._predicted_right = predicted_right

    def evaluate(self, sets: Iterable[int]) -> None:
        new = [s for s in dict.fromkeys(sets) if s not in self.known]
        if new:
            unpacked = (np.array(new, np.int64)[:, None] >> np.arange(self.size)) & 1 > 0
            right = self._predicted_right(unpacked) & ~unpacked
            self.known.update(zip(new, _pack(right), strict=True))

    def finishes(self, state: int) -> bool:
        """Returns whether the next forward can commit all that is required."""
        return not self.required & ~(state | self.known[state])

    def greedy(self) -> list[int] | None:
        """Returns the path that commits every right prediction; None if there is none."""
        path, state = [], 0
        while True:
            self.evaluate([state])
            path.append(state)
            if self.finishes(state):
                return path
            if not self.known[state]:
                return None
            state |= self.known[state]

    def beam(self, best: list[int], reference: Int[np.ndarray, " C"], width: int) -> list[int]:
        """Returns a path that is at most as long as `best`."""
        parents, level = {0: -1}, [0]
        for depth in range(1, len(best)):
            self.evaluate(level)
            done = [state for state in level if self.finishes(state)]
            if done:
                return _path(parents, done[0])
            if depth == len(best) - 1:
                break
            children: dict[int, int] = {}
            for state in level:
                everything = state | self.known[state]
                for child in (everything, *(everything & ~bit for bit in _bits(self.known[state]))):
                    if child != state:
                        children.setdefault(child, state)
            before = _committed_by(reference, depth - 1)
            if before in level:
                children.setdefault(_committed_by(reference, depth), before)
            self.evaluate(children)
            alive = [child for child in children if self.known[child]]  # others get stuck
            level = sorted(alive, key=lambda child: -(child | self.known[child]).bit_count())
            level = level[:width]
            for child in level:
                parents.setdefault(child, children[child])
        return best

    def prove(self, upper: int, max_states: int) -> tuple[int, list[int] | None]:
        """Returns a lower bound, at most `upper`, and a path of that length if it is shorter."""
        parents, level = {0: -1}, [0]
        for depth in range(1, upper):
            # Large sets first: they are the most likely to finish.
            level.sort(key=lambda state: -state.bit_count())
            for first in range(0, len(level), 1024):
                part = level[first : first + 1024]
                self.evaluate(part)
                done = [state for state in part if self.finishes(state)]
                if done:
                    return depth, _path(parents, done[0])
            if depth == upper - 1:
                return upper, None
            after: dict[int, int] = {}
            for state in level:
                for subset in _subsets(self.known[state], max_states):
                    if (child := state | subset) not in parents:
                        after.setdefault(child, state)
                if len(parents) + len(after) > max_states:
                    return depth + 1, None
            parents |= after
            level = list(after)
        return upper, None


def _pack(flags: Bool[np.ndarray, "N C"]) -> list[int]:
    return (flags.astype(np.int64) << np.arange(flags.shape[1])).sum(axis=1).tolist()


def _committed_by(schedule: Int[np.ndarray, " C"], forward: int) -> int:
    """Returns the set that a schedule has committed after so many forwards."""
    return _pack(((schedule > 0) & (schedule <= forward))[None])[0]


def _bits(state: int) -> Iterator[int]:
    while state:
        yield state & -state
        state &= state - 1


def _subsets(state: int, most: int) -> Iterator[int]:
    """Yields the subsets of a set that are not empty, at most `most` + 1 of them."""
    subset, count = state, 0
    while subset and count <= most:
        yield subset
        subset, count = (subset - 1) & state, count + 1


def _path(parents: dict[int, int], state: int) -> list[int]:
    path = [state]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return path[::-1]
