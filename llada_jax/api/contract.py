"""The contract of an export: what a host passes to the graphs, and what it does with results.

A host without Python needs the decisions that the sampler takes in Python: which rows run, what a
row sees, which predictions are committed, when an answer ends. The contract states them as data,
taken from the objects that decode here (`StepSpec`, `ScoreRules`, the tokenizer), and `text`
explains the data in sentences. `backend/exported/host` is a host that reads nothing else.
"""

import json
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from llada_jax.api.denoisers import score_rules
from llada_jax.backend.exported.manifest import ROTATION, max_positions
from llada_jax.backend.session import FORBIDDEN_LOGIT
from llada_jax.config import ExportConfig, ModelConfig
from llada_jax.model.families.family import families
from llada_jax.model.layers import HIDDEN_SCORE
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.prompts import end_ids, with_ids
from llada_jax.sampler.spec import LENGTH_MULTIPLE, StepSpec
from llada_jax.text import Tokenizer

_DEFAULT = "blockwise"
_RULES = ("quota", "threshold")
_ATTENTION = {
    "all": "the same for all positions: every row sees all rows and all cached positions.",
    "sampler_block": "max(floor((position - start of block 0) / block_length), -1) with the "
    "sampler's blocks: rows of the prompt see the prompt, rows of a finished block see the prompt "
    "and the blocks up to their own, rows of the open block see all of these and their own block.",
    "model_block": "floor((position - start) / model_block), where start is 0, or the prompt's "
    "length if block_origin is prompt: a row sees its own block of the model and all earlier ones, "
    "in the prompt as well.",
    "finished": "min(position, first position of the open block): rows before the open block are "
    "causal and each predicts the next position; rows of the open block see all of it.",
    "filled": "position, plus 2**24 if the position is masked: tokens are causal and come before "
    "masks, which are causal as well.",
}
_WINDOWS = {
    "none": "0 to the end of the canvas in each forward; nothing is cached.",
    "prefix": "0 to the end of the canvas in the first forward of a block, then the start of the "
    "block to the end of the canvas; after a forward all positions are cached.",
    "dual": "0 to the end of the canvas in the first forward of a block, then the block; after a "
    "forward all positions are cached.",
    "blockwise": "the first position that is not cached to the end of the block; after a forward "
    "the positions before the block are cached.",
}
_SCHEDULES = {
    "even": "the block's first masks, divided evenly over the steps of a block, the remainder on "
    "the first steps",
    "noise": "the masks that are left times 1 - level(step + 1) / level(step), rounded down, with "
    "level(i) = 1 - 0.999 i / steps; the last step takes all",
    "linear": "the masks that are left, less the block's first masks times 1 - (step + 1) / steps, "
    "rounded down",
}
_ARRAYS = {
    "body": {
        "signature": "rows<R>_cache<C>",
        "inputs": {
            "hidden": "R D", "cos": "R half", "sin": "R half", "bias": "R C+R",
            "keys_<layer>": "K C Dh", "values_<layer>": "K C Dh",
        },
        "outputs": {
            "hidden": "R D", "new_keys_<layer>": "K R Dh", "new_values_<layer>": "K R Dh",
        },
    },
    "head": {
        "signature": "rows<R>",
        "inputs": {"hidden": "R D", "penalty": "V"},
        "outputs": {"token": "R, int32", "confidence": "R"},
    },
    "head_chunk": {
        "signature": "rows<R>_chunk<i>",
        "inputs": {"hidden": "R D"},
        "outputs": {"logits": "R, ids of chunk i"},
    },
}  # fmt: skip
"""Names and shapes of the graphs' arrays, row-major and in float32 unless a dtype is named."""
_ASKED, _ANSWERED, _SYSTEM = (chr(0xE000 + i) for i in range(3))  # in no template
_PROBES = (
    [("user", "a")],
    [("user", " a\n"), ("assistant", "b"), ("user", "c")],
    [("system", "d"), ("user", "a"), ("assistant", "b"), ("user", "c")],
)
"""Chats with which a template is compared with its description."""


def contract_of(
    model: ModelConfig, settings: ExportConfig, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    """Returns the contract of a model's export, as plain data for `manifest.json`."""
    samplers = dict(_samplers(model))
    family = families().get(model.family)
    published = [name for name in (family.presets if family else ()) if name in samplers]
    default = next(iter([_DEFAULT, *samplers] if _DEFAULT in published else samplers), None)
    ends = end_ids(SamplerConfig(), model)
    contract = {
        "default_sampler": default,
        "samplers": samplers,
        "shift": int(model.shift_logits),
        "model_block": model.block_length,
        "canvas_multiple": LENGTH_MULTIPLE,
        "mask_id": model.vocab_size if model.mask_id is None else model.mask_id,
        "eos_id": model.eos_id,
        "stop_ids": list(model.stop_ids),
        "end_ids": list(ends),
        "arrays": _ARRAYS,
        "hidden_score": HIDDEN_SCORE,
        "forbidden_logit": FORBIDDEN_LOGIT,
        "rotation": ROTATION,
        "positions": max_positions(settings),
        "chat": tokenizer and _chat(tokenizer),
        "control_ids": tokenizer and sorted(tokenizer.control_ids),
        "nfc": tokenizer and _nfc(tokenizer),
    }
    return contract | {"text": [*_sentences(model, settings, contract)]}


def _sentences(
    model: ModelConfig, settings: ExportConfig, contract: Mapping[str, Any]
) -> Iterator[str]:
    """Yields the contract in words, with what concerns the model's family only."""
    samplers = contract["samplers"].values()
    yield (
        "Letters: R rows and C cached positions of a signature, D width, K key-value heads, Dh "
        "head size, V vocabulary, half = rotary_dims / 2. All arrays are row-major."
    )
    yield (
        f"Canvas: the prompt, then masks ({contract['mask_id']}) up to its end, the prompt's "
        "length plus gen_length. Blocks of block_length positions follow the prompt and are "
        "finished from left to right."
    )
    if model.block_length:
        yield (
            f"Attention is causal between blocks of {model.block_length} positions. They start at "
            "position 0, or at the end of the prompt if block_origin is prompt. Block 0 then "
            "starts at a multiple of block_length before the end of the prompt, and unless "
            "last_block is cut, the canvas ends with a whole block of the model, of which the "
            "surplus is cut off the answer."
        )
    yield (
        "Forward: rows are consecutive positions. Run the smallest signature with R of at least "
        f"these rows and C of at least the canvas's length, rounded up to {LENGTH_MULTIPLE} (any C "
        "if nothing is cached). There are no chunks of prompts: all rows of a forward must fit "
        "into the largest R, and a longer prompt is refused."
    )
    for window in dict.fromkeys(sampler["window"] for sampler in samplers):
        yield f"Rows with the window {window}: {_WINDOWS[window]}"
    if model.block_length or model.causal == "finished":
        yield (
            "The end of the rows is rounded up to a whole block of the model, and the number of "
            "cached positions down. If starts_blocks_alone, and the first position of the block is "
            "masked while earlier rows run, the rows end before the block: the forward predicts "
            "that position only."
        )
    if model.shift_logits:
        yield (
            "Outputs are shifted: the row of position p predicts position p + 1, so rows begin one "
            "position earlier (but not before 0), and a masked position is scored at the row "
            "before it."
        )
    yield (
        "Masks: a row sees the positions of its own order and of lower ones: the rows of the "
        "forward, and the cached positions that are not rows. bias is 0 for what a row sees and "
        f"{HIDDEN_SCORE:g} for all else, first the C cached positions, then the R rows. Rows "
        "beyond those that are needed are zeros and see nothing."
    )
    for attention in dict.fromkeys(sampler["attention"] for sampler in samplers):
        yield f"Order with the attention {attention}: {_ATTENTION[attention]}"
    scaled = f", scaled by {model.rope_scaling}" if model.rope_scaling else ""
    yield (
        f"RoPE{scaled}: cos and sin of a row are line `position` of the two tables in {ROTATION}, "
        f"float32 [2, {contract['positions']}, half]. hidden is the token's line in the embedding "
        "file, [V, D] in embedding_dtype, converted to float32."
    )
    yield (
        "Run the shards in order; hidden of one is hidden of the next. The cache is only read: "
        "copy new_keys and new_values of a row to its position once it is not a row any more."
    )
    if settings.canvases[-1] > 1:
        yield (
            "Signature rows<R>_cache<C>_canvases<n> runs n canvases in a forward: n * R rows, one "
            "canvas after the other, and bias [n * R, C + R] of each canvas's own positions and "
            "rows. The cache of the second canvas is canvas1_keys_<layer> and "
            "canvas1_values_<layer>, and so on."
        )
    yield (
        "Head: score the masked positions of the open block. With head: penalty is "
        f"{FORBIDDEN_LOGIT:g} for forbidden_ids and 0 for others, token is the best id and "
        "confidence its probability. With head_chunk: join the logits of all chunks in "
        "confidence_dtype, without forbidden_ids; the lowest id wins ties; confidence, entropy and "
        "margin (the best probability less the second) are of their softmax. A confidence that is "
        "not finite is an error."
    )
    yield (
        "Commit with rule threshold: every position with a confidence of at least threshold (above "
        "it if strict_threshold), and the best one (as many of the best as the quota if "
        "forced_progress is quota). With rule quota: the quota's number of best positions. Best "
        "means of the highest priority: low_confidence is the confidence, margin the margin, "
        "entropy the negative entropy, and sequential from left to right; lower positions win "
        "ties. A committed mask id leaves its position masked."
    )
    for schedule in dict.fromkeys(sampler["schedule"] for sampler in samplers):
        yield (
            f"Quota of a step with the schedule {schedule}: {_SCHEDULES[schedule]}. A block has "
            "steps / blocks steps, rounded up; steps is gen_length if it is null."
        )
    yield (
        "Next: if the block has no masks, or had its steps (rule quota) or block_length steps "
        "(threshold), go to the block of the first mask after it; without one the answer is "
        "complete. With eos_early_stop the answer also ends once eos_id or one of stop_ids has no "
        "mask before it: masks after it become eos_id. The text ends before the first of end_ids."
    )


def _samplers(model: ModelConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the presets that the host program can run with the model, by name."""
    family = families().get(model.family)
    for name in dict.fromkeys([*(family.presets if family else ()), "threshold", _DEFAULT]):
        try:
            config = with_ids(SamplerConfig.preset(name), model)
            spec = StepSpec(model, config)
            spec.check()
        except ValueError:  # the preset is for other models
            continue
        rule, parity, scores = config.rule, config.parity, score_rules(config)
        runs = config.window.name == "by_cache" and config.drafter is None and rule.name in _RULES
        if runs and config.remasking != "random" and not scores.discounted:
            yield (
                name,
                {
                    "gen_length": config.gen_length,
                    "block_length": config.block_length,
                    "steps": None if config.steps == config.gen_length else config.steps,
                    "window": config.window.cache,
                    "attention": spec.attention,
                    "starts_blocks_alone": spec.starts_blocks_alone,
                    "block_origin": parity.block_origin,
                    "last_block": parity.last_block,
                    "rule": rule.name,
                    "threshold": getattr(rule, "threshold", None),
                    "strict_threshold": parity.strict_threshold,
                    "forced_progress": parity.forced_progress,
                    "schedule": parity.schedule,
                    "priority": config.remasking,
                    "eos_early_stop": config.eos_early_stop,
                    "head": "head" if scores.plain else "head_chunk",
                    "confidence_dtype": scores.confidence_dtype,
                    "forbidden_ids": list(scores.forbidden),
                },
            )


def _chat(tokenizer: Tokenizer) -> dict[str, Any] | None:
    """Returns a chat template as text before and after each message, or None if it is none or does
    more than that."""
    if tokenizer.chat_template is None:
        return None

    def rendered(*chat: tuple[str, str], answer: bool = False) -> str:
        messages = [{"role": role, "content": content} for role, content in chat]
        return tokenizer.apply_chat_template(messages, add_generation_prompt=answer)

    try:
        first, second = ("user", _ASKED), ("assistant", _ANSWERED)
        one, two, three = rendered(first), rendered(first, second), rendered(first, second, first)
        roles = {
            "user": _around(_ASKED, three.removeprefix(two)),
            "assistant": _around(_ANSWERED, two.removeprefix(one)),
        }
        user = _ASKED.join(roles["user"].values())
        chat = {
            "begin": one.removesuffix(user),
            "roles": roles,
            "answer": rendered(first, answer=True).removeprefix(one),
            "trim": rendered(("user", f" {_ASKED} ")) == one,
        }
        probes = [*_PROBES]
        try:
            system = rendered(("system", _SYSTEM), first).removesuffix(user)
            roles["system"] = _around(_SYSTEM, system)
        except ValueError:  # the template takes no system message
            probes.pop()
        same = (rendered(*probe, answer=True) == described_chat(chat, probe) for probe in probes)
        return chat if all(same) else None
    except ValueError:
        return None


def _nfc(tokenizer: Tokenizer) -> dict[str, list[int]] | None:
    """Returns the tables of Unicode's normalization form C, if the tokenizer needs them."""
    normalizer = json.loads(tokenizer.backend.to_str())["normalizer"]
    return _nfc_tables() if normalizer == {"type": "NFC"} else None


@cache
def _nfc_tables() -> dict[str, list[int]]:
    decompositions, excluded, classes = [], [], []
    for code, character in enumerate(map(chr, range(0x30000))):
        parts = unicodedata.decomposition(character)
        if parts and parts[0] != "<":
            first, second, *_ = [*(int(part, 16) for part in parts.split()), 0]
            decompositions += [code, first, second]
            if unicodedata.normalize("NFC", character) != character:
                excluded.append(code)
        if combining := unicodedata.combining(character):
            classes += [code, combining]
    return {"decompositions": decompositions, "excluded": excluded, "classes": classes}


def _around(content: str, text: str) -> dict[str, str]:
    """Returns what a text has before and after a content. Raises ValueError without one."""
    prefix, suffix = text.split(content)
    return {"prefix": prefix, "suffix": suffix}


def described_chat(chat: Mapping[str, Any], messages: list[tuple[str, str]]) -> str:
    """Returns a chat with an open answer, as a host renders it from the contract."""
    text = "" if messages[0][0] == "system" else chat["begin"]
    for role, content in messages:
        parts = chat["roles"][role]
        text += parts["prefix"] + (content.strip() if chat["trim"] else content) + parts["suffix"]
    return text + chat["answer"]
