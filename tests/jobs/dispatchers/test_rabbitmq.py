"""What a dispatcher makes in RabbitMQ, and what it does when an operator made something else, or removes it."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pika
import pytest

from headrace.core.errors import ConfigError
from headrace.jobs.dispatchers.link import Announcement, Taken
from headrace.jobs.dispatchers.rabbitmq import RabbitBroker
from servers import tcp_proxy
from servers.tcp_proxy import TcpProxy

pytestmark = pytest.mark.slow
_numbers = itertools.count()


@pytest.fixture
def queue() -> str:
    return f"door-{next(_numbers)}"


@pytest.fixture
def broker(rabbit_server) -> RabbitBroker:
    return RabbitBroker(rabbit_server.url, messages_max=50, timeout_s=2)


@pytest.fixture
def link(broker, queue):
    link = broker.connect([queue])
    yield link
    link.close()


@pytest.fixture
def channel(rabbit_server):
    connection = pika.BlockingConnection(pika.URLParameters(rabbit_server.url))
    yield connection.channel()
    connection.close()


def _announcements(queue: str, count: int) -> list[Announcement]:
    return [Announcement(queue, f"job-{number}") for number in range(count)]


def test_a_queue_is_a_durable_quorum_queue_with_bounds(link, channel, queue):
    """Declaring it again with the very same arguments is allowed, and with any other is not."""
    arguments = {
        "x-queue-type": "quorum",
        "x-delivery-limit": 1_000_000,
        "x-max-length": 50,
        "x-overflow": "drop-head",
    }
    channel.queue_declare(f"headrace.jobs.{queue}", durable=True, arguments=arguments)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        channel.queue_declare(
            f"headrace.jobs.{queue}", durable=True, arguments={**arguments, "x-delivery-limit": 3}
        )


def test_messages_carry_queue_and_job_id_outlive_a_restart_and_expire(link, channel, queue):
    link.send(_announcements(queue, 1))
    _, properties, body = channel.basic_get(f"headrace.jobs.{queue}", auto_ack=True)
    assert body == f'{{"queue":"{queue}","job_id":"job-0"}}'.encode()
    assert (properties.delivery_mode, properties.expiration) == (2, "3600000")


def test_what_is_taken_is_acknowledged_and_the_rest_stays(link, broker, queue):
    link.send(_announcements(queue, 5))
    taken = link.take(3, 5).messages
    assert 1 <= taken <= 3
    while taken < 5:
        taken += link.take(10, 5).messages
    assert taken == 5
    link.close()
    # What a connection has not acknowledged comes again when it ends.
    again = broker.connect([queue])
    assert again.take(10, 1).messages == 0
    again.close()


def _ready(channel, queue: str) -> int:
    return channel.queue_declare(f"headrace.jobs.{queue}", passive=True).method.message_count


def test_nobody_is_a_consumer_unless_it_waits(link, channel, queue):
    assert link.take(1, 0.1).messages == 0
    told = channel.queue_declare(f"headrace.jobs.{queue}", passive=True)
    assert told.method.consumer_count == 0


def test_a_queue_that_an_operator_declared_is_used_as_it_is(broker, channel, queue):
    channel.queue_declare(f"headrace.jobs.{queue}", durable=True, arguments={"x-max-length": 7})
    link = broker.connect([queue])
    link.send(_announcements(queue, 2))
    assert link.take(5, 5).messages >= 1
    link.close()


def test_a_queue_that_is_deleted_is_made_anew_by_who_sends(link, channel, queue):
    link.send(_announcements(queue, 1))
    channel.queue_delete(f"headrace.jobs.{queue}")
    link.send(_announcements(queue, 1))
    assert _ready(channel, queue) == 1


def test_a_queue_that_is_deleted_ends_the_wait_of_who_takes(link, channel, queue):
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(link.take, 1, 20.0)
        while not channel.queue_declare(f"headrace.jobs.{queue}", passive=True).method.consumer_count:
            """Until it waits."""
        channel.queue_delete(f"headrace.jobs.{queue}")
        with pytest.raises(ConnectionError, match="deleted"):
            taking.result(10)


def test_an_interrupt_ends_a_wait(link, channel, queue):
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(link.take, 1, 20.0)
        while not channel.queue_declare(f"headrace.jobs.{queue}", passive=True).method.consumer_count:
            """Until it waits."""
        link.interrupt()
        assert taking.result(5).messages == 0


@pytest.mark.timeout(20)
@pytest.mark.parametrize("call", ["take", "send"])
def test_a_broker_that_answers_nothing_is_given_up_long_before_heartbeats_would(call, rabbit_server, queue):
    with TcpProxy(rabbit_server.port) as proxy:
        link = RabbitBroker(f"amqp://guest:guest@127.0.0.1:{proxy.port}/", timeout_s=1).connect([queue])
        proxy.hold()
        with pytest.raises(ConnectionError, match="no answer in 1"):
            _ = link.take(1, 0.1) if call == "take" else link.send(_announcements(queue, 1))
        link.close()


def test_a_wrong_password_is_told_without_it(rabbit_server):
    broker = RabbitBroker(rabbit_server.url.replace("guest@", "secret-wrong@"), timeout_s=5)
    with pytest.raises(ConnectionError) as found:
        broker.connect([])
    assert "secret-wrong" not in f"{found.value} {broker.name}"


def test_names_that_cannot_be_are_refused(broker):
    for queue in ("", "q" * 250):
        with pytest.raises(ConfigError):
            broker.require_queue(queue)


def test_over_a_slow_way_one_wait_takes_all_that_there_is_room_for(
    rabbit_server, channel, queue, monkeypatch
):
    """Each message comes by itself, long after the one before; or most would go back, once for each wait."""
    monkeypatch.setattr(tcp_proxy, "_READ_BYTES", 150)
    with TcpProxy(rabbit_server.port) as proxy:
        url = rabbit_server.url.replace(str(rabbit_server.port), str(proxy.port))
        link = RabbitBroker(url, timeout_s=10).connect([queue])
        link.send(_announcements(queue, 40))
        proxy.delay_s = 0.002
        takes = [link.take(30, 5), link.take(30, 5)]
        proxy.delay_s = 0.0
        link.close()
    assert takes == [Taken(messages=30, redelivered=0), Taken(messages=10, redelivered=0)]


def test_what_is_given_back_again_and_again_is_not_dropped(link, channel, queue):
    """As by waits that end before it has come."""
    link.send(_announcements(queue, 1))
    name = f"headrace.jobs.{queue}"
    for number, (method, _, _) in enumerate(channel.consume(name, inactivity_timeout=10)):
        channel.basic_nack(method.delivery_tag, requeue=True)
        if number == 50:
            break
    channel.cancel()
    assert link.take(1, 5).messages == 1
