"""The folder: private, one server's, whole files or none, and nothing of others' is touched."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mlxserver.kv.block_hash import block_hash, root_hash
from mlxserver.kv.disk import folder as module
from mlxserver.kv.disk.entry import DiskError, Kind, Name, packed_tokens, space_folder
from mlxserver.kv.disk.folder import Folder
from mlxserver.kv.identity import BASE_IDENTITY

SPACE = space_folder("a model")


def name_of(tokens: list[int], kind: Kind = Kind.BLOCK) -> Name:
    root = root_hash("a model")
    digest = block_hash(root, BASE_IDENTITY, tokens)
    return Name(kind, SPACE, digest, root, BASE_IDENTITY, packed_tokens(tokens), 0)


def path_of(folder: Folder, name: Name) -> Path:
    ending = {Kind.BLOCK: ".safetensors", Kind.SNAPSHOT: ".snapshot.safetensors"}[name.kind]
    return folder.path / SPACE / name.hash.hex()[:2] / (name.hash.hex() + ending)


def read(folder: Folder, name: Name) -> bytes:
    with folder.open(name) as file:
        return file.read()


@pytest.mark.parametrize("kind", Kind)
def test_files_are_where_the_documents_say_and_private(tmp_path: Path, kind: Kind) -> None:
    folder = Folder(tmp_path / "deep" / "cache")
    name = name_of([1, 2], kind)
    folder.write(name, [b"some", memoryview(b""), memoryview(b" bytes")])
    path = path_of(folder, name)
    assert path.read_bytes() == read(folder, name) == b"some bytes"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for each in (path.parent, path.parent.parent, tmp_path / "deep" / "cache"):
        assert stat.S_IMODE(each.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == [path.name]
    folder.remove(name)
    folder.remove(name)
    assert os.listdir(path.parent) == []
    folder.close()


def test_many_pieces_and_short_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(tmp_path)
    pieces = [bytes([i % 256]) * (i % 7) for i in range(3000)]
    writev = os.writev
    monkeypatch.setattr(module.os, "writev", lambda file, parts: writev(file, [b"".join(parts)[:1000]]))
    folder.write(name_of([1]), pieces)
    assert read(folder, name_of([1])) == b"".join(pieces)
    folder.close()


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(tmp_path)

    def fail(file: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(module.os, "fsync", fail)
    with pytest.raises(OSError):
        folder.write(name_of([1]), [b"bytes"])
    shelf = path_of(folder, name_of([1])).parent
    assert not shelf.exists() or os.listdir(shelf) == []
    folder.close()


def test_scanning_sees_our_names_only_and_clears_what_was_being_written(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    block, snapshot = name_of([1]), name_of([2], Kind.SNAPSHOT)
    for name in (block, snapshot):
        folder.write(name, [b"bytes"])
        folder.mark_used(name, 123_000_000_000)
    path = path_of(folder, block)
    torn = path.with_name("ab" * 32 + ".safetensors.tmp")
    own_shelf = path.parent / (path.parent.name + "0" * 62 + ".safetensors.tmp")
    foreign = [
        tmp_path / "readme.txt",
        tmp_path / "slot.safetensors",
        path.with_name("notes.safetensors"),
        path.with_name(path.name + ".bak"),
        path.parent.parent / "zz.safetensors",
        torn,  # on another's shelf
    ]
    for each in [*foreign, own_shelf]:
        each.write_bytes(b"x")
    (path.parent.parent / "folder").mkdir()
    path.with_name(path.name[:2] + "1" * 62 + ".safetensors").mkdir()
    link = path.with_name(path.name[:2] + "2" * 62 + ".safetensors")
    link.symlink_to(tmp_path / "readme.txt")
    (tmp_path / ("0" * 16)).symlink_to(path.parent.parent, target_is_directory=True)

    found = {(each.space, each.file_name, each.nbytes, each.used) for each in folder.scan()}
    assert found == {(SPACE, path_of(folder, each).name, 5, 123_000_000_000) for each in (block, snapshot)}
    assert not own_shelf.exists()
    assert all(each.exists() for each in foreign) and link.is_symlink()
    folder.close()


def test_links_are_not_followed(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "cache")
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    name = name_of([1])
    folder.write(name, [b"bytes"])
    path = path_of(folder, name)
    path.unlink()
    path.symlink_to(secret)
    with pytest.raises(OSError):
        folder.open(name)
    path.with_name(path.name + ".tmp").symlink_to(secret)
    folder.write(name, [b"bytes"])  # both links are replaced
    assert read(folder, name) == b"bytes" and not path.is_symlink()

    other = tmp_path / "other"
    path.parent.rename(other)
    path.parent.symlink_to(other, target_is_directory=True)
    with pytest.raises(OSError):
        folder.open(name)
    with pytest.raises(OSError):
        folder.write(name_of([1]), [b"x"])
    assert (other / path.name).read_bytes() == b"bytes" and secret.read_bytes() == b"secret"
    folder.close()


def test_pipes_and_folders_under_our_names_are_no_files(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    name = name_of([1])
    folder.write(name, [b"bytes"])
    path = path_of(folder, name)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(FileNotFoundError):
        folder.open(name)
    assert list(folder.scan()) == []
    folder.close()


def test_a_second_process_is_refused_by_name(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    code = "import sys, pathlib, mlxserver.kv.disk.folder as f; f.Folder(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert f"{tmp_path} is in use by another server (process {os.getpid()})" in result.stderr
    folder.close()
    assert subprocess.run(command, timeout=60).returncode == 0


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DiskError, match="cannot be used"):
        Folder(tmp_path / "file" / "cache")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "lock").symlink_to(tmp_path / "file")
    with pytest.raises(DiskError, match="cannot be used"):
        Folder(tmp_path / "cache")


def test_a_full_disk_refuses_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    folder = Folder(tmp_path)
    with pytest.raises(DiskError, match="in use by another server$"):
        Folder(tmp_path)
    folder.close()


def test_a_folder_that_is_lost_is_made_again_unless_another_has_it(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "cache")
    assert not folder.is_lost
    (tmp_path / "cache").rename(tmp_path / "moved")
    assert folder.is_lost
    other = Folder(tmp_path / "cache")
    with pytest.raises(DiskError, match="in use"):
        folder.renew()
    other.close()
    folder.renew()
    assert not folder.is_lost
    folder.write(name_of([1]), [b"bytes"])
    folder.close()
