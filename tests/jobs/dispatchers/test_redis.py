"""What a dispatcher leaves in Redis, and what it does when that is taken away."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.core.errors import ConfigError
from headrace.jobs.dispatchers.link import Announcement
from headrace.jobs.dispatchers.redis import RedisBroker
from servers.valkey import ValkeyServer

_numbers = itertools.count()


@pytest.fixture
def queue() -> str:
    return f"door-{next(_numbers)}"


@pytest.fixture
def broker(valkey_server) -> RedisBroker:
    return RedisBroker({"host": "127.0.0.1", "port": valkey_server.port}, messages_max=200)


@pytest.fixture
def client(valkey_server):
    with valkey_server.client() as client:
        yield client


@pytest.fixture
def link(broker, queue):
    link = broker.connect([queue])
    yield link
    link.close()


def _announcements(queue: str, count: int) -> list[Announcement]:
    return [Announcement(queue, f"job-{number}") for number in range(count)]


def test_messages_carry_queue_and_job_id_and_nothing_else(link, client, queue):
    link.send(_announcements(queue, 1))
    ((_, message),) = client.xrange(f"headrace:jobs:{queue}")
    assert message == {"queue": queue, "job_id": "job-0"}


def test_what_is_taken_is_gone_and_nothing_is_pending(link, client, queue):
    link.send(_announcements(queue, 5))
    assert link.take(3, 1).messages == 3
    stream = f"headrace:jobs:{queue}"
    assert client.xlen(stream) == 2
    (group,) = client.xinfo_groups(stream)
    assert group["pending"] == 0
    assert link.take(10, 1).messages == 2
    assert (client.xlen(stream), len(client.xinfo_consumers(stream, "workers"))) == (0, 1)


def test_a_stream_is_bounded(link, client, queue):
    for _ in range(20):
        link.send(_announcements(queue, 100))
    # The server trims whole nodes, of a hundred entries by default.
    assert 200 <= client.xlen(f"headrace:jobs:{queue}") <= 300


def test_a_flush_while_it_waits_loses_what_was_there_and_nothing_after(link, broker, client, queue):
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(link.take, 1, 10.0)
        while not client.info("clients")["blocked_clients"]:
            """Until it waits."""
        client.flushall()
        other = broker.connect([])
        other.send(_announcements(queue, 1))
        other.close()
        assert taking.result(10).messages == 1


def test_an_interrupt_ends_a_wait(link, client):
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(link.take, 1, 10.0)
        while not client.info("clients")["blocked_clients"]:
            """Until it waits."""
        link.interrupt()
        assert taking.result(5).messages == 0


def test_a_wrong_password_is_told_without_it(tmp_path):
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


def test_a_queue_needs_a_name(broker):
    with pytest.raises(ConfigError):
        broker.require_queue("")
