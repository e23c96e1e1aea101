"""Models an autoregressive model on phones, with and without drafts: what a block of rows costs.

    python -m experiments.drafts_on_phones
    python -m experiments.drafts_on_phones trained=outputs/draft set=domains
    python -m experiments.drafts_on_phones accepted=[0.6,0.4,0.3] drafter_layers=5 kernels=vendor

A forward of B rows verifies B - 1 drafts. It yields 1 + a(1) + ... + a(B - 1) tokens, where a(k) is
the share of cycles whose first k drafts are accepted: measured by `experiments.train_draft`
(`trained`), or given. Before each forward the drafter runs: some layers of the model's width over
the same rows, and the head. All times are modelled; bands are 95 % intervals of the device model.
`relative/...` is a forward's time divided by the time of one row: more tokens per forward than this
save time. The run folder gets `blocks.png`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from pathlib import Path
from typing import Any, Literal

import llada_jax as lj
from experiments.harness.pictures import GRID, new_figure, require_plots, save
from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from llada_jax.config import (
    ModelConfig,
    ascending_counts,
    require,
    require_choice,
    require_counts,
)
from llada_jax.model.architecture import architecture
from llada_jax.phones.workload import Forward, Workload, autoregressive, round_cache

Split = Literal["templates", "domains"]


@dataclass(frozen=True, kw_only=True)
class DraftsOnPhonesConfig:
    """Settings of the verb; conf/drafts_on_phones.yaml explains each."""

    phones: tuple[str, ...] = ("SM8650", "SM8750", "SM8850")
    shapes: tuple[str, ...] = ("smollm2_135m", "qwen3_4b", "llama3_8b")
    kernels: str = "llada_cpp"
    trained: str | None = None
    set: Split = "templates"
    accepted: tuple[float, ...] = ()
    drafter_layers: int = 3
    blocks: tuple[int, ...] = (1, 2, 4, 6, 8, 16, 32, 64)
    prompt: int = 80
    tokens: int = 128
    pictures: bool = True

    def __post_init__(self) -> None:
        require_counts(self, "drafter_layers", "prompt", "tokens")
        require_choice("set", self.set, Split)
        blocks = ascending_counts("blocks", self.blocks)
        require(blocks[0] == 1, f"blocks is {list(blocks)}; allowed: 1 first, for plain decoding")
        require(
            (self.trained is None) != (not self.accepted),
            "accepted and trained are both given, or neither; allowed: one of them",
        )
        falling = all(a >= b for a, b in zip((1.0, *self.accepted), self.accepted, strict=False))
        require(
            falling and min(self.accepted, default=0) >= 0,
            f"accepted is {list(self.accepted)}; allowed: shares from 1 to 0, descending",
        )
        if self.pictures:
            require_plots("pictures=true")

    def acceptance(self) -> list[float]:
        """Returns the share of cycles whose first 1, 2, ... drafts are accepted."""
        if self.trained is None:
            return [*self.accepted]
        rows = json.loads((Path(self.trained) / "results.json").read_text("utf-8"))
        start = f"{self.set}/accepted_"
        shares = [row["value"] for row in rows if row["name"].startswith(start)]
        require(bool(shares), f"{self.trained} has no rows {start}*; allowed: a finished run")
        return shares


def model_drafts(config: DraftsOnPhonesConfig, run: Run) -> None:
    """Times every shape on every phone, for every block size."""
    by_drafts, rows = [*accumulate(config.acceptance(), initial=1.0)], []
    # More drafts than there are shares gain nothing.
    gained = {block: by_drafts[min(block, len(by_drafts)) - 1] for block in config.blocks}
    phones = {soc: lj.phone(soc, kernels=config.kernels) for soc in config.phones}
    run.begin()
    relative = {}
    for name in config.shapes:
        for soc, phone in phones.items():
            rows += list(_rows(config, phone, architecture(name), f"{name}/{soc}", gained))
            table = phone.latency_table(name, config.blocks)
            relative[name, soc] = [ms / table.ms[0] for ms in table.ms]
            for block, value in zip(config.blocks, relative[name, soc], strict=True):
                row_name = f"relative/{name}/{soc}/{block}"
                rows.append(ResultRow(row_name, value, "times one row", kind="modelled"))
    if config.pictures:
        save(_picture(config, relative, gained), run.folder / "blocks.png")
    run.finish(rows)


def _rows(
    config: DraftsOnPhonesConfig,
    phone: lj.Phone,
    shape: ModelConfig,
    name: str,
    gained: dict[int, float],
) -> Iterator[ResultRow]:
    """Yields the seconds of an answer by block size."""
    for block in config.blocks:
        count = ceil((config.tokens - 1) / gained[block])
        seconds, low, high = _seconds(config, phone, shape, block, count, heads=block)
        if block > 1:
            layers = shape.replace(n_layers=config.drafter_layers)
            drafter = _seconds(config, phone, layers, block, count, heads=block - 1)
            pairs = zip((seconds, low, high), drafter, strict=True)
            seconds, low, high = (target + extra for target, extra in pairs)
        unit = f"s for {config.tokens} tokens"
        yield ResultRow(f"{name}/{block}", seconds, unit, kind="modelled", band=(low, high))


def _seconds(
    config: DraftsOnPhonesConfig,
    phone: lj.Phone,
    shape: ModelConfig,
    block: int,
    count: int,
    heads: int,
) -> tuple[float, float, float]:
    """Returns the seconds of a prompt and `count` forwards of a block, and their 95 % interval."""
    if block == 1:
        workload = autoregressive(config.prompt, config.tokens)
    else:
        reads = (config.prompt + i * config.tokens // count for i in range(count))
        later = (Forward(block, round_cache(read), heads) for read in reads)
        first = Forward(config.prompt, 0, 1)
        workload = Workload((first, *later), config.tokens, config.prompt, "drafts")
    result = phone.time(workload, shape)
    return result.seconds, *result.interval


def _picture(
    config: DraftsOnPhonesConfig,
    relative: dict[tuple[str, str], list[float]],
    gained: dict[int, float],
) -> Any:
    """Draws the cost of a block relative to one row, beside the tokens that it yields."""
    figure = new_figure(3.6 * len(config.shapes), 3.6)
    panels = figure.subplots(1, len(config.shapes), sharey=True, squeeze=False)[0]
    for axes, shape in zip(panels, config.shapes, strict=True):
        for soc in config.phones:
            axes.plot(config.blocks, relative[shape, soc], marker="o", markersize=3, label=soc)
        axes.plot(
            config.blocks,
            [*gained.values()],
            color="black",
            linestyle="--",
            label="tokens per forward",
        )
        axes.set_xscale("log", base=2)
        axes.set_xticks(config.blocks, [str(block) for block in config.blocks])
        axes.set(title=shape, xlabel="rows of a forward")
        axes.grid(**GRID)
    panels[0].set_ylim(bottom=0)
    panels[0].set_ylabel("time of a forward / time of one row")
    panels[0].legend(fontsize="small")
    return figure


main = entry_point("drafts_on_phones", model_drafts, DraftsOnPhonesConfig)
