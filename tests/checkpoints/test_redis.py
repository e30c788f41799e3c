"""The Redis store: its keys, and its behaviour when the server fails."""

import itertools
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from checkpoints.reported_failure import reported_failure
from headrace.checkpoints.redis import CONNECTIONS_MAX, RedisCheckpointStore
from headrace.checkpoints.store import KEEP_MS, SequenceCheckpoint
from headrace.core.errors import UnavailableError
from servers.tcp_proxy import TcpProxy
from servers.valkey import ValkeyServer

FIRST = SequenceCheckpoint("a", 1, b"one", 0)
_numbers = itertools.count()


@pytest.fixture
def prefix() -> str:
    return f"test-{next(_numbers)}"


@pytest.fixture
def client(valkey_server):
    with valkey_server.client() as client:
        yield client


def _store(port: int, prefix: str, **options) -> RedisCheckpointStore:
    return RedisCheckpointStore({"host": "127.0.0.1", "port": port}, "a model", prefix=prefix, **options)


@pytest.fixture
def store(valkey_server, prefix):
    with closing(_store(valkey_server.port, prefix)) as store:
        yield store


def test_stored_keys_are_readable(store, client, prefix):
    store.save([SequenceCheckpoint("a b", 7, b"state", 0)])
    key = f"{prefix}:{{a%20model}}:of:a b"
    found = client.hgetall(key)
    saved_ms = int(found.pop("saved_ms"))
    assert found == {"steps": "7", "state": "state"}
    assert abs(saved_ms - time.time() * 1000) < 60_000
    assert client.zrange(f"{prefix}:{{a%20model}}:saved", 0, -1, withscores=True) == [("a b", saved_ms)]


def test_keys_expire(valkey_server, client, prefix):
    with closing(_store(valkey_server.port, prefix)) as store:
        store.save([FIRST])
    keys = client.keys(f"{prefix}:*")
    assert len(keys) == 2
    assert all(KEEP_MS - 60_000 < client.pttl(key) <= KEEP_MS for key in keys)
    with closing(_store(valkey_server.port, prefix, keep_ms=1)) as store:
        store.save([FIRST])
        while client.keys(f"{prefix}:*"):
            """Wait until they expire."""
        assert store.load(["a"], idle_ms_max=float("inf")) == [None]
        assert store.save([SequenceCheckpoint("a", 2, b"two", 1)]) == [False]


def test_infinite_retention_removes_the_expiry(valkey_server, client, prefix):
    for keep_ms, forever in ((60_000, False), (float("inf"), True)):
        with closing(_store(valkey_server.port, prefix, keep_ms=keep_ms)) as store:
            store.save([FIRST])
        assert [client.pttl(key) == -1 for key in client.keys(f"{prefix}:*")] == [forever, forever]


def test_purge_removes_expired_ids(store, client, prefix):
    store.save([FIRST])
    client.delete(f"{prefix}:{{a%20model}}:of:a")
    client.zincrby(f"{prefix}:{{a%20model}}:saved", -60_000, "a")
    assert store.purge(idle_ms_max=1000, count_max=10) == 1
    assert client.keys(f"{prefix}:*") == []


def test_purge_keeps_checkpoints_saved_meanwhile(store):
    store.save([FIRST])
    store._find_old = lambda keys, args: [b"a"]
    assert store.purge(idle_ms_max=60_000, count_max=10) == 0
    assert store.load(["a"], idle_ms_max=60_000) == [(1, b"one")]


def test_a_batch_is_one_round_trip(store, client):
    """A purge takes two round trips."""
    batch = [SequenceCheckpoint(f"s-{n}", 1, b"x", 0) for n in range(64)]
    store.save(batch)
    store.delete(["s-0"])

    def sent(act) -> int:
        before = client.info("stats")["total_reads_processed"]
        act()
        return client.info("stats")["total_reads_processed"] - before

    own = sent(lambda: None)
    assert sent(lambda: store.save(batch)) - own == 1
    assert sent(lambda: store.load([c.id for c in batch], idle_ms_max=1e9)) - own == 1
    assert sent(lambda: store.delete([c.id for c in batch])) - own == 1


def test_flushed_scripts_are_loaded_again(store, client):
    store.save([FIRST])
    client.script_flush()
    assert store.save([SequenceCheckpoint("a", 2, b"two", 1)]) == [True]


def test_unreachable_server_is_reported(caplog):
    """Only the log has the address and the words of the client library."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with closing(_store(port, "p")) as store:
        why, logged = reported_failure(caplog, lambda: store.load(["a"], idle_ms_max=1))
    assert why == "the checkpoint store of model a model: it failed; try again later"
    assert logged.startswith(f"a model redis at 127.0.0.1:{port}: ConnectionError: ")
    assert "refused" in logged


@pytest.mark.slow
def test_restarted_server_is_used_again(tmp_path, prefix, caplog):
    server = ValkeyServer(tmp_path)
    server.start()
    store = _store(server.port, prefix)
    try:
        store.save([FIRST])
        server.stop()
        why, logged = reported_failure(caplog, lambda: store.save([FIRST]))
        assert why == "the checkpoint store of model a model: it failed; try again later"
        assert logged.startswith(f"a model redis at 127.0.0.1:{server.port}: ConnectionError: ")
        server.start()
        # The server has no persistence: a save that follows a lost checkpoint must fail.
        assert store.save([SequenceCheckpoint("a", 2, b"two", 1)]) == [False]
        assert store.save([FIRST]) == [True]
        server.stop()
        server.start()
        assert store.load(["a"], idle_ms_max=1e9) == [None]
    finally:
        store.close()
        server.stop()


def test_timeout_of_a_paused_server(valkey_server, prefix, caplog):
    with closing(_store(valkey_server.port, prefix, timeout_s=0.1)) as store:
        options = store._client.connection_pool.connection_kwargs
        assert (options["socket_timeout"], options["socket_connect_timeout"]) == (0.1, 0.1)
        store.save([FIRST])
        valkey_server.pause()
        try:
            _, logged = reported_failure(caplog, lambda: store.save([SequenceCheckpoint("a", 2, b"two", 1)]))
            assert "TimeoutError" in logged
        finally:
            valkey_server.resume()
        # The save may have happened late, or not: saving again is correct in both cases.
        assert store.save([SequenceCheckpoint("a", 2, b"two", 1)]) == [True]


def test_reset_connections_are_replaced(valkey_server, prefix):
    with TcpProxy(valkey_server.port) as proxy, closing(_store(proxy.port, prefix, timeout_s=2)) as store:
        store.save([FIRST])
        proxy.refuse()
        proxy.reset()
        with pytest.raises(UnavailableError):
            store.load(["a"], idle_ms_max=1e9)
        proxy.heal()
        assert store.load(["a"], idle_ms_max=1e9) == [(1, b"one")]


@pytest.mark.slow
def test_authentication_error_is_reported_without_the_password(tmp_path, prefix, caplog):
    server = ValkeyServer(tmp_path, "--requirepass", "right")
    server.start()
    try:
        for password in ("secret-wrong", None):
            connection = {"host": "127.0.0.1", "port": server.port, "password": password}
            with closing(RedisCheckpointStore(connection, "m")) as store:
                _, logged = reported_failure(caplog, lambda: store.save([FIRST]))
                assert "AuthenticationError" in logged
                assert "secret" not in logged
        connection = {"host": "127.0.0.1", "port": server.port, "password": "right"}
        with closing(RedisCheckpointStore(connection, "m")) as store:
            assert store.save([FIRST]) == [True]
    finally:
        server.stop()


@pytest.mark.slow
def test_full_server_is_reported_and_keeps_its_checkpoints(tmp_path, prefix, caplog):
    server = ValkeyServer(tmp_path)
    server.start()
    try:
        with closing(_store(server.port, prefix)) as store, server.client() as client:
            store.save([FIRST])
            client.config_set("maxmemory", "1")
            _, logged = reported_failure(caplog, lambda: store.save([SequenceCheckpoint("a", 2, b"two", 1)]))
            assert "memory" in logged.lower()
            client.config_set("maxmemory", "0")
            assert store.load(["a"], idle_ms_max=1e9) == [(1, b"one")]
    finally:
        server.stop()


def test_threads_share_the_connections(store, client):
    threads = 3 * CONNECTIONS_MAX
    before = client.info("clients")["connected_clients"]
    with ThreadPoolExecutor(threads) as pool:
        kept = pool.map(lambda n: store.save([SequenceCheckpoint(f"s-{n}", 1, b"x", 0)]), range(10 * threads))
        assert all(each == [True] for each in kept)
    assert client.info("clients")["connected_clients"] - before <= CONNECTIONS_MAX
