"""Templates of this folder, filled in."""

from pathlib import Path
from typing import Any


def filled(name: str, **values: Any) -> str:
    """Returns the text of a template; values are escaped unless it says otherwise."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent)
    return Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    ).get_template(name).render(values)  # fmt: skip
