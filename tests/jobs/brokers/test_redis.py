"""Streams and messages in a real Valkey, also after a flush."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.core.errors import ConfigError
from headrace.jobs.brokers.redis import RedisBroker
from headrace.jobs.brokers.session import Announcement
from servers.polling import reached
from servers.valkey import ValkeyServer

_numbers = itertools.count()


@pytest.fixture
def queue() -> str:
    return f"queue-{next(_numbers)}"


@pytest.fixture
def broker(valkey_server) -> RedisBroker:
    return RedisBroker({"host": "127.0.0.1", "port": valkey_server.port}, messages_max=200)


@pytest.fixture
def client(valkey_server):
    with valkey_server.client() as client:
        yield client


@pytest.fixture
def session(broker, queue):
    session = broker.connect([queue])
    yield session
    session.close()


def _announcements(queue: str, count: int) -> list[Announcement]:
    return [Announcement(queue, f"job-{number}") for number in range(count)]


def _wait_for_blocked_client(client) -> None:
    assert reached(lambda: client.info("clients")["blocked_clients"], timeout_s=20.0)


def test_messages_hold_queue_and_job_id_only(session, client, queue):
    session.send(_announcements(queue, 1))
    ((_, message),) = client.xrange(f"headrace:jobs:{queue}")
    assert message == {"queue": queue, "job_id": "job-0"}


def test_received_messages_are_deleted_and_not_pending(session, client, queue):
    session.send(_announcements(queue, 5))
    assert session.take(3, 1).messages == 3
    stream = f"headrace:jobs:{queue}"
    assert client.xlen(stream) == 2
    (group,) = client.xinfo_groups(stream)
    assert group["pending"] == 0
    assert session.take(10, 1).messages == 2
    assert (client.xlen(stream), len(client.xinfo_consumers(stream, "workers"))) == (0, 1)


def test_stream_is_bounded(session, client, queue):
    for _ in range(20):
        session.send(_announcements(queue, 100))
    # The server trims whole nodes, of a hundred entries by default.
    assert 200 <= client.xlen(f"headrace:jobs:{queue}") <= 300


def test_flush_during_a_wait_loses_earlier_messages_only(session, broker, client, queue):
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(session.take, 1, 10.0)
        _wait_for_blocked_client(client)
        client.flushall()
        other = broker.connect([])
        other.send(_announcements(queue, 1))
        other.close()
        assert taking.result(10).messages == 1


def test_interrupt_ends_the_wait(session, client):
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(session.take, 1, 10.0)
        _wait_for_blocked_client(client)
        session.interrupt()
        assert taking.result(5).messages == 0


def test_wrong_password_is_reported_without_the_password(tmp_path):
    server = ValkeyServer(tmp_path, "--requirepass", "right")
    server.start()
    try:
        broker = RedisBroker({"host": "127.0.0.1", "port": server.port, "password": "secret-wrong"})
        with pytest.raises(ConnectionError, match="AuthenticationError") as found:
            broker.connect([])
        assert "secret-wrong" not in f"{found.value} {broker.name}"
        right = RedisBroker({"host": "127.0.0.1", "port": server.port, "password": "right"})
        right.connect(["q"]).close()
    finally:
        server.stop()


def test_empty_queue_name_is_refused(broker):
    with pytest.raises(ConfigError):
        broker.require_queue("")
