"""The documentation site: these pages, the notebooks, and a page for each public name."""

import inspect
import re
import shutil
from pathlib import Path

import llada_jax

project, author, copyright = "llada_jax", "The llada_jax authors", "2026, the llada_jax authors"
version = release = llada_jax.__version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
nb_execution_mode = "off"  # notebooks are stored with their outputs; tests execute them
nb_render_markdown_format = "gfm"  # their tables
exclude_patterns = ["templates"]
html_theme = "furo"
html_title = f"llada_jax {release}"
html_static_path = html_css_files = ["site.css"]
# The site is opened from files, and browsers do not let a search read pages from files.
html_show_search_summary = False
# The same anchors as on GitHub.
myst_heading_anchors = 3
# Docstrings mark code as Markdown does.
default_role = "code"
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_typehints_format = "short"
templates_path = ["templates"]

# Sphinx only reads pages below its folder.
docs = Path(__file__).parent
shutil.copytree(docs.parent / "notebooks", docs / "notebooks", dirs_exist_ok=True)


def adapt_links(app, page, source):
    """Points links between pages and notebooks to the copies of the notebooks, and replaces other
    links to files outside `docs` by their text."""
    if page.startswith("notebooks/"):
        source[0] = source[0].replace("](../docs/", "](../")
        return
    source[0] = source[0].replace("](../notebooks/", "](notebooks/")
    source[0] = re.sub(r"(?<!!)\[([^\]]*)\]\(\.\./[^)]*\)", r"\1", source[0])


def describe_field(app, what, name, field, options, lines):
    """Describes a record's field by the comment beside it."""
    if what == "attribute" and (not lines or lines[0].startswith("Alias for field number")):
        _, record, attribute = name.split(".")
        source = inspect.getsource(getattr(llada_jax, record))
        lines[:] = re.findall(rf"^    {attribute}: .*?  # (.*)", source, re.MULTILINE)


def setup(app):
    app.connect("source-read", adapt_links)
    app.connect("autodoc-process-docstring", describe_field)
