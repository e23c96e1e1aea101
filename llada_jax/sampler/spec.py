"""What a run needs to know of a model and a sampler's settings, and the state that it starts from.

A `StepSpec` joins a model's shape with the sampler's settings, and answers what follows from both:
which rows a model needs, for which sizes programs are compiled, how long decoding may take. The
lengths of the prompts decide where blocks begin: `layout_of` and `new_state`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key

from llada_jax.config import ModelConfig, Parity, require, require_counts
from llada_jax.constraint.reach import Grammar
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.rules.rule import Rule, RuleState, Sizes
from llada_jax.sampler.state import (
    MASKED,
    PAD,
    PROMPT,
    DecodeState,
    PreviousScores,
    RuleMemory,
    TopTokens,
)
from llada_jax.sampler.windows.window import CanvasLayout, Window, WindowContext, doubling
from llada_jax.types import KVCache, Scores

Attention = Literal["all", "sampler_block", "model_block", "finished", "filled"]
KeptScores = Literal[False, "scores", "margins"]
LENGTH_MULTIPLE = 32
"""Canvases are padded to such a length, so that prompts of similar length share compiled programs.
It is also the height of a tile of the NPU's matrix unit."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StepSpec:
    """A model's shape, which is static, and settings with numbers as leaves."""

    model: ModelConfig = field(metadata={"static": True})
    config: SamplerConfig
    measures: bool = field(default=False, metadata={"static": True})
    """Whether the backend's head measures the requests of rules and constraints."""
    keeps_scores: KeptScores = field(default=False, metadata={"static": True})
    """Whether the record of a step has every score of its forward, or its margins as well."""
    top_logprobs: int = field(default=0, metadata={"static": True})
    """Number of top tokens that the state keeps of each position."""
    grammar: Grammar | None = None  # the texts that are allowed; None allows all

    @property
    def rule(self) -> Rule:
        return self.config.rule

    @property
    def window(self) -> Window:
        return self.config.window

    @property
    def mask_id(self) -> int:
        assert self.config.mask_id is not None
        return self.config.mask_id

    @property
    def shift(self) -> int:
        """How many positions before a token the row is that predicts it."""
        return int(self.model.shift_logits)

    @property
    def whole_block(self) -> int | None:
        """The model's block, if a window runs every row of it; drafts reach into a part."""
        return None if self.window.drafts else self.model.block_length

    def model_blocks(self, state: DecodeState, positions: Array) -> Int[Array, "B R"]:
        """Returns the block of each position in the model's attention; negative ones in the prompt
        if blocks start at its end."""
        assert self.model.block_length is not None
        return (positions - self._first_block(state)[:, None]) // self.model.block_length

    def block_floor(self, state: DecodeState, position: Int[Array, " B"]) -> Int[Array, " B"]:
        """Rounds positions down to the start of a block that has to run as a whole."""
        block, first = self.whole_block or 1, self._first_block(state)
        return jnp.maximum(first + (position - first) // block * block, 0)

    def _first_block(self, state: DecodeState) -> Int[Array, " B"]:
        from_prompt = self.config.parity.block_origin == "prompt"
        return state.origin if from_prompt else jnp.zeros_like(state.origin)

    @property
    def attention(self) -> Attention:
        """The order of positions in which a row sees its own and lower ones; `all` for none."""
        if self.model.block_length is not None:
            return "model_block"
        if self.model.causal is not None:
            return self.model.causal
        return "sampler_block" if self.window.caches_finished else "all"

    @property
    def starts_blocks_alone(self) -> bool:
        """Whether the first token of a block is committed before the rest of the block is run."""
        if self.model.causal == "finished":
            return True
        blocks = self.shift > 0 and self.whole_block is not None
        return blocks and self.window.caches_finished and not self.rule.may_wait

    def needs(self, *names: str) -> bool:
        """Returns whether the rule needs any of these fields of an observation."""
        return not self.rule.needs.isdisjoint(names)

    @property
    def rule_top_k(self) -> int:
        """Number of top tokens that the rule observes."""
        return self.rule.top_k if self.needs("top_k") else 0

    @property
    def shadows(self) -> bool:
        """Whether visible tokens of the window are scored by extra rows."""
        return self.rule.revises and self.rule.rescore == "shadow"

    def window_context(self, state: DecodeState | None = None) -> WindowContext:
        """Returns the settings that windows know, and the tokens that will be rescored."""
        config, rule = self.config, self.rule
        return WindowContext(
            block_length=config.block_length,
            shift=self.shift,
            min_commits=config.min_commits,
            latency_table=config.latency_table,
            refresh_rows=rule.refresh_rows if config.refreshes else 0,
            shadows=self.shadows,
            rescorable=None if state is None else rule.rescorable(state, config.eos_id),
        )

    def sizes(self, batch: int, length: int) -> Sizes:
        """Returns the lengths of the axes for a batch of canvases of `length`."""
        model = self.model
        return Sizes(batch, self.config.block_length, length, model.vocab_size, model.width)

    def ends(self, state: DecodeState) -> Bool[Array, "B L"]:
        """Marks the tokens at which a sequence stops, if `eos_early_stop` is set."""
        if not self.config.eos_early_stop:
            return jnp.zeros(state.tokens.shape, bool)
        assert self.config.eos_id is not None
        ids = jnp.array([self.config.eos_id, *self.model.stop_ids], jnp.int32)
        return jnp.isin(state.tokens, ids)

    def max_extra_rows(self, length: int) -> int:
        """Returns the most rows outside the window, in a canvas of `length`."""
        by_rows = self.config.refreshes and not self.config.has_worker
        refreshed = by_rows * 2 * self.rule.refresh_rows
        visible = self.window.max_visible(length, self.window_context())
        return self.shadows * visible + refreshed

    def buckets(self, layout: CanvasLayout) -> tuple[int, ...]:
        """Returns the row counts that forwards are compiled for, ascending.

        One more row if outputs are shifted: a block's first token is predicted one position
        earlier. If attention is causal between blocks, whole blocks are run.
        """
        context, block = self.window_context(), self.whole_block
        sizes = self.window.sizes(layout, context)
        if self.config.drafter is not None:  # an anchor alone, or with drafts; and the prompt
            sizes = {1, context.block_length, max(sizes)}
        elif self.model.causal == "finished" and context.block_length == 1:
            sizes = set(sizes) - {2}  # each forward commits a token: two are never open
        if block is not None:
            sizes = {-(-size // block) * block for size in sizes} | {2 * block}
        buckets = {min(size + self.shift, layout.length) for size in sizes}
        if extra := self.max_extra_rows(layout.length):
            buckets |= set(doubling(context.block_length, max(buckets) + extra))
        return tuple(sorted(buckets))

    def max_queries(self, length: int) -> int:
        """Returns the most positions that one step scores."""
        config, window = self.config, self.window
        if self.rule.verifies:  # a block of drafts, or what follows the verified ones
            return min(config.block_length, length)
        visible = window.max_visible(length, self.window_context())
        queries = visible if window.drafts else config.block_length
        if self.needs("drafts") and window.runs_later_blocks:
            queries = length
        queries += self.rule.revises * visible
        queries += config.refreshes * self.rule.refresh_rows
        return min(queries, length)

    def head_sizes(self, length: int) -> tuple[int, ...]:
        """Returns the numbers of positions that a head is compiled for, ascending."""
        smallest = max(8, self.config.block_length // 4)  # fewer rows take about as long as 8
        if self.grammar is not None:  # compiled for each number of classes
            smallest = max(8, self.config.block_length)
        return doubling(smallest, self.max_queries(length))

    @property
    def max_block_steps(self) -> int:
        """The largest number of forwards that a block may take."""
        if self.rule.may_wait:
            return self.config.steps_per_block
        return self.rule.max_block_steps(self.config.block_length)

    def max_steps(self, n_blocks: int) -> int:
        """Returns the largest number of forwards that a canvas of `n_blocks` may take."""
        return n_blocks * self.max_block_steps + self.rule.end_steps

    def check(self) -> None:
        """Raises ValueError if the model does not support the settings."""
        config, window, accept = self.config, self.window, self.rule.name
        extra = {"shadow": self.shadows, "refresh": config.refreshes}
        kind = next((kind for kind, runs in extra.items() if runs), None)
        require(
            not self.shift or kind is None,
            f"the model's outputs are shifted, and {kind} rows need outputs at their own "
            "positions; allowed: revision with rescore 'token' and refresh 'none'",
        )
        block, own = self.model.block_length, config.block_length
        whole = block is None or block % own == 0
        require(whole, f"block_length is {own}; allowed: a divisor of the model's block, {block}")
        require(
            block in (None, own) or not (self.window.drafts or kind or self.rule.revises),
            f"block_length is {own}, a part of the model's block ({block}); allowed: that, or a "
            "rule that never changes a token, without drafts",
        )
        require(
            not (self.shift and block and self.window.drafts),
            "window is 'multi_block', and the block before predicts a block's first token (shifted "
            "outputs, attention that is causal between blocks); allowed: 'by_cache'",
        )
        causal = self.model.causal
        require(
            causal is None or window.caches_finished or (causal == "filled" and not window.caches),
            f"cache is {window.cache!r} and the model's attention is causal; allowed: 'blockwise'",
        )
        require(
            causal is None or (not window.drafts and (self.rule.verifies or not self.rule.revises)),
            f"the model's attention is causal, and window is {window.name!r} and accept "
            f"{accept!r}; allowed: 'by_cache', and rules that never change a token",
        )
        require(
            not window.slides or (block is None and causal != "finished"),
            "window is 'sliding', and the model's blocks begin where it was trained to begin them; "
            "allowed: 'by_cache'",
        )
        require(
            causal == "finished" or not self.rule.verifies,
            f"accept is {accept!r} and the model's finished tokens do not predict the next one; "
            "allowed: another rule",
        )
        needs = self.rule.head_needs
        require(
            not needs or self.measures,
            f"rule {type(self.rule).__name__} needs {', '.join(sorted(needs))}, which the backend "
            "does not compute; allowed: another backend, as xla, or rules without these needs",
        )
        require_counts(self, "top_logprobs", least=0)
        require(
            self.measures or self.top_logprobs <= int(config.temperature == 0),
            f"top_logprobs is {self.top_logprobs} and the backend reports the predicted token "
            "alone; allowed: 0, or 1 at temperature 0",
        )


def new_state(
    spec: StepSpec,
    prompts: Sequence[np.ndarray],
    keys: Key[Array, " B"],
    cache: KVCache,
    length: int,
    *,
    infill: bool = False,
) -> DecodeState:
    """Returns the state of canvases of `length` that start with the prompts, followed by masks.

    With `infill` the masks in the prompts are the holes, and nothing is appended.
    """
    config, model = spec.config, spec.model
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    origin, end = _bounds(lengths, config, model, infill=infill)
    batch = len(prompts)
    tokens = np.full((batch, length), config.mask_id, np.int32)
    status = np.full((batch, length), PAD, np.int8)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
        status[row, : len(prompt)] = PROMPT
        status[row, len(prompt) : end[row]] = MASKED
    if infill:
        status = np.where((status == PROMPT) & (tokens == config.mask_id), MASKED, status)
    masked = status == MASKED
    block = (np.argmax(masked, axis=1) - origin) // config.block_length
    in_block = (np.arange(length) - origin[:, None]) // config.block_length == block[:, None]
    counters = ("block_step", "unmasked_steps", "n_cached", "nfe")
    fields: dict[str, Any] = dict(
        {name: np.zeros(batch, np.int32) for name in counters},  # one array each: loops donate them
        tokens=tokens,
        status=status.astype(np.int8),
        confidence=np.zeros((batch, length), np.float32),
        filled=np.zeros((batch, length), bool),
        end=end,
        origin=origin,
        block=block.astype(np.int32),
        block_masks=(masked & in_block).sum(axis=1, dtype=np.int32),
        done=~masked.any(axis=1),
        fault=np.full(batch, -1, np.int32),
    )
    if k := spec.top_logprobs:
        ids = jnp.full((batch, length, k), -1, jnp.int32)
        fields["top"] = TopTokens(ids, jnp.full(ids.shape, -jnp.inf, jnp.float32))
    memory = _new_memory(spec, batch, length)
    return DecodeState(**jax.device_put(fields), key=keys, cache=cache, rule=memory)


def _new_memory(spec: StepSpec, batch: int, length: int) -> RuleMemory:
    """Returns the rule's memory before the first forward.

    Raises ValueError if an array of the rule's state does not have the batch as first axis.
    """
    rule, dtype = spec.rule, spec.config.parity.confidence_dtype
    sizes = spec.sizes(batch, length)
    state = rule.init(sizes)
    name = type(rule).__name__
    require(isinstance(state, RuleState), f"rule {name}: init gives {state!r}; allowed: RuleState")
    for leaf in jax.tree.leaves(state):
        shape = np.shape(leaf)
        require(
            shape[:1] == (batch,),
            f"rule {name}: init gives an array of shape {shape}; allowed: a first axis of the "
            f"batch ({batch})",
        )
    state = jax.tree.map(jnp.array, state)  # a copy of each: loops donate them
    previous = drafts = remasks = None
    if spec.needs("divergence"):
        hidden = jnp.zeros((batch, sizes.block, sizes.width), jnp.float32)
        previous = PreviousScores(hidden, jnp.zeros(hidden.shape[:2], bool))
    if spec.needs("drafts"):
        nothing = (jnp.zeros((batch, length), dtype) for _ in range(3))
        drafts = Scores(jnp.full((batch, length), -1, jnp.int32), *nothing)
    if rule.counts_remasks:
        remasks = jnp.zeros((batch, length), jnp.int32)
    return RuleMemory(state, jax.tree.map(jnp.copy, state.block), previous, drafts, remasks)


def sequence_bounds(
    lengths: np.ndarray,
    gen_length: int,
    block_length: int,
    model_block: int | None,
    parity: Parity,
    *,
    infill: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first position of block 0 and one past the last position of each sequence.

    Blocks count from the end of the prompt (LLaDA). If the model's attention is block-causal, they
    are aligned to absolute positions: the first one may hold the prompt's tail (LLaDA2), and the
    generation ends with a whole block. Its length is only known then, so the surplus is cut off at
    the end. `Parity` has the alternatives of some releases.

    Args:
      lengths: Tokens of each prompt, [B].
      model_block: The block length of the model's attention, or None if it is not block-causal.
    """
    if infill:
        return np.zeros_like(lengths), lengths
    end = lengths + gen_length
    if model_block is None:
        return lengths, end
    first = lengths if parity.block_origin == "prompt" else np.zeros_like(lengths)
    if parity.last_block == "whole":
        end += (first - end) % model_block
    return lengths - (lengths - first) % block_length, end


def _bounds(
    lengths: np.ndarray, config: SamplerConfig, model: ModelConfig, *, infill: bool
) -> tuple[np.ndarray, np.ndarray]:
    return sequence_bounds(
        lengths,
        config.gen_length,
        config.block_length,
        model.block_length,
        config.parity,
        infill=infill,
    )


def layout_of(
    lengths: np.ndarray, config: SamplerConfig, model: ModelConfig, *, infill: bool
) -> CanvasLayout:
    """Returns the `CanvasLayout` of prompts of these lengths."""
    origin, end = _bounds(lengths, config, model, infill=infill)
    n_blocks = -(-(end - origin) // config.block_length)
    return CanvasLayout(
        length=_padded(int(end.max())),
        prompt_length=0 if infill else _padded(int(lengths.max())),
        n_blocks=int(n_blocks.max()),
    )


def _padded(length: int) -> int:
    return -(-length // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
