"""Faults of the disk: never an error where the engine calls, never wrong state, at most lost reuse."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import shutil
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from mlxserver.kv.disk.books import DiskEvent
from mlxserver.kv.disk.entry import DiskError, Name
from mlxserver.kv.disk.folder import Folder, Pieces
from mlxserver.kv.disk.index import DiskRef
from mlxserver.kv.disk.store import DiskStore
from mlxserver.kv.identity import BASE_IDENTITY
from tests.kv.disk.spans import SPACE, equal, numbers, opened, span_of

TOKENS = numbers(96)


class Faulty(Folder):
    """Raises the error that a test sets, where it sets it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.errors: dict[str, int] = {}

    def fail(self, where: str) -> None:
        if where in self.errors:
            raise OSError(self.errors[where], os.strerror(self.errors[where]))

    def open(self, name: Name) -> FileIO:
        self.fail("open")
        with super().open(name) as file:
            return FailingFile(os.dup(file.fileno()), self)

    def _write_all(self, file: int, pieces: Pieces) -> None:
        if "write" in self.errors:
            super()._write_all(file, pieces[: len(pieces) // 2])
        self.fail("write")
        super()._write_all(file, pieces)

    def _sync(self, file: int) -> None:
        self.fail("sync")
        super()._sync(file)

    def _unlink(self, space: str, name: str) -> None:
        self.fail("remove")
        super()._unlink(space, name)


class FailingFile(FileIO):
    def __init__(self, file: int, folder: Faulty) -> None:
        super().__init__(file, "rb")
        self._folder = folder

    def readinto(self, buffer: Any) -> int:
        self._folder.fail("read")
        return super().readinto(buffer)


class Faults:
    """A store on a faulty folder that holds ``TOKENS`` already, ``n_stored`` blocks of them."""

    def __init__(self, path: Path, n_stored: int = 3, **options: Any) -> None:
        self.path = path
        self.events: list[DiskEvent] = []
        self.store = DiskStore(
            path,
            options.pop("limit", None),
            SPACE,
            retry_after=options.pop("retry_after", 0.2),
            open_folder=self._open,
            observer=self.events.append,
        )
        assert self.put(TOKENS)
        self.refs = list(self.store.find(BASE_IDENTITY, TOKENS, cuts=True).blocks)
        assert len(self.refs) == n_stored

    def _open(self, path: Path) -> Folder:
        self.folder = Faulty(path)
        return self.folder

    def put(self, tokens: list[int]) -> bool:
        taken = self.store.put(BASE_IDENTITY, tokens, 0, span_of(tokens))
        assert self.store.flush(10)
        self.store.check()
        return taken

    def found(self, tokens: list[int] = TOKENS) -> int:
        return self.store.find(BASE_IDENTITY, tokens, cuts=True).n

    def files(self) -> int:
        return len([path for path in self.path.rglob("*") if path.is_file() and path.name != "lock"])

    def lost(self, ref: DiskRef) -> None:
        """Reading it fails, and then it is gone with what hangs on it."""
        with pytest.raises(DiskError):
            self.store.read(ref)
        assert self.store.flush(10)
        self.store.check()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("where", ["write", "sync"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS, errno.EDQUOT])
def test_a_write_that_fails_pauses_and_is_tried_again(
    tmp_path: Path, where: str, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    faults, more = Faults(tmp_path), numbers(64, 1)
    faults.folder.errors[where] = code
    for n_failed in (1, 2):
        assert faults.put(more)
        stats = faults.store.stats()
        assert (stats.failed, stats.is_paused, stats.blocks) == (n_failed, True, 3)
        assert faults.files() == 3, "nothing of what failed is left"
        assert not faults.store.missing(BASE_IDENTITY, more) and not faults.put(more), "it is paused"
        until(lambda: not faults.store.stats().is_paused)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert os.strerror(code) in caplog.text
    faults.folder.errors.clear()
    assert faults.store.missing(BASE_IDENTITY, more).start == 0 and faults.put(more)
    assert faults.found(more) == 64 and faults.found() == 96
    assert faults.store.stats().dropped == 2 * (1 + 2)
    faults.store.close()


def place_of_block(folder: Path, i: int) -> Path:
    """Where a store in ``folder`` puts the file of a block of ``TOKENS``."""
    elsewhere = Faults(folder.parent / "elsewhere")
    elsewhere.store.close()
    [path] = elsewhere.path.rglob(f"{elsewhere.refs[i].key[1].hex()}.safetensors")
    return folder / path.relative_to(elsewhere.path)


@pytest.mark.parametrize("ending", ["", ".tmp"])
def test_a_folder_under_a_blocks_name_costs_that_sequence_only(tmp_path: Path, ending: str) -> None:
    place = place_of_block(tmp_path / "store", 1)
    place.with_name(place.name + ending).mkdir(parents=True)
    faults, more = Faults(tmp_path / "store", n_stored=1), numbers(64, 1)
    stats = faults.store.stats()
    assert (stats.failed, stats.is_paused, stats.blocks, stats.dropped) == (1, False, 1, 1)
    assert faults.put(more) and faults.found(more) == 64
    faults.store.close()


def test_a_file_in_a_folders_place_costs_what_belongs_there_only(tmp_path: Path) -> None:
    shelf = place_of_block(tmp_path / "store", 2).parent
    shelf.parent.mkdir(parents=True)
    shelf.write_text("somebody's")
    faults, more = Faults(tmp_path / "store", n_stored=2), numbers(64, 1)
    assert (faults.store.stats().failed, faults.store.stats().is_paused) == (1, False)
    assert faults.put(more) and faults.found(more) == 64
    faults.store.close()


def test_a_folder_that_took_a_files_place_is_no_file_to_remove(tmp_path: Path) -> None:
    faults = Faults(tmp_path)
    for path in [*tmp_path.rglob("*.safetensors")]:
        path.unlink()
        path.mkdir()
    faults.lost(faults.refs[0])
    stats = faults.store.stats()
    assert (stats.blocks, stats.nbytes, stats.failed) == (0, 0, 1), "the read failed, no removal"
    faults.store.close()


@pytest.mark.parametrize("where", ["open", "read"])
def test_a_block_that_cannot_be_read_is_dropped_with_what_hangs_on_it(tmp_path: Path, where: str) -> None:
    faults = Faults(tmp_path)
    del faults.events[:]
    faults.folder.errors[where] = errno.EIO
    faults.lost(faults.refs[1])
    faults.folder.errors.clear()
    assert (faults.found(), faults.files(), faults.store.stats().failed) == (32, 1, 1)
    assert [(event.is_stored, event.start) for event in faults.events] == [(False, 64), (False, 32)]
    with pytest.raises(DiskError, match="gone"):
        faults.store.read(faults.refs[2])
    assert faults.store.missing(BASE_IDENTITY, TOKENS).start == 32
    assert faults.put(TOKENS) and faults.found() == 96
    faults.store.close()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM])
def test_an_error_that_is_not_the_files_drops_nothing(tmp_path: Path, code: int) -> None:
    faults = Faults(tmp_path)
    faults.folder.errors["open"] = code
    with pytest.raises(DiskError):
        faults.store.read(faults.refs[0])
    faults.folder.errors.clear()
    assert faults.found() == 96
    assert equal(faults.store.read(faults.refs[0]).span, span_of(TOKENS[:32]))
    faults.store.close()


def test_files_that_cannot_be_removed_still_count(tmp_path: Path) -> None:
    faults = Faults(tmp_path)
    nbytes = faults.store.stats().nbytes
    faults.folder.errors |= {"open": errno.EACCES, "remove": errno.EACCES}
    faults.lost(faults.refs[1])
    assert faults.found() == 32 and faults.store.stats().nbytes == nbytes
    faults.store.close()


def test_room_that_cannot_be_made_is_not_taken(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put(BASE_IDENTITY, TOKENS, 0, span_of(TOKENS))
        assert store.flush(10)
        limit = store.stats().nbytes + 100
    faults = Faults(tmp_path, limit=limit, retry_after=0.0)
    faults.folder.errors["remove"] = errno.EACCES
    assert faults.put(numbers(64, 1))
    stats = faults.store.stats()
    assert (stats.failed, stats.nbytes, faults.found()) == (1, limit - 100, 96)
    faults.folder.errors.clear()
    assert faults.put(numbers(64, 1))
    assert (faults.found(), faults.found(numbers(64, 1))) == (32, 64)
    faults.store.close()


def path_of(folder: Path, ref: DiskRef) -> Path:
    (path,) = folder.rglob(f"{ref.key[1].hex()}.safetensors")
    return path


def damaged(raw: bytes, how: str, seed: int) -> bytes:
    rng = random.Random(seed)
    if how == "truncated":
        return raw[: rng.randrange(len(raw))]
    if how == "zeros":
        at = rng.randrange(len(raw))
        return raw[:at] + bytes(min(512, len(raw) - at)) + raw[at + 512 :]
    flipped = bytearray(raw)
    flipped[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("how", ["truncated", "zeros", "flipped"])
def test_a_damaged_block_is_never_taken_for_a_sound_one(tmp_path: Path, how: str, seed: int) -> None:
    faults = Faults(tmp_path)
    path = path_of(tmp_path, faults.refs[1])
    bad = damaged(path.read_bytes(), how, seed)
    is_bad = bad != path.read_bytes()
    path.write_bytes(bad)
    try:
        assert equal(faults.store.read(faults.refs[1]).span, span_of(TOKENS[:64], 32)) and (
            not is_bad or how == "flipped"  # a bit of what pads the table
        )
    except DiskError:
        assert faults.store.flush(10) and not path.exists() and faults.found() == 32
    faults.store.close()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("how", ["truncated", "zeros", "flipped"])
def test_damage_is_found_at_the_next_start_or_when_it_is_read(tmp_path: Path, how: str, seed: int) -> None:
    faults = Faults(tmp_path)
    faults.store.close()
    path = path_of(tmp_path, faults.refs[1])
    path.write_bytes(damaged(path.read_bytes(), how, seed))
    with opened(tmp_path) as store:
        match = store.find(BASE_IDENTITY, TOKENS, cuts=True)
        assert match.n == 32 if how == "truncated" else match.n in (32, 96)
        assert equal(store.read(match.blocks[0]).span, span_of(TOKENS[:32]))
        if match.n == 96:
            try:
                assert equal(store.read(match.blocks[1]).span, span_of(TOKENS[:64], 32))
            except DiskError:
                assert store.flush(10)
                assert store.find(BASE_IDENTITY, TOKENS, cuts=True).n == 32


def test_a_file_under_anothers_name_is_refused(tmp_path: Path) -> None:
    faults = Faults(tmp_path)
    shutil.copy(path_of(tmp_path, faults.refs[0]), path_of(tmp_path, faults.refs[2]))
    faults.lost(faults.refs[2])
    assert faults.found() == 64
    faults.put(TOKENS)
    faults.store.close()
    shutil.copy(path_of(tmp_path, faults.refs[0]), path_of(tmp_path, faults.refs[2]))
    with opened(tmp_path) as store:
        assert store.find(BASE_IDENTITY, TOKENS, cuts=True).n == 64
    assert faults.files() == 2


def test_what_hangs_on_a_file_that_is_gone_is_removed_at_the_start(tmp_path: Path) -> None:
    faults = Faults(tmp_path)
    faults.store.close()
    path_of(tmp_path, faults.refs[0]).unlink()
    foreign = path_of(tmp_path, faults.refs[1]).parent / "notes.safetensors"
    foreign.write_bytes(b"mine")
    with opened(tmp_path) as store:
        assert store.stats().blocks == 0 and store.stats().failed == 0
    assert faults.files() == 1 and foreign.exists()


def test_a_folder_that_is_removed_starts_anew(tmp_path: Path) -> None:
    faults = Faults(tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache")
    faults.lost(faults.refs[1])
    assert faults.found() == 32, "nothing has looked for it yet"
    more = numbers(64, 1)
    assert faults.put(more)
    assert (faults.found(), faults.found(more), faults.store.stats().blocks) == (0, 64, 2)
    assert equal(
        faults.store.read(faults.store.find(BASE_IDENTITY, more, True).blocks[0]).span, span_of(more[:32])
    )
    with pytest.raises(DiskError, match="in use"):
        DiskStore(tmp_path / "cache", None, SPACE)
    faults.store.close()


def test_the_files_of_a_folder_that_took_its_place_are_found_and_counted(tmp_path: Path) -> None:
    faults = Faults(tmp_path / "cache", limit=4 * 76_000)
    other, more = numbers(96, 1), numbers(64, 2)
    with opened(tmp_path / "other") as store:
        store.put(BASE_IDENTITY, other, 0, span_of(other))
    (tmp_path / "cache").rename(tmp_path / "moved")
    (tmp_path / "other").rename(tmp_path / "cache")
    assert faults.put(more)
    assert (faults.found(), faults.found(other), faults.found(more)) == (0, 64, 64)
    assert faults.files() == faults.store.stats().blocks == 4
    faults.store.check()
    faults.store.close()


def test_a_folder_that_another_server_took_is_left_to_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    faults = Faults(tmp_path / "cache", retry_after=0.0)
    (tmp_path / "cache").rename(tmp_path / "moved")
    with opened(tmp_path / "cache") as other:
        for seed in (1, 2):
            faults.put(numbers(64, seed))
        assert "in use by another server" in caplog.text and caplog.text.count("in use") == 1
        assert other.stats().blocks == 0 and not list((tmp_path / "cache").rglob("*.safetensors"))
    assert faults.put(numbers(64, 1)) and faults.found(numbers(64, 1)) == 64
    faults.store.close()


def test_shelves_that_are_removed_are_made_again(tmp_path: Path) -> None:
    faults = Faults(tmp_path)
    for path in tmp_path.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    faults.lost(faults.refs[0])
    assert faults.found() == 0 and faults.put(TOKENS) and faults.found() == 96
    faults.store.close()


def test_files_of_another_version_are_removed(tmp_path: Path) -> None:
    faults = Faults(tmp_path)
    faults.store.close()
    path = path_of(tmp_path, faults.refs[2])
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"mlxserver-block-1", b"mlxserver-block-9"))
    with opened(tmp_path) as store:
        assert store.find(BASE_IDENTITY, TOKENS, cuts=True).n == 64
    assert not path.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"start": 31},
        {"start": -32},
        {"start": "0"},
        {"tokens": []},
        {"tokens": [1, "2"]},
        {"tokens": [-1]},
        {"tokens": list(range(33))},
        {"tokens": 7},
        {"parent": "zz"},
        {"kind": "other"},
        {"identity": "{"},
        {"identity": '{"adapters": []}'},
        {"identity": 3},
        {"bare": 0},
        {"space": None},
        {"data": "1"},
    ],
)
def test_headers_that_no_server_wrote(tmp_path: Path, change: dict[str, Any]) -> None:
    faults = Faults(tmp_path)
    faults.store.close()
    path = path_of(tmp_path, faults.refs[0])
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    table = json.loads(raw[8 : 8 + size])
    table["__metadata__"]["header"] = json.dumps(json.loads(table["__metadata__"]["header"]) | change)
    text = json.dumps(table, separators=(",", ":")).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + size :])
    with opened(tmp_path) as store:
        assert store.find(BASE_IDENTITY, TOKENS, cuts=True).n == 0
        assert store.stats().failed == 0
    assert faults.files() == 0


def test_an_observer_that_fails_costs_nothing(tmp_path: Path) -> None:
    def fail(event: DiskEvent) -> None:
        raise RuntimeError("no listener")

    with opened(tmp_path, observer=fail) as store:
        store.put(BASE_IDENTITY, TOKENS, 0, span_of(TOKENS))
        assert store.flush(10)
        assert store.find(BASE_IDENTITY, TOKENS, cuts=True).n == 96
