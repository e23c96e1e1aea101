"""Links and commands of the pages work, tables agree with results, and a figure is on one page."""

import ast
import importlib
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

import llada_jax as lj
from experiments.generate.__main__ import verbatim_prompt
from tests.page_tables import template, with_tables
from tests.pages import FENCE, PAGES, README, ROOT, TABLE, Page, commands_in, precise_figures

INDEX = Page(ROOT / "docs/index.md")
PLACEHOLDER = "<verb>"

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def test_the_glossary_has_each_term_once():
    terms = [row.split("|")[1].strip() for row in Page(ROOT / "docs/glossary.md").rows]
    terms = [term for term in terms if term != "word" and set(term) != {"-"}]
    assert len(terms) == len(set(terms))


@each_page
def test_links_resolve(page):
    for target in page.links:
        path, _, anchor = target.partition("#")
        file = (page.path.parent / path).resolve() if path else page.path
        assert file.exists(), target
        assert not anchor or anchor in Page(file).anchors, target


@each_page
def test_files_that_are_named_exist(page):
    names = [word for line in page.prose.split("`")[1::2] for word in line.split()]
    folders = ("llada_jax/", "experiments/", "conf/", "tests/", "docs/", "notebooks/")
    paths = [name for name in names if name.startswith(folders) and "<" not in name]
    assert [path for path in paths if not any(ROOT.glob(path.partition("::")[0]))] == []


def test_every_page_is_linked_from_the_readme_or_the_start_page():
    linked = {
        (page.path.parent / link.partition("#")[0]).resolve()
        for page in (README, INDEX)
        for link in page.links
    }
    assert {page.path for page in PAGES} - linked <= {README.path, INDEX.path}


def test_every_page_is_on_the_site():
    pages = {page.path.stem for page in PAGES if page.path.parent == INDEX.path.parent}
    assert pages - {INDEX.path.stem} == set(re.findall(r"^(\w+)$", INDEX.text, re.MULTILINE))


def test_no_statement_is_on_two_pages():
    """Rows of tables and sentences that share two figures state the same result."""
    statements = [
        (page.name, text, precise_figures(text))
        for page in PAGES
        for text in [*page.rows, *page.sentences]
    ]
    statements = [statement for statement in statements if len(statement[2]) > 1]
    repeated = [
        (one[:2], other[:2])
        for one, other in itertools.combinations(statements, 2)
        if one[0] != other[0] and len(one[2] & other[2]) > 1
    ]
    assert repeated == []


@each_page
def test_tables_agree_with_the_stored_results(page):
    assert with_tables(page.source) == page.source, "python -m tests.page_tables"


def test_every_stored_result_and_template_is_on_a_page():
    tables = [name for page in PAGES for _, name, *_ in TABLE.findall(page.source)]
    templates = {path.stem for path in (ROOT / "docs/tables").glob("*.txt")}
    results = {path.name for path in (ROOT / "docs/results").glob("*.json")}
    assert set(tables) == templates
    assert results == {template(name)[0].removeprefix("results/") for name in tables}


def test_fields_show_rows_of_a_run(tmp_path, monkeypatch):
    row = {"name": "a/b:0.9", "value": 0.981, "interval": [0.97, 0.99], "unit": "s", "n": 30}
    ends = [{"name": f"a/b:0.9/{end}_quartile", "value": 1} for end in ("lower", "upper")]
    for folder in ("results", "tables"):
        (tmp_path / folder).mkdir()
    (tmp_path / "results/run.json").write_text(json.dumps([row, *ends]))
    fields = (
        "{100*a/b:0.9:.1f} % ({100*a/b:0.9|low:.0f} to {100*a/b:0.9|high:.0f})"
        ", {a/b:0.9|n:.0f}, {a/b:0.9 / a/b:0.9:.0f}\n"
        "%% for way in ('a/b:0.9',)\n"
        "{100*<<way>>|interval:.0f %}, {<<way>>|quartiles:.1f s}\n"
        "%% endfor\n"
    )
    table = tmp_path / "tables/run.txt"
    table.write_text(f"results/run.json\n{fields}")
    monkeypatch.setattr("tests.page_tables.DOCS", tmp_path)
    shown = "98.1 % (97 to 99), 30, 1\n98 % (97 to 99), 1.0 s (1.0 to 1.0)\n"
    page = f"One\n<!-- table run -->\n{shown}<!-- end -->\nTwo\n"
    assert with_tables(page) == with_tables(page.replace("98.1", "3")) == page
    table.write_text(table.read_text().replace("a/b", "a/c"))
    with pytest.raises(KeyError, match="a/c"):
        with_tables(page)


def test_no_figure_of_a_sentence_is_on_two_pages():
    pages_of: dict[str, set[str]] = {}
    for page in PAGES:
        for figure in precise_figures(" ".join(page.sentences)):
            pages_of.setdefault(figure, set()).add(page.name)
    assert {figure: pages for figure, pages in pages_of.items() if len(pages) > 1} == {}


def test_the_page_of_commands_has_every_verb():
    folder = ROOT / "experiments"
    verbs = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    verbs |= {path.parent.name for path in folder.glob("*/__main__.py")}
    text = Page(ROOT / "docs/commands.md").text
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == verbs


ENTRIES = sorted({*(ROOT / "experiments").glob("*.py"), *ROOT.glob("experiments/*/__main__.py")}
                 - {ROOT / "experiments/__init__.py"})  # fmt: skip


@pytest.mark.parametrize("path", ENTRIES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_help_of_a_verb_has_three_examples_that_compose(path):
    """A verb's `--help` begins with the description of its module."""
    about = ast.get_docstring(ast.parse(path.read_text()))
    assert about and "${" not in about
    importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    verb = path.parent.name if path.stem == "__main__" else path.stem
    commands = [words for words in commands_in(about) if words[0] == verb]
    assert len(commands) >= 3
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        for _, *arguments in commands:
            assert composed(verb, *arguments).keys(), arguments


def _texts_with_commands() -> Iterator[str]:
    """Pages, text of notebooks, and settings with their comments."""
    yield from (page.text for page in PAGES)
    for path in ROOT.glob("notebooks/*.ipynb"):
        cells = json.loads(path.read_text("utf-8"))["cells"]
        yield from ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    yield from (path.read_text("utf-8") for path in ROOT.glob("conf/**/*.yaml"))


COMMANDS = sorted({tuple(words) for text in _texts_with_commands() for words in commands_in(text)})
VERBS = sorted({verb for verb, *_ in COMMANDS if verb != PLACEHOLDER})


@pytest.mark.parametrize("verb", VERBS)
def test_commands_have_a_verb_and_compose(verb):
    """Hydra raises for keys and choices that the configuration does not have."""
    package = (ROOT / "experiments" / verb).is_dir()
    module = importlib.import_module(
        f"experiments.{verb}.__main__" if package else f"experiments.{verb}"
    )
    assert callable(module.main)
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        for arguments in (rest for name, *rest in COMMANDS if name == verb):
            assert composed(verb, *arguments).keys(), arguments


@cache
def composed(verb: str, *command: str) -> DictConfig:
    """The configuration of a command, or of the first job of a sweep."""
    name, arguments = verb, list(command)
    if "--config-name" in arguments:
        index = arguments.index("--config-name")
        name = arguments[index + 1]
        arguments = arguments[:index] + arguments[index + 2 :]
    one_job = [argument for argument in arguments if argument != "-m"]
    if len(one_job) < len(arguments):
        one_job = [word if "[" in word else word.split(",")[0] for word in one_job]
    return compose(name, verbatim_prompt(one_job))


@pytest.mark.slow
def test_the_readme_s_lines_of_python_run():
    (code,) = [code for language, code in FENCE.findall(README.text) if language == "python"]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) > 2


def program_of(page: Page) -> str:
    return "\n".join(code for language, code in FENCE.findall(page.text) if language == "python")


def test_every_public_name_has_an_example():
    examples = program_of(Page(ROOT / "docs/api.md"))
    assert {name for name in lj.__all__ if not re.search(rf"lj\.{name}\b", examples)} == set()


@pytest.mark.slow
@pytest.mark.parametrize(("page", "written"), [("api", ["exported"]), ("custom_rules", [])])
def test_examples_run(page, written, tmp_path):
    code = program_of(Page(ROOT / f"docs/{page}.md"))
    command = [sys.executable, "-W", "error::SyntaxWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == written


def test_the_map_names_every_room():
    tree = Page(ROOT / "ARCHITECTURE.md").text
    rooms = [path for path in (ROOT / "llada_jax").iterdir() if path.name != "assets"]
    names = {path.stem for path in rooms if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert {name for name in names if not re.search(rf"^  {name}\b", tree, re.MULTILINE)} == set()
