"""Published figures, in two files: those that calibration may read, and those it is judged by."""

import json
from os import PathLike
from pathlib import Path
from typing import Any

from llada_jax.config import require

PUBLISHED = Path(__file__).parent / "published"
FIT_FIGURES = (
    *("table2_step_ms", "fig3a_ffn_down_ms", "fig3b_ffn_down_32_rows_ms", "fig5d_ffn_op_ms"),
    *("fig13c_ends_ms", "fig11_cells_SM8750_128", "genie_llama_3b"),
    *("fig5a_tail_steps_pct", "fig5b", "fig5c_skippable_decision_pct", "fig8_first_commit_step"),
    *("platform_ledger_3b_w16a16", "platform_fc_64_rows"),
    *("platform_bandwidth_gbps", "platform_remap_sweep"),
)
"""All that `fit.json` may hold: what the calibration is allowed to know."""


def read_fit_figures(folder: str | PathLike[str] = PUBLISHED) -> dict[str, Any]:
    """Reads `fit.json`. Raises ValueError where it holds a figure that is not for fitting."""
    figures = _read(Path(folder) / "fit.json")
    for name in figures:
        require(
            name in (*FIT_FIGURES, "about", "source"),
            f"{name} is in fit.json; allowed: {', '.join(FIT_FIGURES)}",
        )
    for name in FIT_FIGURES:
        require(name in figures, f"{name} is missing from fit.json")
    return figures


def read_validation_figures(folder: str | PathLike[str] = PUBLISHED) -> dict[str, Any]:
    """Reads `validation.json`, which `llada_jax.phone.fit` never reads."""
    return _read(Path(folder) / "validation.json")


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
