"""The disk tier's folder: who may use it, where a file lies in it, and everything that touches the disk.

``DIR/<space>/<first two digits of the hash>/<hash>.safetensors``, with ``.snapshot`` before the end for
snapshots. Links are not followed and nothing that is named otherwise is touched.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from mlxserver.kv.disk.entry import DiskError, Kind, Name

LOCK = "lock"
TEMPORARY = ".tmp"
_ENDINGS = {Kind.BLOCK: ".safetensors", Kind.SNAPSHOT: ".snapshot.safetensors"}
_SPACE = re.compile(r"[0-9a-f]{16}")
_SHELF = re.compile(r"[0-9a-f]{2}")
_FILE = re.compile(r"[0-9a-f]{64}(\.snapshot)?\.safetensors(\.tmp)?")
_PARTS = 512
"""Pieces that are given to one call; systems allow 1024."""

Pieces = Sequence[bytes | memoryview]


@dataclass(frozen=True, slots=True)
class Found:
    """A file with a name of ours."""

    space: str
    file_name: str
    nbytes: int
    used: int
    """When it was used last, in nanoseconds since 1970."""


class Folder:
    """Raises DiskError where the folder cannot be used, or where another server uses it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _locked(path / LOCK)
        except OSError as error:
            raise DiskError(f"the folder {path} cannot be used ({error.strerror})") from error

    def close(self) -> None:
        """Let others use it."""
        os.close(self._lock)

    @property
    def is_lost(self) -> bool:
        """Whether somebody has removed or replaced the folder."""
        try:
            return not os.path.samestat(os.lstat(self.path / LOCK), os.fstat(self._lock))
        except FileNotFoundError:
            return True

    def renew(self) -> None:
        """Make a folder that is lost again. Raises as the constructor."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = _locked(self.path / LOCK)
        os.close(self._lock)
        self._lock = fresh

    # ------------------------------------------------------------- reading

    def open(self, name: Name) -> FileIO:
        with self._shelf(name.space, name.hash.hex()[:2]) as shelf:
            return _opened(file_name(name), shelf)

    def open_found(self, found: Found) -> FileIO:
        with self._shelf(found.space, found.file_name[:2]) as shelf:
            return _opened(found.file_name, shelf)

    def scan(self) -> Iterator[Found]:
        """Every file with a name of ours; what was being written when its server ended is removed."""
        for space in _folders(self.path, _SPACE):
            for shelf in _folders(self.path / space, _SHELF):
                yield from self._scan_shelf(space, shelf)

    def _scan_shelf(self, space: str, shelf: str) -> Iterator[Found]:
        with contextlib.suppress(OSError), os.scandir(self.path / space / shelf) as items:
            for item in items:
                if not _FILE.fullmatch(item.name) or item.name[:2] != shelf:
                    continue
                if not item.is_file(follow_symlinks=False):
                    continue
                if item.name.endswith(TEMPORARY):
                    with contextlib.suppress(OSError):
                        os.unlink(item.path)
                    continue
                status = item.stat(follow_symlinks=False)
                yield Found(space, item.name, status.st_size, status.st_mtime_ns)

    # ------------------------------------------------------------- changing

    def write(self, name: Name, pieces: Pieces) -> None:
        """All of it or nothing, wherever the process is killed or the power fails.

        Raises IsADirectoryError where a folder of somebody's has the file's name.
        """
        self._make_shelf(name)
        final, temporary = file_name(name), file_name(name) + TEMPORARY
        with self._shelf(name.space, final[:2]) as shelf:
            for each in (final, temporary):
                if _is_folder(each, shelf):
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), each)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=shelf)  # whatever it is, it is not to be written into
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=shelf)
            try:
                try:
                    self._write_all(file, pieces)
                    self._sync(file)
                finally:
                    os.close(file)
                os.replace(temporary, final, src_dir_fd=shelf, dst_dir_fd=shelf)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=shelf)
                raise
            self._sync(shelf)

    def remove(self, name: Name) -> None:
        """Raises no error where it is gone already."""
        self._unlink(name.space, file_name(name))

    def remove_found(self, found: Found) -> None:
        self._unlink(found.space, found.file_name)

    def mark_used(self, name: Name, used: int) -> None:
        """Note when it was used last, for later servers."""
        with self.open(name) as file:
            os.utime(file.fileno(), ns=(used, used))

    def _unlink(self, space: str, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._shelf(space, name[:2]) as shelf:
            if not _is_folder(name, shelf):  # else ours is gone
                os.unlink(name, dir_fd=shelf)

    def _make_shelf(self, name: Name) -> None:
        above = self.path
        for part in (name.space, name.hash.hex()[:2]):
            folder = above / part
            if not folder.is_dir():
                folder.mkdir(mode=0o700)
                with self._opened_folder(above) as parent:
                    self._sync(parent)
            above = folder

    @contextlib.contextmanager
    def _shelf(self, space: str, shelf: str) -> Iterator[int]:
        with self._opened_folder(self.path / space) as parent:
            inner = os.open(shelf, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
            try:
                yield inner
            finally:
                os.close(inner)

    @contextlib.contextmanager
    def _opened_folder(self, path: Path) -> Iterator[int]:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | (0 if path == self.path else os.O_NOFOLLOW))
        try:
            yield folder
        finally:
            os.close(folder)

    def _write_all(self, file: int, pieces: Pieces) -> None:
        for i in range(0, len(pieces), _PARTS):
            rest = [memoryview(piece) for piece in pieces[i : i + _PARTS]]
            while rest:
                n = os.writev(file, rest)
                while rest and n >= len(rest[0]):
                    n -= len(rest.pop(0))
                if rest:
                    rest[0] = rest[0][n:]

    def _sync(self, file: int) -> None:
        os.fsync(file)


def file_name(name: Name) -> str:
    return name.hash.hex() + _ENDINGS[name.kind]


def _is_folder(name: str, shelf: int) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=shelf, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _locked(path: Path) -> int:
    """The descriptor that holds the lock. Raises DiskError where another process holds it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(lock, 32, 0).decode(errors="replace").strip()
        os.close(lock)
        if isinstance(error, BlockingIOError):
            who = f" (process {owner})" if owner.isdigit() else ""
            raise DiskError(f"the folder {path.parent} is in use by another server{who}") from error
        raise
    with contextlib.suppress(OSError):  # the process is only told to others; a full disk refuses no server
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


def _folders(path: Path, pattern: re.Pattern[str]) -> list[str]:
    try:
        with os.scandir(path) as items:
            return [
                item.name
                for item in items
                if pattern.fullmatch(item.name) and item.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return []


def _opened(name: str, shelf: int) -> FileIO:
    """A regular file for reading."""
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=shelf)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise FileNotFoundError(name)
    return FileIO(file, "rb")
