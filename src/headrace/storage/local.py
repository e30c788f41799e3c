"""Files as objects: whole or not there at all, whoever reads and whenever the power goes.

Every write goes to a temporary file beside its target, is flushed to the disk, and takes the target's name in one
step. A file that was replaced while it is being read is read to its end as it was.
"""
# Paths stay the strings that were written: Path would drop "./", "//" and a slash at the end.
# ruff: noqa: PTH103, PTH105, PTH106, PTH108, PTH109, PTH112, PTH114, PTH116, PTH118, PTH120

import contextlib
import ctypes
import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import NoReturn, Self

from headrace.core.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ChangedError,
    ConfigError,
    NotFoundError,
    StorageError,
)
from headrace.storage.contract import ObjectInfo, Writer
from headrace.storage.uri import parse, require_text

CHUNK_BYTES = 1 << 20
TEMPORARY_PREFIX = ".headrace-"
TEMPORARY_SUFFIX = ".tmp"
STALE_S = 24 * 3600.0


class LocalStore:
    """Plain paths and ``file://``. Needs no retries: a disk that fails, fails.

    Links: reading and writing go through a symbolic link to its target; a listing gives links to files, and does
    not descend into links to folders. Pipes and devices can be streamed and have no size.
    """

    def stream(self, uri: str, *, start: int = 0, etag: str = "") -> Iterator[bytes]:
        """See `Store.stream`. Raises ChangedError also when the file was written into while it was read."""
        with os_errors(uri), _opened(uri) as (file, found):
            _same(uri, found, etag)
            if not stat.S_ISREG(found.st_mode):
                yield from _drain(file, start)
                return
            known, at = _etag(found), start
            while at < found.st_size and (chunk := os.pread(file, min(CHUNK_BYTES, found.st_size - at), at)):
                _same(uri, os.fstat(file), known)
                yield chunk
                at += len(chunk)
            _same(uri, os.fstat(file), known)

    def get(self, uri: str) -> bytes:
        """See `Store.get`."""
        return b"".join(self.stream(uri))

    def get_range(self, uri: str, start: int, length: int, *, etag: str = "") -> bytes:
        """See `Store.get_range`."""
        with os_errors(uri), _opened(uri) as (file, found):
            _same(uri, found, etag)
            pieces: list[bytes] = []
            # One pread gives less than asked for above 2 GiB, and on some network file systems.
            while length > 0 and (piece := os.pread(file, length, start)):
                pieces.append(piece)
                start, length = start + len(piece), length - len(piece)
            _same(uri, os.fstat(file), _etag(found))
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def put(self, uri: str, data: bytes) -> None:
        """See `Store.put`. Makes the folders above it."""
        with self.writer(uri) as writer:
            writer.write(data)

    def put_unflushed(self, uri: str, data: bytes, *, drafts: str) -> None:
        """What `put` does, but that a power cut may undo it, or leave the file empty, until `flush` has returned.

        A tenth of the time, for many small files: a killed process loses nothing either way. What it may leave is in the folder
        `drafts`, of the same file system, and not among what people look at.
        """
        path = _target(uri)
        with os_errors(uri), _Temporary(path, parse(drafts).key) as temporary:
            temporary.write(data)
            temporary.publish(path, flush=False)

    def flush(self, folder: str) -> None:
        """Make all that was written to the folder's file system survive a power cut."""
        with os_errors(folder):
            opened = os.open(parse(folder).key or ".", os.O_RDONLY | os.O_CLOEXEC)
            try:
                _sync_file_system(opened)
            finally:
                os.close(opened)

    def put_if_absent(self, uri: str, data: bytes) -> None:
        """See `Store.put_if_absent`. Needs a file system with hard links."""
        path = _target(uri)
        with os_errors(uri):
            with _Temporary(path) as temporary:
                temporary.write(data)
                temporary.flush()
                with contextlib.suppress(FileExistsError):
                    os.link(temporary.path, path)  # fails when the name is taken, unlike rename
                    flush_folder(path)
                    return
            if self.get(uri) != data:
                raise AlreadyExistsError(uri, "other bytes stand there already")

    def writer(self, uri: str) -> Writer:
        """See `Store.writer`."""
        path = _target(uri)
        with os_errors(uri):
            return _LocalWriter(uri, path)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Store.list`. Holds the names of one folder a level. Unfinished writes are not listed."""
        path = parse(prefix).key
        folder, slash, start_of_name = path.rpartition("/")
        # What the user wrote stays in front, so that a listing of "./in/" gives "./in/a", and "file:///" its own.
        written = prefix[: len(prefix) - len(start_of_name)]
        with os_errors(prefix):
            yield from _walk(folder + slash or ".", written, start_of_name)

    def head(self, uri: str) -> ObjectInfo:
        """See `Store.head`. A folder is not an object."""
        path = parse(uri).key
        with os_errors(uri):
            found = os.stat(path)  # Path would drop a trailing slash, which must fail on a file
            if stat.S_ISDIR(found.st_mode):
                raise NotFoundError(uri, "is a folder, not a file; end it with / to mean all below it")
            return _info(uri, found)

    def delete(self, uri: str) -> None:
        """See `Store.delete`. Folders stay."""
        with os_errors(uri), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(parse(uri).key)  # as in head

    def prune(self, folder: str) -> None:
        """Remove a folder with all below it that holds no file, so that what is deleted leaves nothing behind.

        One that is written into at that moment stays, or is made again by the writer. Temporary files of killed writers are
        files; those older than STALE_S are removed.
        """
        path = parse(folder).key.rstrip("/")
        with os_errors(folder):
            for below, _, _ in os.walk(path, topdown=False):
                self.clean(below)
                with contextlib.suppress(OSError):
                    os.rmdir(below)

    def clean(self, folder: str, *, older_than_s: float = STALE_S) -> int:
        """Remove what killed writers left in a folder (not below it), when it is older than `older_than_s`; how many.

        A temporary file that young may belong to a writer that lives, perhaps on another machine.
        """
        removed = 0
        with os_errors(folder), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for entry in os.scandir(parse(folder).key or "."):
                with contextlib.suppress(FileNotFoundError):
                    old = _is_temporary(entry.name) and time.time() - entry.stat().st_mtime >= older_than_s
                    if old:
                        os.unlink(entry.path)
                        removed += 1
        return removed


def _is_temporary(name: str) -> bool:
    return name.startswith(TEMPORARY_PREFIX) and name.endswith(TEMPORARY_SUFFIX)


def _etag(found: os.stat_result) -> str:
    return f'"{found.st_mtime_ns:x}-{found.st_size:x}-{found.st_ino:x}"'


def _info(uri: str, found: os.stat_result) -> ObjectInfo:
    if not stat.S_ISREG(found.st_mode):
        return ObjectInfo(uri, None, "", found.st_mtime)
    return ObjectInfo(uri, found.st_size, _etag(found), found.st_mtime)


def _same(uri: str, found: os.stat_result, etag: str) -> None:
    if etag and _etag(found) != etag:
        raise ChangedError(uri, f"is another file now (ETag {_etag(found)}, expected {etag})")


def _target(uri: str) -> str:
    """The path to write: through a symbolic link, so that the link stays one."""
    path = parse(uri).key
    if not path or path.endswith("/"):
        raise ConfigError(f"{uri}: names a folder; a file's name must follow it")
    # Links among the folders above are followed by the system; asking for each of them costs as much as the writing.
    if os.path.islink(path):
        return os.path.realpath(path)
    return path if path.startswith("/") else os.path.join(os.getcwd(), path)


@contextmanager
def _opened(uri: str) -> Generator[tuple[int, os.stat_result]]:
    file = os.open(parse(uri).key, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        if stat.S_ISDIR(found.st_mode):
            raise NotFoundError(uri, "is a folder, not a file; end it with / to mean all below it")
        yield file, found
    finally:
        os.close(file)


def _drain(file: int, start: int) -> Iterator[bytes]:
    """A pipe's or device's bytes, which cannot be read at an offset."""
    while chunk := os.read(file, CHUNK_BYTES):
        rest = chunk[start:]
        start = max(0, start - len(chunk))
        if rest:
            yield rest


def _walk(folder: str, written: str, start_of_name: str) -> Iterator[ObjectInfo]:
    """Below `folder`, sorted as whole strings: a folder's name counts with its slash."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(
                e.name + "/" if e.is_dir(follow_symlinks=False) else e.name
                for e in entries
                if e.name.startswith(start_of_name) and not _is_temporary(e.name)
            )
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        require_text(written + name)
        path = os.path.join(folder, name)  # keeps the slash
        if name.endswith("/"):
            yield from _walk(path, written + name, "")
            continue
        try:
            found = os.stat(path)
        except FileNotFoundError:
            continue  # deleted since, or a link to nothing
        if not stat.S_ISDIR(found.st_mode):
            yield _info(written + name, found)


class _Temporary:
    """A file beside `path`, or in another folder, that vanishes unless it is published."""

    def __init__(self, path: str, folder: str = "") -> None:
        folder = folder or os.path.dirname(path)
        if os.path.isdir(path):
            raise IsADirectoryError(path)
        name = f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(6)}{TEMPORARY_SUFFIX}"
        self.path = os.path.join(folder, name)
        self._published = False
        # Most times the folders are there, and asking costs as much as making a file.
        try:
            self._file = self._open()
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)
            self._file = self._open()

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, data: bytes) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[os.write(self._file, rest) :]

    def flush(self) -> None:
        os.fsync(self._file)

    def publish(self, path: str, *, flush: bool = True) -> None:
        if flush:
            self.flush()
        try:
            os.replace(self.path, path)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.replace(self.path, path)
        self._published = True
        if flush:
            flush_folder(path)

    def remove(self) -> None:
        """Close; remove the name if it is still the temporary one."""
        if self._file < 0:
            return
        os.close(self._file)
        self._file = -1
        if self._published:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def _sync_file_system(opened: int) -> None:
    """`syncfs`, which Python does not offer; where there is none, everything is written out."""
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        os.sync()
    elif syncfs(opened):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def replace_by_link(source: str, path: str) -> None:
    """Give a file a second name, which replaces what has it; where there are no hard links, a copy gets it.

    What a killed process leaves of that is beside `source`.
    """
    with _Temporary(path, os.path.dirname(source)) as temporary:
        os.unlink(temporary.path)
        try:
            os.link(source, temporary.path)
        except OSError:
            shutil.copyfile(source, temporary.path)
        os.replace(temporary.path, path)


def flush_folder(path: str) -> None:
    """Make a file's new name itself survive a power cut."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class _LocalWriter(Writer):
    def __init__(self, uri: str, path: str) -> None:
        self._uri = uri
        self._path = path
        self._temporary: _Temporary | None = _Temporary(path)

    def write(self, data: bytes) -> None:
        if self._temporary is None:
            raise ValueError(f"{self._uri}: the writer is closed")
        with os_errors(self._uri):
            self._temporary.write(data)

    def close(self) -> None:
        if self._temporary is None:
            return
        temporary, self._temporary = self._temporary, None
        with os_errors(self._uri), temporary:
            temporary.publish(self._path)

    def abort(self) -> None:
        if self._temporary is not None:
            self._temporary.remove()
            self._temporary = None


@contextmanager
def os_errors(uri: str) -> Generator[None]:
    """The operating system's errors as ours, about `uri`."""
    try:
        yield
    except OSError as error:
        _raise_ours(uri, error)


def _raise_ours(uri: str, error: OSError) -> NoReturn:
    reason = error.strerror or str(error)
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        raise NotFoundError(uri, "no such file") from error
    if isinstance(error, PermissionError):
        raise AccessDeniedError(uri, f"{reason}: this user may not") from error
    if isinstance(error, IsADirectoryError):
        raise StorageError(uri, "is a folder; a file cannot take its name") from error
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        raise StorageError(uri, f"{reason}: make room there; what was finished before stays") from error
    raise StorageError(uri, reason) from error
