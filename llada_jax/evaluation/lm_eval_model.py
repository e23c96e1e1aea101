"""A model of this package as an `LM` of lm-evaluation-harness (the extra `eval`).

    lm = LmEvalModel(model.config, model.params, model.tokenizer, generate, SamplerConfig(...))
    lm_eval.simple_evaluate(lm, tasks=["boolq"], task_manager=TaskManager(include_path=folder))

Likelihoods are LLaDA's bound (`llada_jax.evaluation.likelihood`), which no sampler changes; texts
come from the sampler. No torch is needed or imported.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Int
from tqdm import tqdm

from llada_jax.config import ModelConfig, SamplerConfig, require
from llada_jax.evaluation.greedy_match import decodes_greedily
from llada_jax.evaluation.likelihood import Pair, log_likelihoods, rolling_windows
from llada_jax.text import Tokenizer
from llada_jax.types import Params

try:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
except ImportError as error:
    raise ImportError(
        f"lm-evaluation-harness is not installed ({error}); install the extra: "
        "pip install 'llada_jax[eval]'"
    ) from error

_REQUEST_SETTINGS = ("until", "max_gen_toks", "do_sample", "temperature")


class Generate(Protocol):
    """Decodes prompts, each with its own seed, and gives the generated ids of each."""

    def __call__(
        self, prompts: list[list[int]], config: SamplerConfig, seeds: list[int], /
    ) -> Sequence[Int[np.ndarray, " G"]]: ...


class _Request(NamedTuple):
    """What a task wants to be generated."""

    prompt: list[int]
    until: list[str]
    max_tokens: int


class LmEvalModel(LM):
    """What the harness asks, answered by a masked-diffusion model.

    Args:
      generate: decodes; `llada_jax.generate` with a model, for example.
      sampler: how texts are decoded. Its `gen_length` is the canvas, whatever a task asks for;
        a task's `max_gen_toks` only cuts what was written.
      mc_num: forwards for each likelihood; see `log_likelihoods`.
      batch_size: prompts that are decoded together, and canvases of a forward of likelihoods.
      check_greedy: also find out whether greedy decoding gives each scored answer. Slow, a forward
        a token, and only few tasks (LAMBADA) read it; without it, the harness is told False.
      seed: of the mask patterns, and of sampling: a prompt's own is this plus its place.
      progress: show progress bars.

    Raises:
      ValueError: one message that names what is wrong with the model or, before any computation,
        with a request.
    """

    def __init__(
        self,
        config: ModelConfig,
        params: Params,
        tokenizer: Tokenizer | None,
        generate: Generate,
        sampler: SamplerConfig,
        *,
        mc_num: int = 128,
        batch_size: int = 16,
        check_greedy: bool = False,
        seed: int = 0,
        progress: bool = True,
    ) -> None:
        super().__init__()
        if tokenizer is None:
            raise ValueError("the model has no tokenizer.json; allowed: one that has")
        require(mc_num >= 1, f"mc_num is {mc_num}; allowed: 1 or more")
        require(batch_size >= 1, f"batch_size is {batch_size}; allowed: 1 or more")
        self._config, self._params, self._tokenizer = config, params, tokenizer
        self._generate, self._sampler = generate, sampler
        self._mc_num, self._batch_size = mc_num, batch_size
        self._check_greedy, self._seed, self._progress = check_greedy, seed, progress
        encoded = tokenizer.encode("", add_special_tokens=True)
        self._opening = encoded[:1] if encoded[:1] == [tokenizer.bos_id] else []

    @property
    def tokenizer_name(self) -> str:
        """Returns a name of the chat template, for the harness's caches of prompts."""
        template = self._tokenizer.chat_template or ""
        return f"llada_jax-{hashlib.sha256(template.encode()).hexdigest()[:16]}"

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Returns the tokenizer's template, as the harness records it; there is one alone to
        choose."""
        return (self._tokenizer.chat_template or "") if chat_template else ""

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        return self._tokenizer.apply_chat_template(chat_history, add_generation_prompt)

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Returns (bound of log p(continuation | context), whether greedy decoding gives it) of
        each."""
        pairs = [self._pair(*request.args) for request in requests]
        values = self._log_likelihoods(pairs)
        answers = []
        shown = tqdm(pairs, desc="greedy", disable=not (self._progress and self._check_greedy))
        for pair, value in zip(shown, values, strict=True):
            greedy = self._check_greedy and decodes_greedily(self._params, self._config, *pair)
            answers.append((float(value), greedy))
        return answers

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Returns the bound of the log-likelihood of each text, over windows of the model's
        length."""
        before = self._prefix()
        windows = [
            rolling_windows(self._tokenizer.encode(text), self._config.max_length, before)
            for (text,) in (request.args for request in requests)
        ]
        values = self._log_likelihoods([pair for text in windows for pair in text])
        ends = np.cumsum([len(text) for text in windows])
        return [float(part.sum()) for part in np.split(values, ends[:-1])]

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Returns the text that the sampler writes after each context, up to the first stop
        string."""
        asked = [self._request(*request.args) for request in requests]
        longest_first = sorted(range(len(asked)), key=lambda place: -len(asked[place].prompt))
        size = min(self._batch_size, len(asked))
        texts = [""] * len(asked)
        with tqdm(total=len(asked), desc="texts", disable=not self._progress) as bar:
            for start in range(0, len(asked), size):
                chosen = longest_first[start : start + size]
                for place, ids in zip(chosen, self._decode(asked, chosen, size), strict=True):
                    texts[place] = self._text(ids, asked[place])
                    self.cache_hook.add_partial(
                        "generate_until", requests[place].args, texts[place]
                    )
                bar.update(len(chosen))
        return texts

    def _decode(
        self, asked: list[_Request], chosen: list[int], size: int
    ) -> Sequence[Int[np.ndarray, " G"]]:
        """Decodes a batch of `size`, filled up with copies: a smaller one would be compiled
        anew."""
        filled = chosen + chosen[-1:] * (size - len(chosen))
        prompts = [asked[place].prompt for place in filled]
        seeds = [self._seed + place for place in filled]
        return self._generate(prompts, self._sampler, seeds)[: len(chosen)]

    def _log_likelihoods(self, pairs: Sequence[Pair]) -> np.ndarray:
        return log_likelihoods(
            self._params,
            self._config,
            pairs,
            mc_num=self._mc_num,
            batch_size=self._batch_size,
            seed=self._seed,
            progress=self._progress,
        )

    def _prefix(self) -> list[int]:
        """Returns what a text without context is conditioned on."""
        bos = self._tokenizer.bos_id
        return [] if bos is None else [bos]

    def _encode(self, text: str) -> list[int]:
        """Encodes with the BOS that the tokenizer puts before a text, unless the text spells it
        itself."""
        spelled = self._tokenizer.special_tokens.get("bos_token")
        opening = [] if spelled and text.startswith(spelled) else self._opening
        return opening + self._tokenizer.encode(text)

    def _pair(self, context: str, continuation: str) -> Pair:
        """Returns ids of both, cut where the ids of the whole text allow; spaces go with what
        follows."""
        if not context:
            return self._prefix(), self._tokenizer.encode(continuation)
        stripped = context.rstrip(" ")
        continuation, context = context[len(stripped) :] + continuation, stripped
        prompt, whole = self._encode(context), self._encode(context + continuation)
        joined = whole[: len(prompt)] == prompt
        return prompt, whole[len(prompt) :] if joined else self._tokenizer.encode(continuation)

    def _request(self, context: str, settings: dict[str, Any]) -> _Request:
        for name in settings:
            require(
                name in _REQUEST_SETTINGS,
                f"a task's generation_kwargs have {name!r}; allowed: "
                f"{', '.join(_REQUEST_SETTINGS)} (the sampler has the others)",
            )
        temperature = settings.get("temperature", 1.0) if settings.get("do_sample") else None
        require(
            temperature in (None, self._sampler.temperature),
            f"a task samples at temperature {temperature}; allowed: the sampler's "
            f"({self._sampler.temperature})",
        )
        until = settings.get("until") or []
        return _Request(
            self._encode(context),
            [until] if isinstance(until, str) else list(until),
            int(settings.get("max_gen_toks", self._sampler.gen_length)),
        )

    def _text(self, ids: Int[np.ndarray, " G"], asked: _Request) -> str:
        """Returns what comes before the first end, given as a token or as text."""
        ends = self._end_ids()
        ends |= {self._tokenizer.backend.token_to_id(stop) for stop in asked.until}
        kept = [int(token) for token in ids][: asked.max_tokens]
        length = next((i for i, token in enumerate(kept) if token in ends), len(kept))
        text = self._tokenizer.decode(kept[:length])
        cuts = [text.find(stop) for stop in asked.until if stop in text]
        return text[: min(cuts, default=len(text))]

    def _end_ids(self) -> set[int | None]:
        """Returns tokens that end a text or a turn."""
        owners = (self._sampler, self._config)
        return {getattr(owner, name) for owner in owners for name in ("eos_id", "eot_id")}
