"""Which checkpoint store an address names."""

from pathlib import Path
from typing import Final

from headrace.checkpoints.memory import MemoryCheckpointStore
from headrace.checkpoints.store import KEEP_MS, CheckpointStore
from headrace.core.address import REDIS_SCHEMES, ServerAddress, redis_connection
from headrace.core.errors import ConfigError

_UNSYNCED: Final = "synchronous=normal"
_FORMS: Final = "memory:, sqlite:///PATH, a path, or redis://HOST[:PORT][/NUMBER]"


def open_store(address: str, model: str, *, keep_ms: float = KEEP_MS) -> CheckpointStore:
    """The store that `address` names, for the checkpoints of one model. Whoever asks for it closes it.

    ============================================= ================================================================
    ``memory:``                                   this process; they outlive an instance, and nothing more
    ``sqlite:///PATH``, or a path                 an SQLite file, made where there is none; ``sqlite:////PATH``
                                                  for an absolute path
    ``redis://[USER:PASSWORD@]HOST[:PORT][/DB]``  Redis or Valkey, not connected to yet; ``valkey://`` is the same,
                                                  ``rediss://`` and ``valkeys://`` go over TLS
    ============================================= ================================================================

    ``sqlite:///PATH?synchronous=normal`` does not wait for the disk: what was saved outlives killed processes, not a loss of power.
    Redis drops by itself what nobody has saved for `keep_ms`, which may be infinite; the others keep it until it is purged.
    Options of Redis follow a ``?``: ``prefix`` of its keys, and ``cafile``, whom to trust over TLS. User names and passwords are
    percent-encoded.

    Raises ConfigError for what is no such address, or a file that cannot be used, in a message that shows no password; and
    MissingExtraError where what it needs is not installed.
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
            raise ConfigError(f"{address}: the one option of an SQLite file is {_UNSYNCED}")
        return _sqlite(address, path, model, synced=not options)
    if scheme in REDIS_SCHEMES:
        return _redis(ServerAddress(address, _FORMS), model, keep_ms)
    raise ConfigError(f"{scheme}:// is no store of checkpoints: write {_FORMS}")


def _sqlite(address: str, path: str, model: str, *, synced: bool = True) -> CheckpointStore:
    if not path or ":memory:" in path or path.startswith("memory:") or "?" in path or path.endswith("/"):
        raise ConfigError(f"{address!r} is no store of checkpoints: write {_FORMS}")
    from headrace.checkpoints.sqlite import SqliteCheckpointStore  # noqa: PLC0415 - only what is asked for is imported

    return SqliteCheckpointStore(path, model, synced=synced)


def _redis(address: ServerAddress, model: str, keep_ms: float) -> CheckpointStore:
    connection = redis_connection(address)
    options = address.options
    if "cafile" in options and not Path(options["cafile"]).is_file():
        raise address.no_cafile()
    from headrace.checkpoints.redis import PREFIX, RedisCheckpointStore  # noqa: PLC0415 - an extra

    return RedisCheckpointStore(connection, model, prefix=options.get("prefix", PREFIX), keep_ms=keep_ms)
