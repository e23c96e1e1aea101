"""The documentation site: these pages, and the public names with their docstrings."""

import re

import llada_jax

project, author, copyright = "llada_jax", "The llada_jax authors", "2026, the llada_jax authors"
version = release = llada_jax.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
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
autodoc_typehints = "none"


def adapt_links(app, page, source):
    """Makes notebooks downloads, and replaces other links to files outside `docs` by their text."""
    notebook = r"(?<!!)\[([^\]]*)\]\((\.\./notebooks/[^)]*)\)"
    source[0] = re.sub(notebook, r"{download}`\1 <\2>`", source[0])
    source[0] = re.sub(r"(?<!!)\[([^\]]*)\]\(\.\./[^)]*\)", r"\1", source[0])


def setup(app):
    app.connect("source-read", adapt_links)
