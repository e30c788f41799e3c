"""Every dispatcher through the one conformance suite, on real brokers; SQS on `moto`, which imitates it.

Faults besides: a broker that loses all it had, connections that are cut, a network that swallows everything for longer
than any timeout, and a broker that stands still.
"""

import itertools
import threading

import pytest

from headrace.jobs.dispatchers.brokered import BrokeredDispatcher
from headrace.jobs.dispatchers.open import open_dispatcher
from headrace.jobs.dispatchers.rabbitmq import RabbitBroker
from headrace.jobs.dispatchers.redis import RedisBroker
from headrace.testing import DISPATCHER_CHECKS, check_dispatcher, check_outage
from servers.tcp_proxy import TcpProxy
from servers.valkey import ValkeyServer

each_check = pytest.mark.parametrize("check", DISPATCHER_CHECKS, ids=lambda check: check.__name__)
_numbers = itertools.count()


@pytest.fixture
def queue() -> str:
    return f"queue-{next(_numbers)}"


@each_check
def test_redis(check, valkey_server, queue):
    check(lambda: open_dispatcher(valkey_server.url), queue)


@each_check
@pytest.mark.slow
def test_rabbitmq(check, rabbit_server, queue):
    check(lambda: open_dispatcher(rabbit_server.url), queue)


@each_check
@pytest.mark.slow
def test_sqs_as_moto_imitates_it(check, moto_server, queue):
    check(lambda: open_dispatcher("sqs://", environ=moto_server.environ), queue)


def test_check_dispatcher_runs_every_check(valkey_server, monkeypatch):
    ran: list[str] = []
    recorded = [lambda make, queue, name=c.__name__: ran.append(f"{name} {queue}") for c in DISPATCHER_CHECKS]
    monkeypatch.setattr("headrace.testing.dispatcher.DISPATCHER_CHECKS", recorded)
    check_dispatcher(lambda: open_dispatcher(valkey_server.url), "p")
    assert len(set(ran)) == len(DISPATCHER_CHECKS)


def test_redis_forgets_everything_in_a_restart(tmp_path, queue):
    server = ValkeyServer(tmp_path)
    server.start()
    try:
        check_outage(lambda: open_dispatcher(server.url), queue, server.stop, server.start)
    finally:
        server.stop()


def test_redis_is_flushed(valkey_server, queue):
    with valkey_server.client() as client:
        check_outage(lambda: open_dispatcher(valkey_server.url), queue, client.flushall, lambda: None)


def _short(port: int) -> BrokeredDispatcher:
    return BrokeredDispatcher(RedisBroker({"host": "127.0.0.1", "port": port}, timeout_s=0.3))


@pytest.mark.parametrize("how", ["cut", "refused"])
def test_redis_connections_are(how, valkey_server, queue):
    with TcpProxy(valkey_server.port) as proxy:

        def leave() -> None:
            if how == "refused":
                proxy.refuse()
            proxy.reset()

        def come_back() -> None:
            proxy.heal()

        check_outage(lambda: _short(proxy.port), queue, leave, come_back)


def test_a_network_swallows_all_that_goes_to_redis_for_longer_than_any_timeout(
    valkey_server, queue, monkeypatch
):
    monkeypatch.setattr("headrace.jobs.dispatchers.redis.TAKE_S_MAX", 0.5)
    with TcpProxy(valkey_server.port) as proxy:
        made = []

        def make() -> BrokeredDispatcher:
            made.append(_short(proxy.port))
            return made[-1]

        def leave() -> None:
            proxy.hold()
            # Until the one that waits has given up a connection, and several more.
            _until(lambda: made[-1].statistics().outages and proxy.opened > 8)

        def come_back() -> None:
            proxy.heal()

        check_outage(make, queue, leave, come_back)


def test_redis_stands_still(valkey_server, queue, monkeypatch):
    monkeypatch.setattr("headrace.jobs.dispatchers.redis.TAKE_S_MAX", 0.5)
    made = []

    def make() -> BrokeredDispatcher:
        made.append(_short(valkey_server.port))
        return made[-1]

    def leave() -> None:
        valkey_server.pause()
        _until(lambda: made[-1].statistics().outages)

    try:
        check_outage(make, queue, leave, valkey_server.go_on)
    finally:
        valkey_server.go_on()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("forgets", [False, True], ids=["keeps its queues", "forgets everything"])
def test_rabbitmq_restarts(forgets, rabbit_server, queue):
    def leave() -> None:
        if not forgets:
            rabbit_server.end()
            return
        rabbit_server.stop()
        rabbit_server.forget()

    check_outage(lambda: open_dispatcher(rabbit_server.url), queue, leave, rabbit_server.start)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cut", "refused"])
def test_rabbitmq_connections_are(how, rabbit_server, queue):
    with TcpProxy(rabbit_server.port) as proxy:

        def leave() -> None:
            if how == "refused":
                proxy.refuse()
            proxy.reset()

        def come_back() -> None:
            proxy.heal()

        url = f"amqp://guest:guest@127.0.0.1:{proxy.port}/"
        check_outage(lambda: BrokeredDispatcher(RabbitBroker(url, timeout_s=2)), queue, leave, come_back)


@pytest.mark.slow
def test_a_network_swallows_all_that_goes_to_rabbitmq_for_longer_than_its_heartbeats(
    rabbit_server, queue, monkeypatch
):
    monkeypatch.setattr("headrace.jobs.dispatchers.rabbitmq.HEARTBEAT_S", 2)
    with TcpProxy(rabbit_server.port) as proxy:
        made = []

        def make() -> BrokeredDispatcher:
            url = f"amqp://guest:guest@127.0.0.1:{proxy.port}/"
            made.append(BrokeredDispatcher(RabbitBroker(url, timeout_s=1)))
            return made[-1]

        def leave() -> None:
            proxy.hold()
            _until(lambda: made[-1].statistics().outages)

        def come_back() -> None:
            proxy.heal()

        check_outage(make, queue, leave, come_back)


@pytest.mark.slow
def test_sqs_as_moto_imitates_it_goes_away_with_all_its_queues(moto_server, queue):
    try:
        check_outage(
            lambda: open_dispatcher("sqs://", environ=moto_server.environ),
            queue,
            moto_server.stop,
            moto_server.start,
        )
    finally:
        moto_server.stop()
        moto_server.start()


def _until(holds) -> None:
    never = threading.Event()
    for _ in range(3000):
        if holds():
            return
        never.wait(0.01)
    raise AssertionError("it did not come to that in 30 s")
