"""Checkpoints of sequences: stores that keep the last finished step of each, opened by their address."""

from pathlib import Path
from typing import Final

from headrace.checkpoints.store import KEEP_MS, CheckpointStore, MemoryCheckpointStore
from headrace.core.address import REDIS_SCHEMES, ServerAddress, redis_options
from headrace.core.errors import ConfigError

_UNSYNCED: Final = "synchronous=normal"
_FORMS: Final = "memory:, sqlite:///PATH, a path, or redis://HOST[:PORT][/NUMBER]"


def open_store(address: str, model: str, *, keep_ms: float = KEEP_MS) -> CheckpointStore:
    """Return the store at `address` for the checkpoints of one model. The caller closes it.

    - ``memory:``: this process; checkpoints outlive an instance only.
    - ``sqlite:///PATH``, or a path: an SQLite file, created if missing. An absolute path has four
      slashes, as in ``sqlite:////PATH``.
    - ``redis://[USER:PASSWORD@]HOST[:PORT][/DB]``: Redis or Valkey, connected at the first use.
      ``valkey://`` is the same; ``rediss://`` and ``valkeys://`` use TLS.

    ``sqlite:///PATH?synchronous=normal`` does not wait for the disk: checkpoints outlive killed
    processes, but not a loss of power. Redis drops checkpoints that nobody has saved for `keep_ms`,
    which may be infinite; the other stores keep them until a purge. The options of Redis follow a
    ``?``: ``prefix`` of its keys, and ``cafile``, the trusted certificates for TLS. User names and
    passwords are percent-encoded.

    Raises:
        ConfigError: The address is invalid, or the file cannot be used. The message shows no password.
        MissingExtraError: The client library of the store is not installed.
    """
    if address == "memory:":
        return MemoryCheckpointStore(model)
    scheme, separator, rest = address.partition("://")
    if not separator:
        return _sqlite(address, address, model)
    if scheme == "sqlite":
        if not rest.startswith("/"):
            raise ConfigError(
                f"{address}: an SQLite file is named by its path, as in sqlite:///checkpoints.db"
            )
        path, _, options = rest[1:].partition("?")
        if options and options != _UNSYNCED:
            raise ConfigError(f"{address}: the only option of an SQLite file is {_UNSYNCED}")
        return _sqlite(address, path, model, synced=not options)
    if scheme in REDIS_SCHEMES:
        return _redis(ServerAddress(address, _FORMS), model, keep_ms)
    raise ConfigError(f"{scheme}:// is not a checkpoint store: write {_FORMS}")


def _sqlite(address: str, path: str, model: str, *, synced: bool = True) -> CheckpointStore:
    if not path or ":memory:" in path or path.startswith("memory:") or "?" in path or path.endswith("/"):
        raise ConfigError(f"{address!r} is not a checkpoint store: write {_FORMS}")
    from headrace.checkpoints.sqlite import SqliteCheckpointStore  # noqa: PLC0415 - used only here

    return SqliteCheckpointStore(path, model, synced=synced)


def _redis(address: ServerAddress, model: str, keep_ms: float) -> CheckpointStore:
    connection = redis_options(address)
    options = address.options
    if "cafile" in options and not Path(options["cafile"]).is_file():
        raise address.missing_cafile_error()
    from headrace.checkpoints.redis import PREFIX, RedisCheckpointStore  # noqa: PLC0415 - an extra

    return RedisCheckpointStore(connection, model, prefix=options.get("prefix", PREFIX), keep_ms=keep_ms)
