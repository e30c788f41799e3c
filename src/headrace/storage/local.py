"""Files as objects, written atomically and durably.

Each write goes to a temporary file beside its target. The file is flushed to the disk and then
renamed to the target. A reader of a replaced file reads the old file to its end.
"""

# Paths stay strings as given: Path would drop "./", "//" and a trailing slash.
# ruff: noqa: PTH103, PTH105, PTH106, PTH108, PTH109, PTH112, PTH114, PTH116, PTH118, PTH120

import contextlib
import ctypes
import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn, Self

from typing_extensions import override

from headrace.core.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ChangedError,
    ConfigError,
    NotFoundError,
    StorageError,
)
from headrace.storage.contract import NO_METADATA, ObjectInfo, Store, Writer
from headrace.storage.uri import parse, require_text

CHUNK_BYTES = 1 << 20
TEMPORARY_PREFIX = ".headrace-"
TEMPORARY_SUFFIX = ".tmp"
STALE_S = 24 * 3600.0
_ATTRIBUTE = "user."
"""The namespace of extended attributes that users may set."""


class LocalStore(Store):
    """The store of plain paths and ``file://`` URIs. It does not retry.

    Reads and writes follow a symbolic link to its target. A listing includes links to files and
    does not descend into links to folders. Pipes and devices can be streamed and have no size.
    """

    @override
    def stream(self, uri: str, *, start: int = 0, etag: str = "") -> Iterator[bytes]:
        """Yield the bytes of a file.

        Raises ChangedError also if the file is modified during the read.
        """
        with translate_os_errors(uri), _open_for_reading(uri) as (file, found):
            _require_etag(uri, found, etag)
            if not stat.S_ISREG(found.st_mode):
                yield from _read_from(file, start)
                return
            known, at = _etag(found), start
            while at < found.st_size and (chunk := os.pread(file, min(CHUNK_BYTES, found.st_size - at), at)):
                _require_etag(uri, os.fstat(file), known)
                yield chunk
                at += len(chunk)
            _require_etag(uri, os.fstat(file), known)

    @override
    def get(self, uri: str) -> bytes:
        return b"".join(self.stream(uri))

    @override
    def get_range(self, uri: str, start: int, length: int, *, etag: str = "") -> bytes:
        with translate_os_errors(uri), _open_for_reading(uri) as (file, found):
            _require_etag(uri, found, etag)
            parts: list[bytes] = []
            # One pread returns less than requested above 2 GiB, and on some network file systems.
            while length > 0 and (part := os.pread(file, length, start)):
                parts.append(part)
                start, length = start + len(part), length - len(part)
            _require_etag(uri, os.fstat(file), _etag(found))
            return parts[0] if len(parts) == 1 else b"".join(parts)

    @override
    def put(self, uri: str, data: bytes) -> None:
        """Write a file, and create its parent folders."""
        path = _target_path(uri)
        with translate_os_errors(uri), _TemporaryFile(path) as temporary:
            temporary.write(data)
            temporary.publish(path)

    def put_unflushed(self, uri: str, data: bytes, *, drafts: str) -> None:
        """Write an object atomically but not durably, until `flush` has returned.

        A power cut before `flush` may undo the write or leave the file empty; a killed process
        loses nothing. For many small files this takes a tenth of the time of `put`. Temporary files
        are in the folder `drafts`, which must be on the same file system, and not among the
        results.
        """
        path = _target_path(uri)
        with translate_os_errors(uri), _TemporaryFile(path, parse(drafts).key) as temporary:
            temporary.write(data)
            temporary.publish(path, flush=False)

    def flush(self, folder: str) -> None:
        """Make all writes to the file system of `folder` durable."""
        with translate_os_errors(folder):
            descriptor = os.open(parse(folder).key or ".", os.O_RDONLY | os.O_CLOEXEC)
            try:
                _sync_file_system(descriptor)
            finally:
                os.close(descriptor)

    @override
    def put_if_absent(self, uri: str, data: bytes) -> None:
        """Write a file unless it exists. Needs a file system with hard links."""
        path = _target_path(uri)
        with translate_os_errors(uri):
            with _TemporaryFile(path) as temporary:
                temporary.write(data)
                if temporary.publish_new(path):
                    return
            if self.get(uri) != data:
                raise AlreadyExistsError(uri, "exists already with other bytes")

    @override
    def writer(self, uri: str, metadata: Mapping[str, str] = NO_METADATA) -> Writer:
        path = _target_path(uri)
        with translate_os_errors(uri):
            return _LocalWriter(uri, path, metadata)

    @override
    def metadata(self, uri: str) -> Mapping[str, str]:
        """Return the extended attributes that headrace set; none where they are not supported."""
        self.head(uri)
        path = parse(uri).key
        found: dict[str, str] = {}
        with contextlib.suppress(AttributeError, OSError):
            for name in os.listxattr(path):
                if name.startswith(_ATTRIBUTE):
                    found[name.removeprefix(_ATTRIBUTE)] = os.getxattr(path, name).decode()
        return found

    @override
    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the files in order, without unfinished writes.

        Holds the names of one folder per level of the tree.
        """
        path = parse(prefix).key
        folder, slash, start_of_name = path.rpartition("/")
        # URIs keep the given prefix: a listing of "./in/" yields "./in/a", and "file:///" URIs stay
        # such.
        written = prefix[: len(prefix) - len(start_of_name)]
        with translate_os_errors(prefix):
            yield from _list_tree(folder + slash or ".", written, start_of_name)

    @override
    def head(self, uri: str) -> ObjectInfo:
        """Return the metadata of a file. Raises NotFoundError for a folder."""
        path = parse(uri).key
        with translate_os_errors(uri):
            found = os.stat(path)  # Path would drop a trailing slash, an error for files
            if stat.S_ISDIR(found.st_mode):
                raise NotFoundError(uri, "is a folder, not a file: append / to name all files below it")
            return _info(uri, found)

    @override
    def delete(self, uri: str) -> None:
        """Delete a file. Its parent folders stay."""
        with translate_os_errors(uri), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(parse(uri).key)  # Path would drop a trailing slash, as in head

    def prune(self, folder: str) -> None:
        """Remove a folder and its subfolders where they hold no file.

        A folder that a writer uses at this moment stays, or the writer creates it again. Temporary
        files count as files; those older than STALE_S seconds are removed.
        """
        path = parse(folder).key.rstrip("/")
        with translate_os_errors(folder):
            for below, _, _ in os.walk(path, topdown=False):
                self.clean(below)
                with contextlib.suppress(OSError):
                    os.rmdir(below)

    def clean(self, folder: str, *, older_than_s: float = STALE_S) -> int:
        """Remove temporary files of killed writers in a folder, not below it. Return their number.

        Only files older than `older_than_s` seconds are removed: a younger one may belong to a
        running writer, perhaps on another machine.
        """
        removed = 0
        with translate_os_errors(folder), contextlib.suppress(FileNotFoundError, NotADirectoryError):
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


def _require_etag(uri: str, found: os.stat_result, etag: str) -> None:
    if etag and _etag(found) != etag:
        raise ChangedError(uri, f"has changed (ETag {_etag(found)}, expected {etag})")


def _target_path(uri: str) -> str:
    """Return the path to write. A symbolic link is resolved, so that the link itself stays."""
    path = parse(uri).key
    if not path or path.endswith("/"):
        raise ConfigError(f"{uri}: names a folder: append the name of a file")
    # The system follows links among the parent folders; checking each would double the time of a
    # write.
    if os.path.islink(path):
        return os.path.realpath(path)
    return path if path.startswith("/") else os.path.join(os.getcwd(), path)


@contextmanager
def _open_for_reading(uri: str) -> Generator[tuple[int, os.stat_result]]:
    file = os.open(parse(uri).key, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        if stat.S_ISDIR(found.st_mode):
            raise NotFoundError(uri, "is a folder, not a file: append / to name all files below it")
        yield file, found
    finally:
        os.close(file)


def _read_from(file: int, start: int) -> Iterator[bytes]:
    """Yield the bytes of a pipe or device from `start`. These files cannot be read at an offset."""
    while chunk := os.read(file, CHUNK_BYTES):
        rest = chunk[start:]
        start = max(0, start - len(chunk))
        if rest:
            yield rest


def _list_tree(folder: str, written: str, start_of_name: str) -> Iterator[ObjectInfo]:
    """Yield the files below `folder`, sorted as whole strings.

    The name of a folder ends in a slash for the sort.
    """
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
            yield from _list_tree(path, written + name, "")
            continue
        try:
            found = os.stat(path)
        except FileNotFoundError:
            continue  # deleted since, or a dangling link
        if not stat.S_ISDIR(found.st_mode):
            yield _info(written + name, found)


class _TemporaryFile:
    """A file beside `path`, or in another folder, that is deleted unless it is published."""

    def __init__(self, path: str, folder: str = "") -> None:
        folder = folder or os.path.dirname(path)
        if os.path.isdir(path):
            raise IsADirectoryError(path)
        name = f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(6)}{TEMPORARY_SUFFIX}"
        self.path = os.path.join(folder, name)
        self._published = False
        # The folder usually exists, and checking that takes as long as creating a file.
        try:
            self._file = self._open()
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)
            self._file = self._open()

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def set_attributes(self, metadata: Mapping[str, str]) -> None:
        """Set extended attributes, where the operating system and the file system have them."""
        for name, value in metadata.items():
            with contextlib.suppress(AttributeError, OSError):
                os.setxattr(self._file, _ATTRIBUTE + name, value.encode())

    def write(self, data: bytes) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[os.write(self._file, rest) :]

    def publish(self, path: str, *, flush: bool = True) -> None:
        if flush:
            os.fsync(self._file)
        try:
            os.replace(self.path, path)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.replace(self.path, path)
        self._published = True
        if flush:
            flush_folder(path)

    def publish_new(self, path: str) -> bool:
        """Publish the file as `path` unless that exists. Return False if it does."""
        os.fsync(self._file)
        try:
            os.link(self.path, path)  # a link fails if the name exists; a rename would replace it
        except FileExistsError:
            return False
        flush_folder(path)
        return True

    def remove(self) -> None:
        """Close the file. Delete it unless it was published."""
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


def _sync_file_system(descriptor: int) -> None:
    """Call `syncfs`, which Python does not offer. On systems without it, flush everything."""
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        os.sync()
    elif syncfs(descriptor):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def replace_by_link(source: str, path: str) -> None:
    """Replace `path` by a hard link to `source`, or by a copy where hard links are not supported.

    The temporary files of a killed process are beside `source`.
    """
    with _TemporaryFile(path, os.path.dirname(source)) as temporary:
        os.unlink(temporary.path)
        try:
            os.link(source, temporary.path)
        except OSError:
            shutil.copyfile(source, temporary.path)
        os.replace(temporary.path, path)


def flush_folder(path: str) -> None:
    """Make the name of a new file durable."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class _LocalWriter(Writer):
    def __init__(self, uri: str, path: str, metadata: Mapping[str, str]) -> None:
        self._uri = uri
        self._path = path
        self._temporary: _TemporaryFile | None = _TemporaryFile(path)
        self._temporary.set_attributes(metadata)

    def write(self, data: bytes) -> None:
        if self._temporary is None:
            raise ValueError(f"{self._uri}: the writer is closed")
        with translate_os_errors(self._uri):
            self._temporary.write(data)

    def close(self) -> None:
        if self._temporary is None:
            return
        temporary, self._temporary = self._temporary, None
        with translate_os_errors(self._uri), temporary:
            temporary.publish(self._path)

    def abort(self) -> None:
        if self._temporary is not None:
            self._temporary.remove()
            self._temporary = None


@contextmanager
def translate_os_errors(uri: str) -> Generator[None]:
    """Translate errors of the operating system into headrace's errors about `uri`."""
    try:
        yield
    except OSError as error:
        _raise_storage_error(uri, error)


def _raise_storage_error(uri: str, error: OSError) -> NoReturn:
    reason = error.strerror or str(error)
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        raise NotFoundError(uri, "no such file") from error
    if isinstance(error, PermissionError):
        raise AccessDeniedError(uri, f"{reason}: this user has no access") from error
    if isinstance(error, IsADirectoryError):
        raise StorageError(uri, "is a folder, so no file can have its name") from error
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        raise StorageError(uri, f"{reason}: free disk space; completed files stay") from error
    raise StorageError(uri, reason) from error


def remove_folder(store: Store, folder: str) -> None:
    """Delete every object below `folder`, then the empty folders (see `prune_folder`)."""
    for info in store.list(folder):
        store.delete(info.uri)
    prune_folder(store, folder)


def prune_folder(store: Store, folder: str) -> None:
    """Remove `folder` and its subfolders where they are empty.

    Does nothing for stores without folders.
    """
    if isinstance(store, LocalStore):
        store.prune(folder)
