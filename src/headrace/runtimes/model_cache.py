"""A folder with the models that were fetched from stores, one entry for each version of a model.

An entry ``models/MODEL/VERSION/NAME`` appears as a whole and never changes, so any number of processes
may use it. MODEL stands for the URI and VERSION for the ETags. Nothing here deletes an entry, because a
process that runs may load its model again; the user may delete the folder at any other time.
"""

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headrace.core.errors import ConfigError, CorruptError, NotFoundError, UnavailableError
from headrace.formats.compression import decompress
from headrace.formats.contract import Buffer
from headrace.formats.tar import members
from headrace.runtimes.model_uri import ModelUri, local_path, member_path, parse_model_uri, version_of
from headrace.storage.contract import ObjectInfo
from headrace.storage.local import translate_os_errors
from headrace.storage.resolve import Stores

CACHE_VARIABLE: Final = "HEADRACE_CACHE"
MODEL_BYTES_MAX: Final = 256 << 30
"""Limit of the bytes of one fetched model, after decompression."""
MODEL_FILES_MAX: Final = 100_000
_UNFINISHED: Final = ".fetching-"
_HIDDEN: Final = (".", "__MACOSX")
"""Starts of names that macOS and version control add to archives."""

_log = logging.getLogger("headrace.runtimes")


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return ``HEADRACE_CACHE``, else ``headrace`` in ``XDG_CACHE_HOME`` or ``~/.cache``."""
    if folder := environ.get(CACHE_VARIABLE):
        return Path(folder).expanduser()
    return Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "headrace"


def local_model(spec: str, stores: Stores, folder: Path | None = None) -> str:
    """Return the name of a model on the local disk; fetch it into the cache if necessary.

    A model in a store is fetched again only if an ETag has changed. If the store cannot be reached, the
    version in the cache that was in use last is taken, with a warning in the log.

    Args:
        spec: A MODEL argument without ``NAME=``. A path or class is returned unchanged.
        stores: The stores of URIs.
        folder: The cache; None: `cache_folder` of the process's environment.

    Raises:
        ConfigError: The URI or a name below it is invalid, or the model is too large.
        CorruptError: An archive is damaged.
        StorageError: The model cannot be read, or the cache cannot be written.
    """
    if not spec:
        # An unset shell variable yields an empty string, and an empty path is the current directory.
        raise ConfigError("MODEL is empty: name a file, a folder, a class or a URI")
    if "://" not in spec and Path(spec).is_dir():
        return spec
    model = parse_model_uri(spec)
    if model is None:
        return local_path(spec)
    root = (cache_folder(os.environ) if folder is None else folder) / "models" / model.folder_name
    with translate_os_errors(str(root)):
        return model.local_spec(_main_path(model, _entry(model, stores, root) / model.name))


def _entry(model: ModelUri, stores: Stores, root: Path) -> Path:
    """Return the folder of the model's current version, and mark its use."""
    try:
        objects = _objects(model, stores)
    except UnavailableError as error:
        entry = _last_used(root)
        if entry is None:
            raise
        _log.warning("the model in the cache is used, it may be outdated: %s", error)
        return entry
    version = version_of(objects)
    entry = root / version
    if not version or not entry.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root) as is_locked:
            if is_locked:
                for unfinished in root.glob(f"{_UNFINISHED}*"):  # of processes that were killed
                    shutil.rmtree(unfinished, ignore_errors=True)
            if not version or not entry.is_dir():
                entry = _fetch(model, objects, stores, root, version)
    with contextlib.suppress(OSError):  # the cache may be read-only
        # The kernel's own time of now is too coarse to order two uses.
        now_ns = time.time_ns()
        os.utime(entry, ns=(now_ns, now_ns))
    return entry


def _objects(model: ModelUri, stores: Stores) -> Sequence[ObjectInfo]:
    store = stores.for_uri(model.uri)
    if model.kind != "prefix":
        try:
            return (store.head(model.uri),)
        except NotFoundError as error:
            raise NotFoundError(model.uri, f"{error.why}; the URI of a folder ends in /") from error
    # Keys that end in / stand for folders in some consoles.
    objects = [info for info in store.list(model.uri) if not info.uri.endswith("/")]
    if not objects:
        raise ConfigError(f"{model.uri} is not a model: there is nothing below it")
    return objects


def _last_used(root: Path) -> Path | None:
    entries = [e for e in root.iterdir() if _is_entry(e)] if root.is_dir() else []
    return max(entries, key=lambda e: e.stat().st_mtime_ns, default=None)


def _is_entry(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(_UNFINISHED)


@contextmanager
def _locked(root: Path) -> Generator[bool]:
    """Let one process at a time fetch a model. Yield False where the file system has no locks."""
    with (root / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            yield False
        else:
            yield True


def _fetch(model: ModelUri, objects: Sequence[ObjectInfo], stores: Stores, root: Path, version: str) -> Path:
    """Fetch a version into a new entry. Without a `version`, its content names the entry."""
    _log.info("fetching the model %s", model.uri)
    folder = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=root))
    try:
        digest = _download(model, objects, stores, folder / model.name)
        entry = root / (version or digest)
        folder.chmod(0o755)
        try:
            folder.rename(entry)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            shutil.rmtree(folder)  # another process was faster
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return entry


def _download(model: ModelUri, objects: Sequence[ObjectInfo], stores: Stores, path: Path) -> str:
    """Write the model to `path`. Return a digest of the bytes that were read."""
    store, digest, limit = stores.for_uri(model.uri), hashlib.sha256(), SizeLimit(model.uri)

    def chunks(info: ObjectInfo) -> Iterator[bytes]:
        for chunk in store.stream(info.uri, etag=info.etag):
            digest.update(chunk)
            yield chunk

    if model.kind == "archive":
        path.mkdir()
        try:
            unpack(chunks(objects[0]), path, limit, is_gzip=not model.uri.partition("?")[0].endswith(".tar"))
        except CorruptError as error:
            raise error.with_location(model.uri, None) from error
        except ConfigError as error:
            raise ConfigError(f"{model.uri}: {error}") from error
    elif model.kind == "object":
        _write(chunks(objects[0]), path, limit)
    else:
        for info in objects:
            _write(chunks(info), path / member_path(info.uri.removeprefix(model.uri)), limit)
    return digest.hexdigest()


class SizeLimit:
    """The number of files and bytes that a model may still have."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._files = MODEL_FILES_MAX
        self._bytes = MODEL_BYTES_MAX

    def take(self, nbytes: int, files: int = 0) -> None:
        """Raise ConfigError if the model is too large."""
        self._bytes -= nbytes
        self._files -= files
        if self._bytes < 0 or self._files < 0:
            raise ConfigError(
                f"{self._where} is too large for a model: the limits are {MODEL_BYTES_MAX >> 30} GiB and "
                f"{MODEL_FILES_MAX} files"
            )


def unpack(chunks: Iterable[Buffer], folder: Path, limit: SizeLimit, *, is_gzip: bool) -> None:
    """Write the regular files of a tar archive below a folder.

    Links and devices are left out, so no member can write outside the folder.

    Raises:
        ConfigError: A member's name is not a path below the folder, or the archive is too large.
        CorruptError: The archive is damaged.
    """
    plain = decompress("gzip", chunks) if is_gzip else chunks
    for member in members(plain):
        if member.unreadable_reason is not None:
            raise ConfigError(f"{member.name!r} cannot be unpacked: {member.unreadable_reason}")
        _write(member.pieces, folder / member_path(member.name), limit)


def _write(chunks: Iterable[Buffer], path: Path, limit: SizeLimit) -> None:
    limit.take(0, files=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for chunk in chunks:
            limit.take(len(chunk))
            file.write(chunk)
        file.flush()
        # An entry that survives a power failure must not have empty files.
        os.fsync(file.fileno())


def _main_path(model: ModelUri, path: Path) -> Path:
    """Return the only folder at the top of an archive, else the path of the model itself."""
    if model.kind != "archive":
        return path
    top = [p for p in path.iterdir() if not p.name.startswith(_HIDDEN)]
    return top[0] if len(top) == 1 and top[0].is_dir() else path
