"""A model's functions on a backend, as the sampler calls them.

Denoisers are cached: the sampler compiles a program once for each denoiser. For XLA they depend on
the model's shape alone, so that two models of one shape share programs; for other backends they
hold the parameters.
"""

from functools import lru_cache, partial
from typing import Any

from llada_jax.api.model import Model, ModelFunctions, has_tiles, require_own_jax
from llada_jax.backend.protocol import Backend
from llada_jax.config import ModelConfig, require
from llada_jax.model import forward as model_forward
from llada_jax.model.head import ScoreRules, score_rows
from llada_jax.model.measures import absorb_head, finish_head, measure_rows, start_head
from llada_jax.model.mesh import mesh_denoiser, mesh_of, specs_of
from llada_jax.model.params import ModelParams
from llada_jax.model.quantize import with_paired_int4
from llada_jax.sampler.config import SamplerConfig
from llada_jax.types import Denoiser, HeadOut, HeadRequest, Params, Scores


def score_rules(config: SamplerConfig) -> ScoreRules:
    """Returns the head's rules for a sampler's settings; `config` must name its special ids."""
    forbidden = [] if config.parity.predict_mask else [config.mask_id]
    forbidden += [config.eos_id] if config.logits_eos_inf else []
    discounted = [config.eos_id, config.eot_id] if config.confidence_eos_eot_inf else []
    return ScoreRules(
        forbidden=tuple(i for i in forbidden if i is not None),
        discounted=tuple(i for i in discounted if i is not None),
        temperature=config.temperature,
        confidence_dtype=config.parity.confidence_dtype,
        noise_dtype=config.parity.noise_dtype,
        spread=config.remasking in ("entropy", "margin")
        or not config.rule.needs.isdisjoint(("entropy", "margin")),
    )


EXPORTED = ("litert", "qnn")
"""Backends of exports."""
OUTSIDE_JAX = (*EXPORTED, "native")
"""Backends that run layers outside JAX, by name."""


def backend_denoiser(
    model: Model, backend: str | Backend, rules: ScoreRules, taps: tuple[int, ...] = ()
) -> Denoiser:
    """Returns the model's functions on a backend. `taps` are layers whose outputs a drafter reads.

    Raises ValueError for an unknown backend and in a forked process, ImportError where its packages
    are not installed.
    """
    require_own_jax()
    mesh = mesh_of(model.params)
    inside = model.functions is None and not model.artifact and mesh is None and backend != "native"
    require(
        not taps or inside,
        "drafter is 'own', and it reads states inside the model; allowed: a model in memory on one "
        "device, with backend 'xla' or 'litert', or drafter 'lookup'",
    )
    if model.functions is not None:
        require(backend == "xla", f"backend is {backend!r}; allowed for a custom model: 'xla'")
        return _custom_denoiser(model.functions, rules)
    if isinstance(backend, str) or model.artifact:
        allowed = EXPORTED if model.artifact else ("xla", *OUTSIDE_JAX)
        names = ", ".join(map(repr, allowed))
        require(backend in allowed, f"backend is {backend!r}; allowed: {names}")
    require(
        not has_tiles(model.params),
        "the model has tiles; allowed: as refresh_on, for the worker of refresh='worker'",
    )
    require(
        mesh is None or backend == "xla",
        f"backend is {backend!r}, and the model is on a mesh; allowed: 'xla'",
    )
    if backend == "xla":
        if mesh is not None:
            return mesh_denoiser(model.config, rules, mesh, specs_of(model.params))
        return denoiser_for(model.config, rules)
    from llada_jax.api.backends import session_denoiser  # loads packages that XLA does not need

    return session_denoiser(model, backend, rules, taps)


@lru_cache(maxsize=64)
def denoiser_for(config: ModelConfig, rules: ScoreRules) -> Denoiser:
    """Returns the model's functions in JAX, kept so that each is compiled once."""

    def forward_rows(params, rows, cache):
        if params.drafter is None:
            return model_forward.forward_rows(params, config, rows, cache)
        return params.drafter.forward_rows(params, config, rows, cache)

    def empty_cache(params, batch, length):
        return model_forward.cache_for(params, config, batch, length)

    score, measure = partial(score_rows, rules=rules), partial(measure_rows, rules=rules)
    return XlaDenoiser(forward_rows, score, empty_cache, measure)


@lru_cache(maxsize=64)
def _custom_denoiser(functions: ModelFunctions, rules: ScoreRules) -> Denoiser:
    """Returns the model's `Denoiser`, cached so that each function is compiled once."""

    def measure_rows(params: Params, hidden: Any, noise_keys: Any, request: HeadRequest) -> HeadOut:
        states, running = start_head(hidden, request, rules)
        logits = functions.logits(params, states).astype(rules.confidence_dtype)
        return finish_head(absorb_head(running, logits, 0, noise_keys, request, rules))

    def score_rows(params: Params, hidden: Any, noise_keys: Any) -> Scores:
        return measure_rows(params, hidden, noise_keys, HeadRequest()).scores

    return Denoiser(
        functions.forward_rows, score_rows, functions.empty_cache, measure_rows=measure_rows
    )


class XlaDenoiser(Denoiser):
    """The model's functions in JAX, on one device."""

    def loop_params(self, params: ModelParams) -> ModelParams:
        """Packs int4 experts: inside a loop XLA's CPU would unpack all of them for each product."""
        return with_paired_int4(params)

    def head_params(self, params: ModelParams) -> ModelParams:
        return params._replace(layers=(), drafter=None)
