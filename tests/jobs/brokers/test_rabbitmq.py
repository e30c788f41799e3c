"""Queues and messages in a real RabbitMQ, also after an operator's changes."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.core.errors import ConfigError
from headrace.jobs.brokers.rabbitmq import RabbitBroker
from headrace.jobs.brokers.session import Announcement, ReceivedMessages
from servers import tcp_proxy
from servers.polling import reached
from servers.tcp_proxy import TcpProxy

pytestmark = pytest.mark.slow
_numbers = itertools.count()


@pytest.fixture
def queue() -> str:
    return f"queue-{next(_numbers)}"


@pytest.fixture
def broker(rabbit_server) -> RabbitBroker:
    return RabbitBroker(rabbit_server.url, messages_max=50, timeout_s=2)


@pytest.fixture
def session(broker, queue):
    session = broker.connect([queue])
    yield session
    session.close()


@pytest.fixture
def channel(rabbit_server):
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(rabbit_server.url))
    yield connection.channel()
    connection.close()


def _announcements(queue: str, count: int) -> list[Announcement]:
    return [Announcement(queue, f"job-{number}") for number in range(count)]


def test_queue_is_a_durable_bounded_quorum_queue(session, channel, queue):
    # RabbitMQ accepts a second declaration only with the same arguments.
    arguments = {
        "x-queue-type": "quorum",
        "x-delivery-limit": 1_000_000,
        "x-max-length": 50,
        "x-overflow": "drop-head",
    }
    channel.queue_declare(f"headrace.jobs.{queue}", durable=True, arguments=arguments)
    import pika

    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        channel.queue_declare(
            f"headrace.jobs.{queue}", durable=True, arguments={**arguments, "x-delivery-limit": 3}
        )


def test_messages_hold_queue_and_job_id_and_are_persistent_and_expire(session, channel, queue):
    session.send(_announcements(queue, 1))
    _, properties, body = channel.basic_get(f"headrace.jobs.{queue}", auto_ack=True)
    assert body == f'{{"queue":"{queue}","job_id":"job-0"}}'.encode()
    assert (properties.delivery_mode, properties.expiration) == (2, "3600000")


def test_received_messages_are_acknowledged_and_others_stay(session, broker, queue):
    session.send(_announcements(queue, 5))
    received = session.take(3, 5).messages
    assert 1 <= received <= 3
    while received < 5:
        received += session.take(10, 5).messages
    assert received == 5
    session.close()
    # The broker delivers again what a closed connection has not acknowledged.
    other = broker.connect([queue])
    assert other.take(10, 1).messages == 0
    other.close()


def _status(channel, queue: str):
    return channel.queue_declare(f"headrace.jobs.{queue}", passive=True).method


def _wait_for_consumer(channel, queue: str) -> None:
    assert reached(lambda: _status(channel, queue).consumer_count, timeout_s=20.0)


def test_consumer_exists_only_during_a_wait(session, channel, queue):
    assert session.take(1, 0.1).messages == 0
    assert _status(channel, queue).consumer_count == 0


def test_queue_declared_by_an_operator_is_used_unchanged(broker, channel, queue):
    channel.queue_declare(f"headrace.jobs.{queue}", durable=True, arguments={"x-max-length": 7})
    session = broker.connect([queue])
    session.send(_announcements(queue, 2))
    assert session.take(5, 5).messages >= 1
    session.close()


def test_sender_recreates_a_deleted_queue(session, channel, queue):
    session.send(_announcements(queue, 1))
    channel.queue_delete(f"headrace.jobs.{queue}")
    session.send(_announcements(queue, 1))
    assert _status(channel, queue).message_count == 1


def test_deleted_queue_ends_the_wait(session, channel, queue):
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(session.take, 1, 20.0)
        _wait_for_consumer(channel, queue)
        channel.queue_delete(f"headrace.jobs.{queue}")
        with pytest.raises(ConnectionError, match="deleted"):
            taking.result(10)


def test_interrupt_ends_the_wait(session, channel, queue):
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(session.take, 1, 20.0)
        _wait_for_consumer(channel, queue)
        session.interrupt()
        assert taking.result(5).messages == 0


@pytest.mark.timeout(20)
@pytest.mark.parametrize("call", ["take", "send"])
def test_silent_broker_is_given_up_before_heartbeats_would(call, rabbit_server, queue):
    with TcpProxy(rabbit_server.port) as proxy:
        session = RabbitBroker(f"amqp://guest:guest@127.0.0.1:{proxy.port}/", timeout_s=1).connect([queue])
        proxy.hold()
        with pytest.raises(ConnectionError, match="no response within 1"):
            _ = session.take(1, 0.1) if call == "take" else session.send(_announcements(queue, 1))
        session.close()


def test_wrong_password_is_reported_without_the_password(rabbit_server):
    broker = RabbitBroker(rabbit_server.url.replace("guest@", "secret-wrong@"), timeout_s=5)
    with pytest.raises(ConnectionError) as found:
        broker.connect([])
    assert "secret-wrong" not in f"{found.value} {broker.name}"


def test_invalid_queue_names_are_refused(broker):
    for queue in ("", "q" * 250):
        with pytest.raises(ConfigError):
            broker.require_queue(queue)


def test_one_wait_fills_all_slots_over_a_slow_connection(rabbit_server, channel, queue, monkeypatch):
    # Each message arrives alone, long after the one before.
    monkeypatch.setattr(tcp_proxy, "_READ_BYTES", 150)
    with TcpProxy(rabbit_server.port) as proxy:
        url = rabbit_server.url.replace(str(rabbit_server.port), str(proxy.port))
        session = RabbitBroker(url, timeout_s=10).connect([queue])
        session.send(_announcements(queue, 40))
        proxy.delay_s = 0.002
        takes = [session.take(30, 5), session.take(30, 5)]
        proxy.delay_s = 0.0
        session.close()
    assert takes == [
        ReceivedMessages(messages=30, redelivered=0),
        ReceivedMessages(messages=10, redelivered=0),
    ]


def test_repeatedly_returned_message_is_not_dropped(session, channel, queue):
    # Waits that end before the message arrives return it to the queue.
    session.send(_announcements(queue, 1))
    name = f"headrace.jobs.{queue}"
    for number, (method, _, _) in enumerate(channel.consume(name, inactivity_timeout=10)):
        channel.basic_nack(method.delivery_tag, requeue=True)
        if number == 50:
            break
    channel.cancel()
    assert session.take(1, 5).messages == 1
