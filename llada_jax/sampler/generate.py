"""`decode`: prompts in, tokens out. Checks everything before anything is computed."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from llada_jax.config import Loop, ModelConfig, SamplerConfig, require, require_choice
from llada_jax.constraint.batch import Texts, grammar_of
from llada_jax.sampler.canvas import VISIBLE, Canvas, CanvasLayout, layout_of, new_canvas
from llada_jax.sampler.constrained import require_constrainable
from llada_jax.sampler.loops import OnStep, Refresher, Steps, compiled_loop, host_loop
from llada_jax.sampler.own_decision import require_numbers
from llada_jax.sampler.own_state import new_state
from llada_jax.sampler.prompts import Prompts, check_prompts, check_seeds, with_ids
from llada_jax.sampler.record import tokens_committed
from llada_jax.sampler.setup import Setup
from llada_jax.sampler.stop import require_scores
from llada_jax.sampler.trace import Trace, trace_of
from llada_jax.sampler.windows.window import buckets_for
from llada_jax.types import Denoiser, Params


@dataclass(frozen=True)
class Result:
    """What a run gives."""

    tokens: Int[np.ndarray, "B L"]
    """Prompt and generation; rows with shorter prompts are padded on the left."""
    prompt_lengths: Int[np.ndarray, " B"]
    nfe: Int[np.ndarray, " B"]
    """Forwards that were useful to each row: those before it was done."""
    tpf: float
    """Tokens committed per forward, over the batch's rows."""
    seconds: float
    """Wall time of the decoding, compilation included where it was needed."""
    generated: list[Int[np.ndarray, " G"]]
    """Each row's generation alone; for infilling, its whole canvas."""
    recorded: Trace | None
    """What every forward did; None unless it was asked for."""
    ends: tuple[int, ...] = ()
    """Ids that end a text or a turn; empty for infilling."""
    to_text: Callable[[Int[np.ndarray, " G"]], str] | None = field(default=None, repr=False)
    """The tokenizer's decoding of ids; None where the model has no tokenizer."""

    @property
    def trace(self) -> Trace:
        """Returns what every forward did. Raises ValueError where the run did not keep it."""
        if self.recorded is None:
            raise ValueError("the run kept no trace; allowed: the trace of a run with trace=True")
        return self.recorded

    @property
    def answers(self) -> list[Int[np.ndarray, " G"]]:
        """Each row's generation before the first token that ends a text or a turn."""
        found = []
        for tokens in self.generated:
            (ends,) = np.isin(tokens, self.ends).nonzero()
            found.append(tokens[: ends[0]] if len(ends) else tokens)
        return found

    @property
    def text(self) -> list[str]:
        """The answers as text, decoded when asked for.

        Raises ValueError where the model has no tokenizer.
        """
        if self.to_text is None:
            raise ValueError("the model has no tokenizer; allowed: text of a model that has one")
        return [self.to_text(tokens) for tokens in self.answers]


def decode(
    denoiser: Denoiser,
    params: Params,
    model: ModelConfig,
    prompts: Prompts,
    config: SamplerConfig,
    *,
    seed: int | Sequence[int] = 0,
    loop: Loop = "compiled",
    trace: bool = False,
    on_step: OnStep | None = None,
    infill: bool = False,
    refresher: Refresher | None = None,
    texts: Texts | None = None,
) -> Result:
    """Decodes a batch of prompts.

    Args:
      denoiser: the model's functions, with the rules of `config` in its scores.
      prompts: [B, P] ids, or lists of different lengths.
      seed: one for the batch, or one for each row: a row with its own seed decodes as it would
        alone, at any temperature.
      loop: `compiled` or `host`; `on_step` needs `host`.
      infill: the masks in the prompts are the holes; nothing is appended.
      refresher: for the `host` loop, where the settings ask for a worker. What it gives may differ
        from the denoiser's in rounding, of which the tokens then depend.
      texts: what each row may be; None: anything.

    Raises:
      ValueError: for a prompt that is empty, too long, has ids outside the vocabulary or, unless
        `infill`, contains [MASK]; for ids that neither the model nor `config` names.
      FloatingPointError: the model gave NaN or infinity. Such a canvas stops at once, and the error
        names each one, its forward and its position after the others are done.
    """
    require_choice("loop", loop, Loop)
    require(on_step is None or loop == "host", "on_step needs loop='host'; loop is 'compiled'")
    require(
        denoiser.traceable or loop == "host",
        "loop is 'compiled'; allowed: 'host' (the backend runs outside JAX)",
    )
    config = with_ids(config, model)
    setup = Setup(model, config, measures=denoiser.measure_rows is not None)
    _check_setup(setup, denoiser, loop, refresher)
    rows = check_prompts(prompts, config, model, infill=infill)
    seeds = check_seeds(seed, len(rows))
    if texts is not None:
        ends, mask_id = end_ids(config, model), setup.mask_id
        require_constrainable(setup)
        allowed = grammar_of(texts, rows, mask_id, ends, config.gen_length, infill=infill)
        setup = replace(setup, grammar=allowed)
    lengths = np.array([len(row) for row in rows], np.int32)
    layout = layout_of(lengths, config, model, infill=infill)
    with jax.enable_x64(True) if config.parity.wide else nullcontext():
        began = time.perf_counter()
        canvas = _start(setup, denoiser, params, rows, seeds, layout, infill=infill)
        canvas, steps = _run(setup, denoiser, params, canvas, layout, loop, on_step, refresher)
        require_scores(canvas)
        require_numbers(setup.rule, canvas)
        nfe, end = np.asarray(canvas.nfe), np.asarray(canvas.end)
        tokens, state = (np.asarray(x)[:, : end.max()] for x in (canvas.tokens, canvas.state))
        end = np.minimum(end, lengths if infill else lengths + config.gen_length)
        seconds = time.perf_counter() - began
    settings = _settings(config, model, seeds, loop, seconds, infill=infill)
    settings["constraint"] = texts and [asdict(each) for each in texts.constraints]
    begin = np.zeros_like(lengths) if infill else lengths
    pad_id = next((i for i in (model.pad_id, config.eos_id) if i is not None), 0)
    return Result(
        tokens=_left_padded(tokens[:, : end.max()], end, pad_id),
        prompt_lengths=lengths,
        nfe=nfe,
        tpf=tokens_committed(steps.records.events) / max(1, int(nfe.sum())),
        seconds=seconds,
        generated=[tokens[row, begin[row] : end[row]] for row in range(len(rows))],
        recorded=trace_of(steps, tokens, state >= VISIBLE, lengths, settings) if trace else None,
        ends=() if infill else end_ids(config, model),
    )


def _check_setup(setup: Setup, denoiser: Denoiser, loop: Loop, refresher: Refresher | None) -> None:
    """Raises ValueError where the model, the backend or the loop cannot do what is asked."""
    config = setup.config
    extra = {
        "branch": setup.window.branches or setup.rule.branches,
        "shadow": setup.shadows,
        "refresh": config.refreshes,
    }
    kind = next((kind for kind, runs in extra.items() if runs), None)
    require(
        not setup.shift or kind is None,
        f"the model's outputs are shifted, and {kind} rows need outputs at their own positions; "
        "allowed: no lossless, and revision with rescore 'token' and refresh 'none'",
    )
    block, own = setup.model.block_length, config.block_length
    whole = block is None or block % own == 0
    require(whole, f"block_length is {own}; allowed: a divisor of the model's block, {block}")
    require(
        block in (None, own) or not (setup.window.drafts or kind or setup.rule.revises),
        f"block_length is {own}, a part of the model's block ({block}); allowed: that, or a rule "
        "that never changes a token, without drafts and branches",
    )
    require(
        not (setup.shift and block and setup.window.drafts),
        "window is 'multi_block', and the block before predicts a block's first token (shifted "
        "outputs, attention that is causal between blocks); allowed: 'by_cache'",
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


def _start(
    setup: Setup,
    denoiser: Denoiser,
    params: Params,
    prompts: list[np.ndarray],
    seeds: list[tuple[int, int]],
    layout: CanvasLayout,
    *,
    infill: bool,
) -> Canvas:
    keys = jnp.stack([jax.random.fold_in(jax.random.key(seed), row) for seed, row in seeds])
    guided = 2 if setup.config.cfg_scale else 1
    cached = layout.length if setup.window.caches else 0
    cache = denoiser.empty_cache(params, guided * len(prompts), cached)
    canvas = new_canvas(prompts, setup.config, setup.model, keys, cache, infill=infill)
    return canvas._replace(rule_state=new_state(setup, len(prompts), layout.length))


def _run(
    setup: Setup,
    denoiser: Denoiser,
    params: Params,
    canvas: Canvas,
    layout: CanvasLayout,
    loop: Loop,
    on_step: OnStep | None,
    refresher: Refresher | None,
) -> tuple[Canvas, Steps]:
    config = setup.config
    extra = setup.most_extra_rows(layout.length)
    buckets = buckets_for(config, layout, setup.model, extra)
    limit = setup.most_steps(layout.n_blocks)
    dtype = config.parity.confidence_dtype
    numbers = jax.tree.map(lambda number: jnp.asarray(number, dtype), config)
    setup = replace(setup, config=numbers, grammar=jax.tree.map(jnp.asarray, setup.grammar))
    if loop == "compiled":
        return compiled_loop(setup, denoiser, params, canvas, buckets, limit)
    return host_loop(setup, denoiser, params, canvas, buckets, limit, on_step, refresher)


def _left_padded(
    tokens: Int[np.ndarray, "B L"], end: Int[np.ndarray, " B"], pad_id: int
) -> Int[np.ndarray, "B L"]:
    length = tokens.shape[1]
    out = np.full_like(tokens, pad_id)
    for row, stop in enumerate(end):
        out[row, length - stop :] = tokens[row, :stop]
    return out


def end_ids(config: SamplerConfig, model: ModelConfig) -> tuple[int, ...]:
    """Returns the ids that end a text or a turn: the sampler's, and the model's own."""
    ids = (each for source in (config, model) for each in (source.eos_id, source.eot_id))
    return tuple(dict.fromkeys(each for each in (*ids, *model.stop_ids) if each is not None))


def _settings(
    config: SamplerConfig,
    model: ModelConfig,
    seeds: list[tuple[int, int]],
    loop: Loop,
    seconds: float,
    *,
    infill: bool,
) -> dict[str, Any]:
    return {
        "sampler": config.as_dict(),
        "rule_sha256": getattr(config.rule, "source_hash", None),
        "model": {**asdict(model), "stop_ids": list(model.stop_ids)},  # as JSON has it
        "seeds": [list(seed) for seed in seeds],
        "loop": loop,
        "infill": infill,
        "seconds": seconds,
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
    }
