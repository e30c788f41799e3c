"""The conformance suite on every wakeup broker, with real message brokers; SQS on its imitation
`moto`.

Further faults: a broker that loses all its data, connections that are cut, a network that drops
everything for longer than any timeout, and a paused broker.
"""

import itertools

import pytest

from headrace.jobs.brokers import open_wakeup_broker
from headrace.jobs.brokers.message_wakeup_broker import MessageWakeupBroker
from headrace.jobs.brokers.rabbitmq import RabbitBroker
from headrace.jobs.brokers.redis import RedisBroker
from headrace.jobs.brokers.sqs import SqsBroker
from headrace.testing import WAKEUP_BROKER_CHECKS, check_outage, check_wakeup_broker
from servers.polling import wait_until
from servers.tcp_proxy import TcpProxy
from servers.valkey import ValkeyServer

each_check = pytest.mark.parametrize("check", WAKEUP_BROKER_CHECKS, ids=lambda check: check.__name__)
_numbers = itertools.count()


@pytest.fixture
def queue() -> str:
    return f"queue-{next(_numbers)}"


@each_check
def test_redis(check, valkey_server, queue):
    check(lambda: open_wakeup_broker(valkey_server.url), queue)


@each_check
@pytest.mark.slow
def test_rabbitmq(check, rabbit_server, queue):
    check(lambda: open_wakeup_broker(rabbit_server.url), queue)


@each_check
@pytest.mark.slow
def test_sqs_on_moto(check, moto_server, queue, monkeypatch):
    # A long poll of moto cannot be interrupted, so each stop waits for its end.
    monkeypatch.setattr(SqsBroker, "take_s_max", 1.0)
    check(lambda: open_wakeup_broker("sqs://", environ=moto_server.environ), queue)


def test_check_wakeup_broker_runs_every_check(valkey_server, monkeypatch):
    calls: list[str] = []
    recorded = [
        lambda make, queue, name=c.__name__: calls.append(f"{name} {queue}") for c in WAKEUP_BROKER_CHECKS
    ]
    monkeypatch.setattr("headrace.testing.wakeup_broker.WAKEUP_BROKER_CHECKS", recorded)
    check_wakeup_broker(lambda: open_wakeup_broker(valkey_server.url), "p")
    assert len(set(calls)) == len(WAKEUP_BROKER_CHECKS)


def test_redis_restart_without_its_data(tmp_path, queue):
    server = ValkeyServer(tmp_path)
    server.start()
    try:
        check_outage(lambda: open_wakeup_broker(server.url), queue, server.stop, server.start)
    finally:
        server.stop()


def test_redis_flush(valkey_server, queue):
    with valkey_server.client() as client:
        check_outage(lambda: open_wakeup_broker(valkey_server.url), queue, client.flushall, lambda: None)


def _impatient_broker(port: int) -> MessageWakeupBroker:
    return MessageWakeupBroker(RedisBroker({"host": "127.0.0.1", "port": port}, timeout_s=0.3))


@pytest.mark.parametrize("how", ["cut", "refused"])
def test_redis_connections(how, valkey_server, queue):
    with TcpProxy(valkey_server.port) as proxy:

        def begin_outage() -> None:
            if how == "refused":
                proxy.refuse()
            proxy.reset()

        def end_outage() -> None:
            proxy.heal()

        check_outage(lambda: _impatient_broker(proxy.port), queue, begin_outage, end_outage)


def test_redis_behind_a_network_that_forwards_nothing(valkey_server, queue, monkeypatch):
    monkeypatch.setattr("headrace.jobs.brokers.redis.TAKE_S_MAX", 0.5)
    with TcpProxy(valkey_server.port) as proxy:
        brokers = []

        def make() -> MessageWakeupBroker:
            brokers.append(_impatient_broker(proxy.port))
            return brokers[-1]

        def begin_outage() -> None:
            proxy.hold()
            wait_until(
                lambda: brokers[-1].statistics().outages and proxy.opened > 8, "several lost connections"
            )

        def end_outage() -> None:
            proxy.heal()

        check_outage(make, queue, begin_outage, end_outage)


def test_redis_that_stands_still(valkey_server, queue, monkeypatch):
    monkeypatch.setattr("headrace.jobs.brokers.redis.TAKE_S_MAX", 0.5)
    brokers = []

    def make() -> MessageWakeupBroker:
        brokers.append(_impatient_broker(valkey_server.port))
        return brokers[-1]

    def begin_outage() -> None:
        valkey_server.pause()
        wait_until(lambda: brokers[-1].statistics().outages, "an outage")

    try:
        check_outage(make, queue, begin_outage, valkey_server.resume)
    finally:
        valkey_server.resume()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("forgets", [False, True], ids=["keeps its queues", "forgets everything"])
def test_rabbitmq_restart(forgets, rabbit_server, queue):
    def begin_outage() -> None:
        if not forgets:
            rabbit_server.end()
            return
        rabbit_server.stop()
        rabbit_server.forget()

    check_outage(lambda: open_wakeup_broker(rabbit_server.url), queue, begin_outage, rabbit_server.start)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cut", "refused"])
def test_rabbitmq_connections(how, rabbit_server, queue):
    with TcpProxy(rabbit_server.port) as proxy:

        def begin_outage() -> None:
            if how == "refused":
                proxy.refuse()
            proxy.reset()

        def end_outage() -> None:
            proxy.heal()

        url = f"amqp://guest:guest@127.0.0.1:{proxy.port}/"
        check_outage(
            lambda: MessageWakeupBroker(RabbitBroker(url, timeout_s=2)), queue, begin_outage, end_outage
        )


@pytest.mark.slow
def test_rabbitmq_behind_a_network_that_forwards_nothing(rabbit_server, queue, monkeypatch):
    monkeypatch.setattr("headrace.jobs.brokers.rabbitmq.HEARTBEAT_S", 2)
    with TcpProxy(rabbit_server.port) as proxy:
        brokers = []

        def make() -> MessageWakeupBroker:
            url = f"amqp://guest:guest@127.0.0.1:{proxy.port}/"
            brokers.append(MessageWakeupBroker(RabbitBroker(url, timeout_s=1)))
            return brokers[-1]

        def begin_outage() -> None:
            proxy.hold()
            wait_until(lambda: brokers[-1].statistics().outages, "an outage")

        def end_outage() -> None:
            proxy.heal()

        check_outage(make, queue, begin_outage, end_outage)


@pytest.mark.slow
def test_sqs_on_moto_restart_without_its_queues(moto_server, queue):
    try:
        check_outage(
            lambda: open_wakeup_broker("sqs://", environ=moto_server.environ),
            queue,
            moto_server.stop,
            moto_server.start,
        )
    finally:
        moto_server.stop()
        moto_server.start()
