"""A checkpoint store in Redis or Valkey, shared by all processes that reach the server.

This is the adapter module of the redis client. A sequence is a hash, ``PREFIX:{MODEL}:of:ID``, with
``steps``, ``saved_ms`` and ``state``. The sorted set ``PREFIX:{MODEL}:saved`` has all ids by their
time of saving. The braces keep the keys of a model on one node of a cluster. Scripts compare and
set atomically, one call for a whole batch. All times are the server's.
"""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote

from typing_extensions import override

from headrace.checkpoints.store import (
    KEEP_MS,
    CheckpointStore,
    SequenceCheckpoint,
    closed_error,
    store_failure,
)
from headrace.core.errors import MissingExtraError

try:
    import redis as _redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as _error:
    raise MissingExtraError("redis", "a redis:// or valkey:// checkpoint store") from _error

redis: Any = _redis  # The types of redis are too loose to be useful.

PREFIX: Final = "headrace:checkpoints"
TIMEOUT_S: Final = 5.0
"""Limit, in seconds, of a response, of connecting, and of the wait for a free connection."""
CONNECTIONS_MAX: Final = 8
_NOW: Final = """
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
"""
# KEYS: the ids by time, then a hash for each. ARGV: the time to keep them in milliseconds (0: for
# ever), then for each its id, steps, previous steps and state.
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
# KEYS as above. ARGV: for each its id and its steps, empty for any steps.
_DELETE: Final = """
for n = 2, #KEYS do
    local key, id, steps = KEYS[n], ARGV[2 * n - 3], ARGV[2 * n - 2]
    if steps == '' or redis.call('HGET', key, 'steps') == steps then
        redis.call('DEL', key)
        redis.call('ZREM', KEYS[1], id)
    end
end
"""
# KEYS: the ids by time. ARGV: the minimum age in milliseconds, and the limit of the result.
_FIND_OLD: Final = (
    _NOW
    + """
local oldest_ms = string.format('(%.0f', now_ms - ARGV[1])
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', oldest_ms, 'LIMIT', 0, ARGV[2])
"""
)
# KEYS as for saving. ARGV: the minimum age in milliseconds, then the ids. Checkpoints saved since
# stay.
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


class RedisCheckpointStore(CheckpointStore):
    """A checkpoint store on one server, connected at the first call.

    A batch is one round trip. The durability after `save` depends on the server's settings
    (``appendfsync``). A server that evicts keys when its memory is full loses checkpoints.

    Args:
        connection: Arguments of `redis.Redis`: host, port, db, username, password, and TLS.
        model: Name of the model of the checkpoints.
        prefix: Prefix of all keys, so that two installations can share a server.
        keep_ms: Time after the last save at which a checkpoint expires, in milliseconds. May be
            infinite. It applies even if the model is never served again.
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
        self._server = f"redis at {connection['host']}:{connection['port']}"
        self._keys = f"{prefix}:{{{quote(model, safe='')}}}"
        self._saved = f"{self._keys}:saved"
        self._keep_ms = 0 if math.isinf(keep_ms) else math.ceil(keep_ms)
        self._client: Any = _client(connection, timeout_s)
        self._closed = False
        self._save: Callable[..., Any] = self._client.register_script(_SAVE)
        self._delete: Callable[..., Any] = self._client.register_script(_DELETE)
        self._find_old: Callable[..., Any] = self._client.register_script(_FIND_OLD)
        self._drop_old: Callable[..., Any] = self._client.register_script(_DROP_OLD)

    @override
    def save(self, checkpoints: Sequence[SequenceCheckpoint]) -> list[bool]:
        with self._translated_errors():
            if not checkpoints:
                return []
            arguments: list[Any] = [self._keep_ms]
            for id, steps, state, previous_steps in checkpoints:
                arguments += (id, steps, previous_steps, state)
            return [kept == 1 for kept in self._save(self._keys_of([c.id for c in checkpoints]), arguments)]

    @override
    def load(self, ids: Sequence[str], *, idle_ms_max: float) -> list[tuple[int, bytes] | None]:
        with self._translated_errors():
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

    @override
    def delete(self, ids: Sequence[str], steps: Sequence[int] | None = None) -> None:
        with self._translated_errors():
            if ids:
                expected: Sequence[Any] = [""] * len(ids) if steps is None else steps
                pairs = zip(ids, expected, strict=True)
                self._delete(self._keys_of(ids), [each for pair in pairs for each in pair])

    @override
    def purge(self, *, idle_ms_max: float, count_max: int) -> int:
        """Delete up to `_PURGE_MAX` old checkpoints in one call, by two round trips."""
        with self._translated_errors():
            if math.isinf(idle_ms_max):
                return 0
            old = self._find_old([self._saved], [idle_ms_max, min(count_max, _PURGE_MAX)])
            ids = [id.decode() for id in old]
            return self._drop_old(self._keys_of(ids), [idle_ms_max, *ids]) if ids else 0

    @override
    def close(self) -> None:
        self._closed = True
        self._client.connection_pool.disconnect()

    def _keys_of(self, ids: Sequence[str]) -> list[str]:
        return [self._saved, *[f"{self._keys}:of:{id}" for id in ids]]

    @contextmanager
    def _translated_errors(self) -> Generator[None]:
        if self._closed:
            raise closed_error(self.model)
        try:
            yield
        except (redis.RedisError, OSError) as error:
            raise store_failure(self.model, self._server, f"{type(error).__name__}: {error}") from error


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
        # The caller knows if a save is worth another attempt.
        retry=Retry(NoBackoff(), 0),
        client_name="headrace",
        **options,
    )
    return redis.Redis(connection_pool=pool)
