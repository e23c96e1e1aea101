"""A decoding run: checked prompts, and what decodes them."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from llada_jax.config import Loop, ModelConfig, require, require_choice
from llada_jax.constraint.batch import CompiledConstraints, grammar_of, locate_texts
from llada_jax.constraint.patterns import Constraint
from llada_jax.constraint.reach import TextSpans
from llada_jax.on_mesh import MeshDenoiser
from llada_jax.programs import kept, own_jit
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.constrained import start_constrained
from llada_jax.sampler.layout import layout_of, new_state
from llada_jax.sampler.loops import Decoding, Refresher, Steps, compiled_loop, host_loop, program_of
from llada_jax.sampler.observe import new_memory
from llada_jax.sampler.prompts import (
    Prompts,
    Seeds,
    check_prompts,
    check_seeds,
    end_ids,
    sequence_key,
    with_ids,
)
from llada_jax.sampler.record import OnStep, StepView
from llada_jax.sampler.spec import KeptScores, StepSpec
from llada_jax.sampler.state import DecodeState
from llada_jax.sampler.stops import TextEnds, ToText, stop_at_strings
from llada_jax.sampler.windows.window import CanvasLayout
from llada_jax.types import Denoiser, KVCache, Params


@dataclass(frozen=True, eq=False)
class DecodingRun:
    """Checked prompts with the model and settings that decode them, in batches of any size."""

    spec: StepSpec
    denoiser: Denoiser
    params: Params
    prompts: list[np.ndarray]
    seeds: list[tuple[Any, int]]  # seed or key of each prompt, and the index folded into it
    loop: Loop
    infill: bool = False
    on_step: OnStep | None = None
    refresher: Refresher | None = None
    placed: TextSpans | None = None  # where each prompt's text lies, under a constraint
    constraints: tuple[Constraint, ...] = ()  # one of all prompts, or one of each
    ends: TextEnds | None = None  # of answers' texts; None without a tokenizer

    @property
    def config(self) -> SamplerConfig:
        return self.spec.config

    @cached_property
    def lengths(self) -> Int[np.ndarray, " B"]:
        """Returns how many tokens each prompt has."""
        return np.array([len(prompt) for prompt in self.prompts], np.int32)

    @cached_property
    def layout(self) -> CanvasLayout:
        """Returns the layout of every canvas: it holds the longest prompt."""
        return self._layout(range(len(self.prompts)))

    def _layout(self, chosen: Sequence[int]) -> CanvasLayout:
        lengths = self.lengths[chosen]
        return layout_of(lengths, self.config, self.spec.model, infill=self.infill)

    def buckets(self, chosen: Sequence[int]) -> tuple[int, ...]:
        """Returns rows of forwards, ascending, of canvases for these prompts alone."""
        layout = self._layout(chosen)
        # As with infilling, spans grow over blocks without masks.
        if self.spec.grammar is not None:
            layout = layout._replace(prompt_length=0)
        return self.spec.buckets(layout)

    @property
    def max_steps(self) -> int:
        """Returns how many forwards a canvas may take."""
        return self.spec.max_steps(self.layout.n_blocks)

    def precision(self) -> AbstractContextManager[Any]:
        """Returns the context in which canvases begin and go on: 64 bits where settings ask."""
        return jax.enable_x64(True) if self.config.parity.wide else nullcontext()

    def state(self, chosen: Sequence[int], cache: KVCache | None = None) -> DecodeState:
        """Returns the state of these prompts before the first forward, by their indices.

        A cache of an earlier state is used again if there is one.
        """
        keys = {index: sequence_key(*self.seeds[index]) for index in chosen}
        spec, length = self.spec, self.layout.length
        if cache is None:
            guided = 2 if self.config.cfg_scale else 1
            cached = length if spec.window.caches else 0
            cache = self.denoiser.empty_cache(self.params, guided * len(chosen), cached)
        prompts = [self.prompts[index] for index in chosen]
        state = new_state(
            prompts,
            self.config,
            spec.model,
            jnp.stack([keys[index] for index in chosen]),
            cache,
            length,
            infill=self.infill,
        )
        text = self.placed and TextSpans(*(jnp.asarray(each[chosen]) for each in self.placed))
        state = state._replace(rule=new_memory(spec, len(chosen), length), constraint=text)
        if text is not None:
            rest = state._replace(cache=None)  # pyright: ignore
            start = _start_constrained(jax.tree.structure(rest), state.tokens.shape)
            state = start(self.decoding.spec, rest)._replace(cache=cache)
        on_mesh = isinstance(self.denoiser, MeshDenoiser)
        return self.denoiser.replicated(state) if on_mesh else state

    def forwards(self, state: DecodeState, until: int, most: int) -> tuple[DecodeState, Steps]:
        """Runs forwards until `until` sequences are done, at most `most`; consumes the state."""
        state, steps = self._forwards(state, until, most, 0)
        parts, left = [steps], most - len(steps.rows)
        while self.config.stop:  # the loops have paused between blocks
            assert self.ends is not None and self.config.eos_id is not None
            state = stop_at_strings(state, self.ends, self.config.eos_id)
            if left <= 0 or np.asarray(state.done).sum() >= until:
                break
            state, steps = self._forwards(state, until, left, most - left)
            parts, left = [*parts, steps], left - len(steps.rows)
        return state, jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)

    def _forwards(
        self, state: DecodeState, until: int, most: int, before: int
    ) -> tuple[DecodeState, Steps]:
        """Runs one of the loops, once; `before` is how many forwards have been run."""
        if self.loop == "compiled":
            return compiled_loop(self.decoding, state, until, most)

        def on_step(view: StepView) -> None:
            assert self.on_step is not None
            self.on_step(view._replace(step=before + view.step))

        called = on_step if self.on_step else None
        return host_loop(self.decoding, state, until, most, called, self.refresher)

    def lowered(self) -> jax.stages.Lowered:
        """Returns the compiled loop of all prompts at once, before it is compiled. Of parameters,
        shapes and dtypes are enough."""
        decoding = self.decoding  # made before its arrays could become tracers
        state = jax.eval_shape(partial(self.state, range(len(self.prompts))))
        return program_of(decoding, state).lower(decoding, state, 1, decoding.max_steps)

    @cached_property
    def decoding(self) -> Decoding:
        """Returns what the loops drive."""
        dtype = self.config.parity.confidence_dtype
        config = replace(self.config, stop=())  # for the host alone: no program depends on it
        numbers = jax.tree.map(lambda number: jnp.asarray(number, dtype), config)
        allowed = jax.tree.map(jnp.asarray, self.spec.grammar)
        spec = replace(self.spec, config=numbers, grammar=allowed)
        buckets = self.buckets(range(len(self.prompts)))
        pauses = bool(self.config.stop)
        return Decoding(spec, self.params, self.denoiser, buckets, self.max_steps, pauses)


_start_constrained = kept(lambda *shape: own_jit(start_constrained))


def checked_run(
    denoiser: Denoiser,
    params: Params,
    model: ModelConfig,
    prompts: Prompts,
    config: SamplerConfig,
    *,
    seed: Seeds = 0,
    loop: Loop = "compiled",
    on_step: OnStep | None = None,
    infill: bool = False,
    refresher: Refresher | None = None,
    texts: CompiledConstraints | None = None,
    keeps_scores: KeptScores = False,
    to_text: ToText | None = None,
) -> DecodingRun:
    """Checks everything before anything is computed.

    Args:
      denoiser: the model's functions, with the rules of `config` in its scores.
      seed: an int or a JAX key for the batch, or one for each sequence: a sequence with its own
        seed decodes as it would alone, at any temperature.
      infill: the masks in the prompts are the holes; nothing is appended.
      refresher: for the `host` loop, where the settings ask for a worker. What it gives may differ
        from the denoiser's in rounding, of which the tokens then depend.
      to_text: the tokenizer's decoding of ids, for stop strings.

    Raises ValueError for a prompt that is empty, too long, has ids outside the vocabulary or,
    unless `infill`, contains [MASK]; for ids that neither the model nor `config` names.
    """
    require_choice("loop", loop, Loop)
    require(on_step is None or loop == "host", "on_step needs loop='host'; loop is 'compiled'")
    require(
        denoiser.traceable or loop == "host",
        "loop is 'compiled'; allowed: 'host' (the backend runs outside JAX)",
    )
    config = with_ids(config, model)
    spec = StepSpec(model, config, denoiser.measure_rows is not None, keeps_scores)
    _check_spec(spec, denoiser, params, loop, refresher)
    rows = check_prompts(prompts, config, model, infill=infill)
    seeds = check_seeds(seed, len(rows))
    require(
        not (spec.rule.verifies and (infill or texts is not None)),
        f"accept is {spec.rule.name!r} with holes or a constraint; allowed: another rule",
    )
    require(
        not config.stop or (to_text is not None and not infill),
        f"stop is {config.stop!r}, and {'canvases are infilled' if infill else 'no tokenizer'}; "
        "allowed: ()",
    )
    placed, text_ends = None, end_ids(config, model)
    if texts is not None:
        for name in ("logits_eos_inf", "confidence_eos_eot_inf"):
            require(
                not getattr(config, name),
                f"{name} is True with a constraint, whose texts end by EOS; allowed: False",
            )
        require(spec.measures, "the backend measures no classes, which a constraint needs; "
                "allowed: another one, as xla")  # fmt: skip
        mask_id = spec.mask_id
        placed = locate_texts(texts, rows, mask_id, config.gen_length, infill=infill)
        spec = replace(spec, grammar=grammar_of(texts, text_ends))
    given = texts.constraints if texts else ()
    ends = to_text and TextEnds(() if infill else text_ends, config.stop, to_text)
    return DecodingRun(
        spec, denoiser, params, rows, seeds, loop, infill, on_step, refresher, placed, given, ends
    )


def _check_spec(
    spec: StepSpec,
    denoiser: Denoiser,
    params: Params,
    loop: Loop,
    refresher: Refresher | None,
) -> None:
    """Raises ValueError if the model, the backend or the loop does not support the settings."""
    config, window, accept = spec.config, spec.window, spec.rule.name
    extra = {"shadow": spec.shadows, "refresh": config.refreshes}
    kind = next((kind for kind, runs in extra.items() if runs), None)
    require(
        not spec.shift or kind is None,
        f"the model's outputs are shifted, and {kind} rows need outputs at their own positions; "
        "allowed: revision with rescore 'token' and refresh 'none'",
    )
    block, own = spec.model.block_length, config.block_length
    whole = block is None or block % own == 0
    require(whole, f"block_length is {own}; allowed: a divisor of the model's block, {block}")
    require(
        block in (None, own) or not (spec.window.drafts or kind or spec.rule.revises),
        f"block_length is {own}, a part of the model's block ({block}); allowed: that, or a rule "
        "that never changes a token, without drafts",
    )
    require(
        not (spec.shift and block and spec.window.drafts),
        "window is 'multi_block', and the block before predicts a block's first token (shifted "
        "outputs, attention that is causal between blocks); allowed: 'by_cache'",
    )
    causal = spec.model.causal
    require(
        causal is None or window.caches_finished or (causal == "filled" and not window.caches),
        f"cache is {window.cache!r} and the model's attention is causal; allowed: 'blockwise'",
    )
    require(
        causal is None or (not window.drafts and (spec.rule.verifies or not spec.rule.revises)),
        f"the model's attention is causal, and window is {window.name!r} and accept "
        f"{accept!r}; allowed: 'by_cache', and rules that never change a token",
    )
    require(
        not window.slides or (block is None and causal != "finished"),
        "window is 'sliding', and the model's blocks begin where it was trained to begin them; "
        "allowed: 'by_cache'",
    )
    require(
        causal == "finished" or not spec.rule.verifies,
        f"accept is {accept!r} and the model's finished tokens do not predict the next one; "
        "allowed: another rule",
    )
    needs = spec.rule.head_needs
    require(
        not needs or denoiser.measure_rows is not None,
        f"rule {type(spec.rule).__name__} needs {', '.join(sorted(needs))}, which the backend "
        "does not compute; allowed: another backend, as xla, or rules without these needs",
    )
    if config.has_worker:
        require(loop == "host", f"refresh is 'worker' and loop is {loop!r}; allowed: 'host'")
        require(refresher is not None, "refresh is 'worker' and no worker was given; allowed: one")
        shared = refresher is not None and refresher.denoiser is denoiser
        require(
            denoiser.traceable or not shared,
            "refresh is 'worker' and the backend runs outside JAX; allowed: 'rows', 'none', or a "
            "model of its own for the worker",
        )
        require(
            denoiser.empty_cache(params, 1, 0).keys.shape[0] > 0,
            "refresh is 'worker' and the backend keeps keys and values to itself, where no worker "
            "can read them; allowed: 'rows', 'none'",
        )
