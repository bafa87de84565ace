"""What a home asks of any file system: one suite for all of them."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.storage.local import LocalStore
from airflow_provider_exactlyonce.storage.opening import is_there, store_of
from airflow_provider_exactlyonce.storage.remote import RemoteStore
from airflow_provider_exactlyonce.storage.store import ChangedError, HeldError, Readable, Stored
from tests.clean_forks import Forks, clean_forks

# The clients of object stores have deprecations of their own.
pytestmark = pytest.mark.filterwarnings("default")

RACES, WRITERS = 5, 8


def raced(writers: int, write: Callable[[int], object], *refusals: type[Exception]) -> Counter[str]:
    """Let many write at the same time; returns what became of them."""
    outcomes: Counter[str] = Counter()
    barrier = threading.Barrier(writers)

    def race(number: int) -> None:
        barrier.wait()
        try:
            write(number)
        except refusals as error:
            outcomes[type(error).__name__] += 1
        except Exception as error:
            outcomes[repr(error)] += 1
        else:
            outcomes["won"] += 1

    threads = [threading.Thread(target=race, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def test_what_was_written_is_read_and_listed_and_what_was_deleted_is_not(folder: Path) -> None:
    store, place = store_of(folder), folder / "control" / "a.json"
    assert store.read(place) is None
    assert store.facts(place) is None
    assert list(store.names(folder / "control")) == []
    first = store.create(place, b"one")
    assert store.read(place) == Stored(content=b"one", version=first)
    second = store.replace(place, b"second", durable=False)
    assert store.read(place) == Stored(content=b"second", version=second)
    facts = store.facts(place)
    assert facts is not None
    assert facts.size == 6
    store.create(folder / "control" / "b" / "c.json", b"")
    store.create(folder / "controls", b"not in it")
    assert list(store.names(folder / "control")) == ["a.json", "b"]
    store.delete(place)
    store.delete(place)
    assert store.read(place) is None
    store.remove(folder / "control")
    store.remove(folder / "control")
    assert store.read(folder / "control" / "b" / "c.json") is None
    assert store.read(folder / "controls") is not None
    assert store.names(folder / "control") in ([], (), ["b"])  # a directory in which nothing is may be named yet


@pytest.mark.parametrize("name", ["a b", "a%2Fb%20c", "ü+&=@,'!(1)~", "100%"])
def test_a_name_may_have_any_letters(folder: Path, name: str) -> None:
    store, home = store_of(folder), folder / name
    version = store.create(home / name, b"one")
    store.create(folder / f"{name}-2" / name, b"of another")
    assert store.read(home / name) == Stored(content=b"one", version=version)
    version = store.replace_if(home / name, b"two", version)
    store.copy(home / name, home / "copies" / name)
    assert [found for found in store.names(home) if not found.endswith(".lock")] == sorted([name, "copies"])
    assert [found for found in store.files(home) if not found.endswith(".lock")] == sorted([name, f"copies/{name}"])
    store.delete_if(home / name, version)
    store.remove(home)
    assert list(store.files(folder)) == [f"{name}-2/{name}"]


def test_all_files_below_are_told_and_those_of_nobody_are_not(folder: Path) -> None:
    store = store_of(folder)
    assert list(store.files(folder / "nothing")) == []
    for name in ("b", "a/2", "a/.2.crc", "a/c/1", ".exactlyonce-1/probe", "a/.exactlyonce-lock-2/file", "ab/3"):
        store.replace(folder / name, b"")
    assert list(store.files(folder)) == ["a/.2.crc", "a/2", "a/c/1", "ab/3", "b"]
    assert list(store.files(folder / "a")) == [".2.crc", "2", "c/1"]
    assert is_there(folder / "a")
    assert is_there(folder / "b")
    assert not is_there(folder / "nothing")


def test_nothing_is_below_a_file(folder: Path) -> None:
    store, place = store_of(folder), folder / "a"
    store.create(place, b"")
    assert store.read(place / "lineage.json") is None
    assert store.facts(place / "lineage.json") is None
    assert list(store.names(place)) == list(store.files(place)) == []


def test_a_file_is_created_once(folder: Path) -> None:
    store, place = store_of(folder), folder / "a"
    store.create(place, b"first")
    with pytest.raises(FileExistsError):
        store.create(place, b"second")
    assert store.read(place).content == b"first"  # type: ignore[union-attr]


def test_what_was_changed_is_neither_replaced_nor_deleted_on_a_condition(folder: Path) -> None:
    store, place = store_of(folder), folder / "a"
    with pytest.raises(ChangedError):
        store.replace_if(place, b"x", store.create(folder / "other", b"o"))
    first = store.create(place, b"first")
    second = store.replace_if(place, b"second", first)
    with pytest.raises(ChangedError):
        store.replace_if(place, b"third", first)
    with pytest.raises(ChangedError):
        store.delete_if(place, first)
    assert store.read(place) == Stored(content=b"second", version=second)
    store.delete_if(place, second)
    store.delete_if(place, second)
    assert store.read(place) is None
    with pytest.raises(ChangedError):
        store.replace_if(place, b"fourth", second)
    assert store.read(place) is None


def test_of_many_who_create_a_file_one_does(folder: Path) -> None:
    store = store_of(folder)
    for race in range(RACES):
        place = folder / f"race-{race}"

        def create(number: int, place: Path = place) -> None:
            store.create(place, b"%d" % number)

        assert raced(WRITERS, create, FileExistsError) == {"won": 1, "FileExistsError": WRITERS - 1}


def test_of_many_who_replace_one_version_one_does(folder: Path) -> None:
    store = store_of(folder)
    for race in range(RACES):
        place = folder / f"race-{race}"
        version = store.create(place, b"before")

        def replace(number: int, place: Path = place, version: str = version) -> None:
            store.replace_if(place, b"%d" % number, version)

        assert raced(WRITERS, replace, ChangedError) == {"won": 1, "ChangedError": WRITERS - 1}


def test_of_many_who_count_in_one_file_none_is_lost_and_none_counted_twice(folder: Path) -> None:
    store, place, each = store_of(folder), folder / "count", 5

    def count(_: int) -> None:
        done = 0
        while done < each:
            stored = store.read(place)
            try:
                if stored is None:
                    store.create(place, b"1")
                else:
                    store.replace_if(place, b"%d" % (int(stored.content) + 1), stored.version, durable=False)
            except (FileExistsError, ChangedError):
                continue
            done += 1

    assert raced(4, count) == {"won": 4}
    assert store.read(place).content == b"%d" % (4 * each)  # type: ignore[union-attr]


def test_a_reader_finds_whole_contents_only(folder: Path) -> None:
    store, place = store_of(folder), folder / "a"
    contents = {bytes([letter]) * 100_000 for letter in b"abc"}
    store.create(place, b"a" * 100_000)

    def work(number: int) -> None:
        for _ in range(10):
            if number:
                stored = store.read(place)
                assert stored is not None
                assert stored.content in contents
            else:
                for content in contents:
                    store.replace(place, content, durable=False)

    assert raced(3, work) == {"won": 3}


def test_a_copy_has_the_bytes_and_outlives_its_source(folder: Path, tmp_path: Path) -> None:
    store, source = store_of(folder), folder / "a" / "source"
    store.create(source, b"bytes")
    store.copy(source, folder / "b" / "copy")
    store.copy(source, folder / "b" / "shared", final=True)
    store.flush([folder / "b" / "copy", folder / "b" / "shared", folder / "b"])
    here = store_of(tmp_path)
    here.copy(source, tmp_path / "here" / "copy", of=store, final=True)
    store.copy(tmp_path / "here" / "copy", folder / "b" / "back", of=here, final=True)
    store.delete(source)
    copies = [store.read(folder / "b" / name) for name in ("copy", "shared", "back")]
    assert [copy and copy.content for copy in copies] == [b"bytes"] * 3
    with pytest.raises(FileNotFoundError):
        store.copy(source, folder / "b" / "nothing")
    for to in (tmp_path / "nothing", folder / "b" / "nothing"):
        with pytest.raises(FileNotFoundError):
            store_of(to).copy(source, to, of=store)
    with pytest.raises(FileNotFoundError), store.reading(source):
        pass


class Torn(LocalStore):
    """Gives the beginning of each file, and then an error."""

    def __init__(self, size: int) -> None:
        self._size = size

    @override
    @contextmanager
    def reading(self, place: Path) -> Iterator[Readable]:
        yield TornFile(self._size)


class TornFile:
    def __init__(self, size: int) -> None:
        self._left = size

    def read(self, size: int = -1, /) -> bytes:
        if not self._left:
            raise ConnectionResetError("the source is lost")
        given, self._left = self._left, 0
        return bytes(given)


@pytest.mark.parametrize("size", [10, 6 << 20])
def test_a_copy_whose_source_fails_half_way_leaves_nothing_that_looks_finished(
    folder: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, there = store_of(folder), folder / "a" / "there"
    if isinstance(store, RemoteStore):  # from there on fsspec sends what it has
        monkeypatch.setattr(store.system, "default_block_size", 5 << 20, raising=False)
    store.create(there, b"before")
    with pytest.raises(ConnectionResetError):
        store.copy(Path("/lost"), folder / "a" / "new", of=Torn(size))
    gc.collect()
    assert store.read(folder / "a" / "new") is None
    assert list(store.files(folder)) == ["a/there"]
    with pytest.raises(ConnectionResetError):
        store.copy(Path("/lost"), there, of=Torn(size))
    gc.collect()
    left = store.read(there)
    assert left is None or left.content == b"before"


def test_the_contract_is_tried_out_and_nothing_is_left(folder: Path) -> None:
    store = store_of(folder)
    store.check(folder)
    left = store.names(folder)
    assert not left or not isinstance(folder, Path), left
    assert not any(store.names(folder / name) for name in left)  # an empty directory may be named yet


def created_in_process(folder: Path, race: int, links: bool) -> None:
    def none(*_: object) -> None:
        raise PermissionError("a file system without hard links")

    if not links:
        os.link = none  # type: ignore[assignment]
    while not (folder / f"start-{race}").exists():
        pass
    try:
        store_of(folder).create(folder / f"race-{race}", b"x")
    except FileExistsError:
        (folder / f"refused-{race}-{os.getpid()}").touch()
    else:
        (folder / f"won-{race}-{os.getpid()}").touch()


def counted_in_process(folder: Path, times: int) -> None:
    store, place = store_of(folder), folder / "count"
    while times:
        stored = store.read(place)
        assert stored is not None
        try:
            store.replace_if(place, b"%d" % (int(stored.content) + 1), stored.version, durable=False)
        except ChangedError:
            continue
        times -= 1


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """Give what forks a process without threads: this one has those of many clients."""
    with clean_forks(__name__) as made:
        yield made


@pytest.mark.parametrize("links", [True, False])
def test_of_many_processes_one_creates_a_local_file_with_hard_links_and_without(
    tmp_path: Path, forks: Forks, links: bool
) -> None:
    for race in range(2 * RACES):
        children = [forks(partial(created_in_process, tmp_path, race, links), tmp_path) for _ in range(4)]
        (tmp_path / f"start-{race}").touch()
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
        assert len(list(tmp_path.glob(f"won-{race}-*"))) == 1
        assert len(list(tmp_path.glob(f"refused-{race}-*"))) == 3


def test_many_processes_count_in_one_local_file(tmp_path: Path, forks: Forks) -> None:
    store_of(tmp_path).create(tmp_path / "count", b"0")
    children = [forks(partial(counted_in_process, tmp_path, 50), tmp_path) for _ in range(4)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert (tmp_path / "count").read_bytes() == b"200"


@pytest.mark.parametrize("folder", ["local", "memory"], indirect=True)
def test_what_is_held_is_changed_by_its_holder_only(folder: Path) -> None:
    store, place = store_of(folder), folder / "a.json"
    version = store.create(place, b"first")
    outcomes = []

    def other() -> None:
        try:
            with store.holding(place, seconds=0):
                outcomes.append("held")
        except HeldError as error:
            outcomes.append(error.note)

    with store.holding(place, note="pid 7"):
        waiting = threading.Thread(target=other)
        waiting.start()
        waiting.join()
        writing = threading.Thread(target=lambda: outcomes.append(store.replace_if(place, b"third", version)))
        store.replace(place, b"first")
        writing.start()
        assert store.read(place).content == b"first"  # type: ignore[union-attr]
    writing.join()
    assert outcomes[0] == "pid 7"
    assert store.read(place).content == b"third"  # type: ignore[union-attr]


@pytest.mark.parametrize("folder", ["moto"], indirect=True)
def test_an_object_store_is_not_held(folder: Path) -> None:
    with pytest.raises(RefusedError, match="no locks"), store_of(folder).holding(folder / "a"):
        pass
