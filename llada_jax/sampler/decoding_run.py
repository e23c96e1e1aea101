"""A decoding run: checked prompts, and what decodes them. Its canvases begin here, and go on."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from llada_jax.config import Loop, ModelConfig, SamplerConfig, require, require_choice
from llada_jax.constraint.batch import Texts, grammar_of, placed_texts
from llada_jax.constraint.patterns import Constraint
from llada_jax.constraint.reach import Placed
from llada_jax.on_mesh import begun_on
from llada_jax.programs import kept, own_jit
from llada_jax.sampler.canvas import Canvas, CanvasLayout, layout_of, new_canvas
from llada_jax.sampler.constrained import begun
from llada_jax.sampler.loops import Decoding, Refresher, Steps, compiled_loop, host_loop, program_of
from llada_jax.sampler.own_rule import new_state
from llada_jax.sampler.prompts import Prompts, check_prompts, check_seeds, end_ids, with_ids
from llada_jax.sampler.record import OnStep
from llada_jax.sampler.setup import KeptScores, Setup
from llada_jax.sampler.windows.window import buckets_for
from llada_jax.types import Denoiser, KVCache, Params


@dataclass(frozen=True, eq=False)
class DecodingRun:
    """Prompts that were checked, and what decodes them, whatever number of them at a time."""

    setup: Setup
    denoiser: Denoiser
    params: Params
    prompts: list[np.ndarray]
    seeds: list[tuple[int, int]]  # of each prompt, and the index that is folded into it
    loop: Loop
    infill: bool = False
    on_step: OnStep | None = None
    refresher: Refresher | None = None
    placed: Placed | None = None  # where each prompt's text lies, under a constraint
    constraints: tuple[Constraint, ...] = ()  # one of all prompts, or one of each

    @property
    def config(self) -> SamplerConfig:
        return self.setup.config

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
        return layout_of(lengths, self.config, self.setup.model, infill=self.infill)

    def buckets(self, chosen: Sequence[int]) -> tuple[int, ...]:
        """Returns rows of forwards, ascending, of canvases for these prompts alone."""
        layout = self._layout(chosen)
        # As with infilling, spans grow over blocks without masks.
        if self.setup.grammar is not None:
            layout = layout._replace(prompt_length=0)
        extra = self.setup.most_extra_rows(layout.length)
        return buckets_for(self.config, layout, self.setup.model, extra)

    @property
    def most_steps(self) -> int:
        """Returns how many forwards a canvas may take."""
        return self.setup.most_steps(self.layout.n_blocks)

    def precision(self) -> AbstractContextManager[Any]:
        """Returns the context in which canvases begin and go on: 64 bits where settings ask."""
        return jax.enable_x64(True) if self.config.parity.wide else nullcontext()

    def canvas(self, chosen: Sequence[int], cache: KVCache | None = None) -> Canvas:
        """Returns a canvas of these prompts, by their places; with a cache, that goes on in it."""
        seeds = {place: self.seeds[place] for place in chosen}
        key = {
            place: jax.random.fold_in(jax.random.key(seed), row)
            for place, (seed, row) in seeds.items()
        }
        keys = jnp.stack([key[place] for place in chosen])
        if cache is None:
            guided = 2 if self.config.cfg_scale else 1
            cached = self.layout.length if self.setup.window.caches else 0
            cache = self.denoiser.empty_cache(self.params, guided * len(chosen), cached)
        prompts, length = [self.prompts[place] for place in chosen], self.layout.length
        canvas = new_canvas(
            prompts, self.config, self.setup.model, keys, cache, length, infill=self.infill
        )
        text = self.placed and Placed(*(jnp.asarray(each[chosen]) for each in self.placed))
        canvas = canvas._replace(rule_state=new_state(self.setup, len(chosen), length), text=text)
        if text is not None:
            rest = canvas._replace(cache=None)  # pyright: ignore
            begin = _begin(jax.tree.structure(rest), canvas.tokens.shape)
            canvas = begin(self._decoding.setup, rest)._replace(cache=cache)
        place = self.denoiser.on_mesh
        return canvas if place is None else begun_on(place, canvas)

    def forwards(self, canvas: Canvas, until: int, most: int) -> tuple[Canvas, Steps]:
        """Runs forwards until so many rows of the canvas are done, at most `most`; consumes the
        canvas."""
        if self.loop == "compiled":
            return compiled_loop(self._decoding, canvas, until, most)
        return host_loop(self._decoding, canvas, until, most, self.on_step, self.refresher)

    def lowered(self) -> jax.stages.Lowered:
        """Returns the compiled loop of all prompts at once, before it is compiled. Of parameters,
        shapes and dtypes are enough."""
        decoding = self._decoding  # made before its arrays could become tracers
        canvas = jax.eval_shape(partial(self.canvas, range(len(self.prompts))))
        return program_of(decoding, canvas).lower(decoding, canvas, 1, decoding.limit)

    @cached_property
    def _decoding(self) -> Decoding:
        dtype = self.config.parity.confidence_dtype
        numbers = jax.tree.map(lambda number: jnp.asarray(number, dtype), self.config)
        allowed = jax.tree.map(jnp.asarray, self.setup.grammar)
        setup = replace(self.setup, config=numbers, grammar=allowed)
        buckets = self.buckets(range(len(self.prompts)))
        return Decoding(setup, self.params, self.denoiser, buckets, self.most_steps)


_begin = kept(lambda *shape: own_jit(begun))


def checked_run(
    denoiser: Denoiser,
    params: Params,
    model: ModelConfig,
    prompts: Prompts,
    config: SamplerConfig,
    *,
    seed: int | Sequence[int] = 0,
    loop: Loop = "compiled",
    on_step: OnStep | None = None,
    infill: bool = False,
    refresher: Refresher | None = None,
    texts: Texts | None = None,
    keeps_scores: KeptScores = False,
) -> DecodingRun:
    """Checks everything before anything is computed.

    Args:
      denoiser: the model's functions, with the rules of `config` in its scores.
      seed: one for the batch, or one for each row: a row with its own seed decodes as it would
        alone, at any temperature.
      infill: the masks in the prompts are the holes; nothing is appended.
      refresher: for the `host` loop, where the settings ask for a worker. What it gives may differ
        from the denoiser's in rounding, of which the tokens then depend.

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
    setup = Setup(model, config, denoiser.measure_rows is not None, keeps_scores)
    _check_setup(setup, denoiser, loop, refresher)
    rows = check_prompts(prompts, config, model, infill=infill)
    seeds = check_seeds(seed, len(rows))
    require(
        not (setup.rule.verifies and (infill or texts is not None)),
        f"accept is {config.accept!r} with holes or a constraint; allowed: another rule",
    )
    placed = None
    if texts is not None:
        for name in ("logits_eos_inf", "confidence_eos_eot_inf"):
            require(
                not getattr(config, name),
                f"{name} is True with a constraint, whose texts end by EOS; allowed: False",
            )
        require(setup.measures, "the backend measures no classes, which a constraint needs; "
                "allowed: another one, as xla")  # fmt: skip
        ends, mask_id = end_ids(config, model), setup.mask_id
        placed = placed_texts(texts, rows, mask_id, config.gen_length, infill=infill)
        setup = replace(setup, grammar=grammar_of(texts, ends))
    given = texts.constraints if texts else ()
    return DecodingRun(
        setup, denoiser, params, rows, seeds, loop, infill, on_step, refresher, placed, given
    )


def _check_setup(setup: Setup, denoiser: Denoiser, loop: Loop, refresher: Refresher | None) -> None:
    """Raises ValueError where the model, the backend or the loop cannot do what is asked."""
    config = setup.config
    extra = {"shadow": setup.shadows, "refresh": config.refreshes}
    kind = next((kind for kind, runs in extra.items() if runs), None)
    require(
        not setup.shift or kind is None,
        f"the model's outputs are shifted, and {kind} rows need outputs at their own positions; "
        "allowed: revision with rescore 'token' and refresh 'none'",
    )
    block, own = setup.model.block_length, config.block_length
    whole = block is None or block % own == 0
    require(whole, f"block_length is {own}; allowed: a divisor of the model's block, {block}")
    require(
        block in (None, own) or not (setup.window.drafts or kind or setup.rule.revises),
        f"block_length is {own}, a part of the model's block ({block}); allowed: that, or a rule "
        "that never changes a token, without drafts",
    )
    require(
        not (setup.shift and block and setup.window.drafts),
        "window is 'multi_block', and the block before predicts a block's first token (shifted "
        "outputs, attention that is causal between blocks); allowed: 'by_cache'",
    )
    causal, window = setup.model.causal, setup.window
    require(
        causal is None or window.leaves_tokens or (causal == "filled" and not window.caches),
        f"cache is {config.cache!r} and the model's attention is causal; allowed: 'blockwise'",
    )
    require(
        causal is None or (not window.drafts and (setup.rule.verifies or not setup.rule.revises)),
        f"the model's attention is causal, and window is {window.chosen_by['window']!r} and accept "
        f"{config.accept!r}; allowed: 'by_cache', and rules that never change a token",
    )
    require(
        not window.slides or (block is None and causal != "finished"),
        "window is 'sliding', and the model's blocks begin where it was trained to begin them; "
        "allowed: 'by_cache'",
    )
    require(
        causal == "finished" or not setup.rule.verifies,
        f"accept is {config.accept!r} and the model's finished tokens do not predict the next one; "
        "allowed: another rule",
    )
    needs = setup.own_rule.head_needs if setup.own_rule else ()
    require(
        not needs or denoiser.measure_rows is not None,
        f"rule {type(setup.rule).__name__} needs {', '.join(sorted(needs))}, which the backend "
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
            not denoiser.keeps_cache,
            "refresh is 'worker' and the backend keeps keys and values to itself, where no worker "
            "can read them; allowed: 'rows', 'none'",
        )
