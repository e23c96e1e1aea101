"""Generations on disk: round trip, resuming, damaged or foreign folders, and workers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llada_jax.evaluation.generations import (
    ALONE,
    Generation,
    GenerationBatch,
    GenerationStore,
    Worker,
)
from llada_jax.evaluation.task import Item

SETTINGS = {"task": {"name": "sums", "seed": 3}, "sampler": {"threshold": 0.9, "cache": "none"}}


def batch(first: int, count: int) -> GenerationBatch:
    items = [
        Item(f"{i} + 1?", f"#### {i + 1}", str(i + 1), ("a", "ü", "c\n", "d")) for i in range(count)
    ]
    return GenerationBatch(
        [
            Generation(first + i, item, item.answer, [i, 7], 2, 5 + i)
            for i, item in enumerate(items)
        ],
        seconds=0.25,
        compiled=first == 0,
    )


@pytest.fixture
def store(tmp_path) -> GenerationStore:
    store = GenerationStore.begin(tmp_path / "generations", SETTINGS)
    store.add(batch(10, 3))
    store.add(batch(0, 10))
    return store


def test_stored_batches_are_read_in_the_order_of_items(store):
    found = GenerationStore.load(store.folder)
    assert found.settings == SETTINGS
    assert found.batches() == [batch(0, 10), batch(10, 3)]
    assert [each.index for each in found.generations()] == list(range(13))


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85"])
def test_only_a_line_feed_ends_a_line(store, end):
    generations = [each._replace(text=f"a{end}b{end}") for each in batch(13, 2).generations]
    store.add(GenerationBatch(generations, seconds=1.0, compiled=False))
    assert store.generations()[13:] == generations


def test_a_batch_keeps_its_environment_if_the_run_resumes_in_another(store):
    environment = {"git_sha": "ab", "packages": {"jax": "1"}}
    store.add(batch(13, 2)._replace(environment=environment))
    assert [each.environment for each in store.batches()] == [None, None, environment]


def test_a_batch_without_environment_can_be_read(store):
    path = store.folder / "000000.jsonl"
    header, rest = path.read_text().split("\n", 1)
    old = {key: value for key, value in json.loads(header).items() if key != "environment"}
    path.write_text(f"{json.dumps(old)}\n{rest}")
    assert store.batches()[0] == batch(0, 10)


def test_a_store_resumes_with_the_same_settings(store):
    assert len(GenerationStore.begin(store.folder, SETTINGS).generations()) == 13


def test_different_settings_are_refused_by_name(store):
    other = {**SETTINGS, "sampler": {"threshold": 0.8, "cache": "none"}}
    with pytest.raises(ValueError, match=r"sampler\.threshold is 0\.9 there and 0\.8 here"):
        GenerationStore.begin(store.folder, other)
    assert len(store.generations()) == 13


def test_a_folder_of_another_version_is_refused(store):
    path = store.folder / "settings.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    for opening in (
        lambda: GenerationStore.load(store.folder),
        lambda: GenerationStore.begin(store.folder, SETTINGS),
    ):
        with pytest.raises(ValueError, match=r"has format 2; allowed: 1"):
            opening()


def test_a_folder_without_generations_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no settings\.json"):
        GenerationStore.load(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text[: text.rindex("\n", 0, -1) + 1],
        lambda text: text.replace("#### 3", "#### 4"),
        lambda text: "",
        lambda text: "[]\n" + text,
        lambda text: text[text.index("\n") + 1 :],
        lambda text: text.replace('"seconds"', '"minutes"', 1),
        lambda text: text.replace('"environment": null', '"environment": 3', 1),
    ],
    ids=[
        *("half", "a line less", "a digit changed", "empty", "a list", "no header", "no seconds"),
        "a number for an environment",
    ],
)
def test_a_damaged_file_is_named(store, damage):
    path = store.folder / "000000.jsonl"
    path.write_text(damage(path.read_text()))
    with pytest.raises(ValueError, match=r"000000\.jsonl"):
        store.generations()


def test_a_file_that_is_not_text_is_named(store):
    path = store.folder / "000000.jsonl"
    path.write_bytes(path.read_bytes().replace("ü".encode(), b"\xfc"))
    with pytest.raises(ValueError, match=r"000000\.jsonl is damaged: .*utf-8"):
        store.generations()


@pytest.mark.parametrize("text", ["[]", "{}", '{"format": 1}', '{"format": 1, "settings": []}'])
def test_incomplete_settings_files_are_named(store, text):
    (store.folder / "settings.json").write_text(text)
    with pytest.raises(ValueError, match=r"settings\.json is damaged"):
        GenerationStore.load(store.folder)


def test_an_interrupted_write_leaves_no_batch(store, monkeypatch):
    def killed(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr("pathlib.Path.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        store.add(batch(13, 2))
    monkeypatch.undo()
    assert len(store.generations()) == 13


@pytest.mark.parametrize("name", ["000000.jsonl", "000010.jsonl"])
def test_a_deleted_batch_is_an_error_unless_the_run_resumes(store, name):
    (store.folder / name).unlink()
    loaded = GenerationStore.load(store.folder)
    for reading in (loaded.batches, loaded.generations, lambda: list(loaded.traces())):
        with pytest.raises(ValueError, match=rf"generations lacks {name}; allowed: all files"):
            reading()
    again = GenerationStore.begin(store.folder, SETTINGS)
    assert len(again.batches()) == 1
    again.add(batch(0, 10) if name == "000000.jsonl" else batch(10, 3))
    assert len(loaded.generations()) == 13


def test_a_deleted_batch_may_be_decoded_in_other_batches(store):
    (store.folder / "000000.jsonl").unlink()
    again = GenerationStore.begin(store.folder, SETTINGS)
    again.add(batch(0, 4))
    with pytest.raises(ValueError, match=r"lacks 000004\.jsonl"):
        GenerationStore.load(store.folder).batches()
    again.add(batch(4, 6))
    assert len(GenerationStore.load(store.folder).generations()) == 13


@pytest.mark.parametrize("name", ["000000 (copy).jsonl", "000013.jsonl"])
def test_a_duplicated_batch_is_refused(store, name):
    (store.folder / name).write_bytes((store.folder / "000000.jsonl").read_bytes())
    for opening in (GenerationStore.load, lambda folder: GenerationStore.begin(folder, SETTINGS)):
        with pytest.raises(ValueError, match=r"000000.*\.jsonl and .* both have item 0; allowed"):
            opening(store.folder).batches()


def test_a_store_without_a_recorded_item_count_can_be_read(store):
    """Those of earlier versions: a gap is missed, an end is not."""
    path = store.folder / "settings.json"
    old = {key: value for key, value in json.loads(path.read_text()).items() if key != "items"}
    path.write_text(json.dumps(old))
    assert len(GenerationStore.load(store.folder).generations()) == 13
    (store.folder / "000000.jsonl").unlink()
    with pytest.raises(ValueError, match=r"lacks 000000\.jsonl"):
        GenerationStore.load(store.folder).batches()
    path.write_text(json.dumps({**old, "items": "3"}))
    with pytest.raises(ValueError, match=r"settings\.json is damaged: items is '3'"):
        GenerationStore.load(store.folder).batches()


def test_edited_settings_are_detected(store):
    path = store.folder / "settings.json"
    path.write_text(path.read_text().replace("0.9", "0.8"))
    with pytest.raises(
        ValueError, match=r"settings\.json is damaged: the hash of its settings is a"
    ):
        GenerationStore.load(store.folder)


@given(st.integers(1, 9), st.integers(0, 20))
def test_each_batch_belongs_to_one_worker(count, before):
    workers = [Worker(rank=rank, count=count) for rank in range(count)]
    for batch in range(20):
        assert sum(each.takes(batch) for each in workers) == 1
        assert sum(each.after(before).takes(batch) for each in workers) == 1
    # Batches of a second store continue after the rank of the first store's last batch.
    following = [each.after(before).takes(0) for each in workers]
    assert following == [each.takes(before) for each in workers]


def test_a_single_worker_takes_all_batches():
    assert ALONE.is_alone and all(ALONE.takes(batch) for batch in range(9))
    assert not Worker(rank=0, count=2).is_alone


@pytest.mark.parametrize("rank", [-1, 3, 7])
def test_a_rank_outside_of_the_count_is_an_error(rank):
    with pytest.raises(ValueError, match=rf"worker\.rank is {rank} of .*count=3; allowed: 0 to 2"):
        Worker(rank=rank, count=3)
