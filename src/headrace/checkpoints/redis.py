"""Checkpoints in Redis or Valkey, for all processes that reach it. This room's door to redis.

A sequence is a hash, ``PREFIX:{MODEL}:of:ID``, of ``steps``, ``saved_ms`` and ``state``; beside them ``PREFIX:{MODEL}:saved``
has all ids by when they were saved. The braces keep the keys of a model on one node of a cluster. What is compared and set is so
in a script, a whole batch in one; all times are the server's own.
"""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote

from headrace.checkpoints.store import KEEP_MS, Checkpoint
from headrace.core.errors import MissingExtraError, UnavailableError

try:
    import redis as _redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as _error:
    raise MissingExtraError("redis", "a redis:// or valkey:// store of checkpoints") from _error

redis: Any = _redis  # its types are too loose to be of use

PREFIX: Final = "headrace:checkpoints"
TIMEOUT_S: Final = 5.0
"""How long the server may take to answer, and to be connected to; and how long a call may wait for a connection."""
CONNECTIONS_MAX: Final = 8
_NOW: Final = """
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
"""
# KEYS: the ids by time, then a hash each. ARGV: how long to keep them (0: for ever), then for each its id, steps, before and state.
_SAVE: Final = (
    _NOW
    + """
local function keep(key)
    if ARGV[1] == '0' then redis.call('PERSIST', key) else redis.call('PEXPIRE', key, ARGV[1]) end
end
local saved_ms, kept = string.format('%.0f', now_ms), {}
for n = 2, #KEYS do
    local key, at = KEYS[n], 4 * (n - 2) + 2
    local id, steps, before, state = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
    local there = before ~= '0' and redis.call('HGET', key, 'steps')
    if before == '0' or there == before or (there == steps and redis.call('HGET', key, 'state') == state) then
        redis.call('HSET', key, 'steps', steps, 'saved_ms', saved_ms, 'state', state)
        keep(key)
        redis.call('ZADD', KEYS[1], saved_ms, id)
        kept[n - 1] = 1
    else
        kept[n - 1] = 0
    end
end
keep(KEYS[1])
return kept
"""
)
# KEYS as above. ARGV: for each its id and steps, which are empty where any are meant.
_DELETE: Final = """
for n = 2, #KEYS do
    local key, id, steps = KEYS[n], ARGV[2 * n - 3], ARGV[2 * n - 2]
    if steps == '' or redis.call('HGET', key, 'steps') == steps then
        redis.call('DEL', key)
        redis.call('ZREM', KEYS[1], id)
    end
end
"""
# KEYS: the ids by time. ARGV: how old they may be, and how many are wanted.
_FIND_OLD: Final = (
    _NOW
    + """
local oldest_ms = string.format('(%.0f', now_ms - ARGV[1])
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', oldest_ms, 'LIMIT', 0, ARGV[2])
"""
)
# KEYS as for saving. ARGV: how old they may be, then their ids. Those that were saved since stay.
_DROP_OLD: Final = (
    _NOW
    + """
local dropped = 0
for n = 2, #KEYS do
    local saved_ms = redis.call('ZSCORE', KEYS[1], ARGV[n])
    if saved_ms and tonumber(saved_ms) < now_ms - ARGV[1] then
        redis.call('DEL', KEYS[n])
        redis.call('ZREM', KEYS[1], ARGV[n])
        dropped = dropped + 1
    end
end
return dropped
"""
)
_PURGE_MAX: Final = 10_000


class RedisCheckpointStore:
    """A `CheckpointStore` on one server, which is connected to when it is first needed.

    A batch is one round trip. How durable it is when `save` returns is for the server's settings to say (``appendfsync``);
    one that evicts keys when its memory is full loses checkpoints.

    Args:
        connection: What `redis.Redis` takes to connect: host, port, db, username, password, and TLS.
        model: Whose checkpoints.
        prefix: What all keys begin with, so that two installations can share a server.
        keep_ms: What nobody has saved for so long goes by itself, also when its model is never served again; may be infinite.
        timeout_s: See `TIMEOUT_S`.
    """

    def __init__(
        self,
        connection: Mapping[str, Any],
        model: str,
        *,
        prefix: str = PREFIX,
        keep_ms: float = KEEP_MS,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.model = model
        self._where = f"redis at {connection['host']}:{connection['port']}"
        self._keys = f"{prefix}:{{{quote(model, safe='')}}}"
        self._saved = f"{self._keys}:saved"
        self._keep_ms = 0 if math.isinf(keep_ms) else math.ceil(keep_ms)
        self._client: Any = _client(connection, timeout_s)
        self._closed = False
        self._save: Callable[..., Any] = self._client.register_script(_SAVE)
        self._delete: Callable[..., Any] = self._client.register_script(_DELETE)
        self._find_old: Callable[..., Any] = self._client.register_script(_FIND_OLD)
        self._drop_old: Callable[..., Any] = self._client.register_script(_DROP_OLD)

    def save(self, checkpoints: Sequence[Checkpoint]) -> list[bool]:
        """See `CheckpointStore.save`."""
        with self._faults():
            if not checkpoints:
                return []
            given: list[Any] = [self._keep_ms]
            for id, steps, state, before in checkpoints:
                given += (id, steps, before, state)
            return [kept == 1 for kept in self._save(self._keys_of([c.id for c in checkpoints]), given)]

    def load(self, ids: Sequence[str], *, idle_ms_max: float) -> list[tuple[int, bytes] | None]:
        """See `CheckpointStore.load`."""
        with self._faults():
            pipeline = self._client.pipeline(transaction=False)
            pipeline.time()
            for key in self._keys_of(ids)[1:]:
                pipeline.hmget(key, "steps", "saved_ms", "state")
            (seconds, microseconds), *found = pipeline.execute()
        oldest_ms = seconds * 1000 + microseconds // 1000 - idle_ms_max
        return [
            (int(steps), state) if steps is not None and int(saved_ms) >= oldest_ms else None
            for steps, saved_ms, state in found
        ]

    def delete(self, ids: Sequence[str], steps: Sequence[int] | None = None) -> None:
        """See `CheckpointStore.delete`."""
        with self._faults():
            if ids:
                of: Sequence[Any] = [""] * len(ids) if steps is None else steps
                pairs = zip(ids, of, strict=True)
                self._delete(self._keys_of(ids), [each for pair in pairs for each in pair])

    def purge(self, *, idle_ms_max: float, count_max: int) -> int:
        """See `CheckpointStore.purge`; at most `_PURGE_MAX` go at a time, in two round trips."""
        with self._faults():
            if math.isinf(idle_ms_max):
                return 0
            old = self._find_old([self._saved], [idle_ms_max, min(count_max, _PURGE_MAX)])
            ids = [id.decode() for id in old]
            return self._drop_old(self._keys_of(ids), [idle_ms_max, *ids]) if ids else 0

    def close(self) -> None:
        """See `CheckpointStore.close`."""
        self._closed = True
        self._client.connection_pool.disconnect()

    def _keys_of(self, ids: Sequence[str]) -> list[str]:
        return [self._saved, *[f"{self._keys}:of:{id}" for id in ids]]

    @contextmanager
    def _faults(self) -> Generator[None]:
        if self._closed:
            raise UnavailableError(self._where, f"the checkpoints of model {self.model} are closed")
        try:
            yield
        except (redis.RedisError, OSError) as error:
            raise UnavailableError(
                self._where,
                f"the store of checkpoints does not answer as it should: {type(error).__name__}: {error}",
            ) from error


def _client(connection: Mapping[str, Any], timeout_s: float) -> Any:
    options = dict(connection)
    kind = redis.SSLConnection if options.pop("ssl", False) else redis.Connection
    pool = redis.BlockingConnectionPool(
        connection_class=kind,
        max_connections=CONNECTIONS_MAX,
        timeout=timeout_s,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        socket_keepalive=True,
        # Whoever saves knows whether it is worth another attempt.
        retry=Retry(NoBackoff(), 0),
        client_name="headrace",
        **options,
    )
    return redis.Redis(connection_pool=pool)
