"""Pages are short, their links and commands work, and no number stands in two places."""

import ast
import importlib
import itertools
import json
import re
import subprocess
import sys
from functools import cache

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

import llada_jax as lj
from experiments.generate.__main__ import verbatim_prompt
from tests.assembled import assembled
from tests.pages import FENCE, LINK, PAGES, README, ROOT, Page, commands_in, precise_figures

MOST_WORDS, MOST_TERMS, MOST_WORDS_A_SENTENCE = 700, 40, 35
INDEX = Page(ROOT / "docs/index.md")
PLACEHOLDER = "<verb>"

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def test_the_readme_is_short():
    assert len(README.text.split()) <= MOST_WORDS


def test_the_glossary_has_at_most_forty_terms_each_once():
    rows = Page(ROOT / "docs/glossary.md").rows
    terms = [row.split("|")[1].strip() for row in rows]
    terms = [term for term in terms if term != "word" and set(term) != {"-"}]
    assert len(terms) == len(set(terms)) <= MOST_TERMS


@each_page
def test_sentences_are_short(page):
    plain = [LINK.sub(r"\1", sentence) for sentence in page.sentences]
    assert [each for each in plain if len(each.split()) > MOST_WORDS_A_SENTENCE] == []


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


def test_every_page_is_linked_from_the_readme():
    linked = {(README.path.parent / link.partition("#")[0]).resolve() for link in README.links}
    assert {page.path for page in PAGES} - linked == {README.path, INDEX.path}


def test_every_page_is_on_the_site():
    pages = {page.path.stem for page in PAGES if page.path.parent == INDEX.path.parent}
    assert pages - {INDEX.path.stem} == set(re.findall(r"^(\w+)$", INDEX.text, re.MULTILINE))


def test_no_statement_stands_on_two_pages():
    """Rows of tables and sentences that share two figures say the same thing."""
    stated = [
        (page.name, text, precise_figures(text))
        for page in PAGES
        for text in [*page.rows, *page.sentences]
    ]
    stated = [each for each in stated if len(each[2]) > 1]
    twice = [
        (one[:2], other[:2])
        for one, other in itertools.combinations(stated, 2)
        if one[0] != other[0] and len(one[2] & other[2]) > 1
    ]
    assert twice == []


@each_page
def test_what_is_assembled_is_what_was_stored(page):
    assert assembled(page.source) == page.source, "python -m tests.assembled"


def test_every_stored_result_is_on_a_page():
    stored = {path.name for path in (ROOT / "docs/results").glob("*.json")}
    named = {name for page in PAGES for name in re.findall(r"<!-- from results/(\S+)", page.source)}
    assert stored == named


def test_fields_show_rows_of_a_run(tmp_path, monkeypatch):
    row = {"name": "a/b:0.9", "value": 0.981, "interval": [0.97, 0.99], "unit": "s", "n": 30}
    (tmp_path / "results").mkdir()
    (tmp_path / "results/run.json").write_text(json.dumps([row]))
    monkeypatch.setattr("tests.assembled.DOCS", tmp_path)
    comment = (
        "<!-- from results/run.json\n"
        "{100*a/b:0.9:.1f} % ({100*a/b:0.9|low:.0f} to {100*a/b:0.9|high:.0f})"
        ", {a/b:0.9|n:.0f}, {a/b:0.9 / a/b:0.9:.0f}\n"
        "-->\n"
    )
    page = f"One\n{comment}98.1 % (97 to 99), 30, 1\nTwo\n"
    assert assembled(page) == assembled(page.replace("98.1", "3")) == page
    with pytest.raises(KeyError, match="a/c"):
        assembled(page.replace("a/b", "a/c"))


def test_no_figure_of_a_sentence_stands_on_two_pages():
    places: dict[str, set[str]] = {}
    for page in PAGES:
        for figure in precise_figures(" ".join(page.sentences)):
            places.setdefault(figure, set()).add(page.name)
    assert {figure: pages for figure, pages in places.items() if len(pages) > 1} == {}


def test_the_readme_names_every_verb():
    folder = ROOT / "experiments"
    verbs = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    verbs |= {path.parent.name for path in folder.glob("*/__main__.py")}
    assert set(re.findall(r"^- `(\w+)` ", README.text, re.MULTILINE)) == verbs


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


COMMANDS = sorted({(verb, *rest) for page in PAGES for verb, *rest in page.commands})
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
def composed(verb: str, *asked: str) -> DictConfig:
    """The configuration of a command; of its first job where it is a sweep."""
    name, arguments = verb, list(asked)
    if "--config-name" in arguments:
        place = arguments.index("--config-name")
        name = arguments[place + 1]
        arguments = arguments[:place] + arguments[place + 2 :]
    one_job = [each for each in arguments if each != "-m"]
    if len(one_job) < len(arguments):
        one_job = [each if "[" in each else each.split(",")[0] for each in one_job]
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
def test_the_examples_of_public_names_run(tmp_path):
    code = program_of(Page(ROOT / "docs/api.md"))
    command = [sys.executable, "-W", "error::SyntaxWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "exported").is_dir()


def test_the_map_names_every_room():
    tree = Page(ROOT / "ARCHITECTURE.md").text
    rooms = [path for path in (ROOT / "llada_jax").iterdir() if path.name != "assets"]
    names = {path.stem for path in rooms if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert {name for name in names if not re.search(rf"^  {name}\b", tree, re.MULTILINE)} == set()
