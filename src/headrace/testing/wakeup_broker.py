"""The conformance suite for wakeup brokers, run against a real message broker.

Each check takes `make`, which returns a new, stopped wakeup broker of the same message broker, and
the name of an unused queue. A check raises AssertionError with the broken guarantee::

    @pytest.mark.parametrize("check", WAKEUP_BROKER_CHECKS, ids=lambda check: check.__name__)
    def test_my_wakeup_broker(check, my_queue):
        check(lambda: MyWakeupBroker(), my_queue)

`check_outage` additionally takes functions that begin and end an outage of the message broker.
"""

import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Final

from headrace.core.errors import ConfigError, StoppedError
from headrace.jobs.brokers import WakeupBroker, WakeupListener
from headrace.testing.expect import equal, raises, true
from headrace.testing.service import check_service

MakeWakeupBroker = Callable[[], WakeupBroker]
WakeupBrokerCheck = Callable[[MakeWakeupBroker, str], None]

DELIVERY_S_MAX: Final = 30.0
"""Limit of one delivery, in seconds; generous, for busy machines."""
SILENCE_S: Final = 0.5
"""Seconds that must pass without a message. Detects messages that are present, not late ones."""
IMMEDIATE_S_MAX: Final = 1.0
"""Limit of a call that must not wait for the message broker, in seconds."""
_BACKLOG = 60


def check_wakeup_broker(make: MakeWakeupBroker, queue_prefix: str) -> None:
    """Run every check. Queue names begin with `queue_prefix`, which nothing else may use."""
    for number, check in enumerate(WAKEUP_BROKER_CHECKS):
        check(make, f"{queue_prefix}-{number}")


def check_lifecycle(make: MakeWakeupBroker, queue: str) -> None:
    """Check the lifecycle of a service, also while a listener waits."""
    check_service(make)
    broker = make()
    broker.start()
    listener = broker.listener([queue])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(listener.wait, DELIVERY_S_MAX)
        broker.stop()
        equal(waiting.result(DELIVERY_S_MAX), False, "the result of a wait that stop ended")
    raises(StoppedError, lambda: broker.listener([queue]), "listener after stop")
    broker.start()
    _require_delivery(broker, broker.listener([queue]), queue, "after a second start")
    broker.stop()


def check_announce_never_raises(make: MakeWakeupBroker, queue: str) -> None:
    """Check that `announce` never raises and that drops are counted.

    Cases: before start, after stop, with no jobs, and for an invalid queue.
    """
    broker = make()
    broker.announce(queue, ["early"])
    broker.start()
    broker.announce(queue, [])
    broker.announce("", ["nameless"])
    broker.stop()
    broker.announce(queue, ["late"])
    statistics = broker.statistics()
    equal(
        (statistics.announced, statistics.dropped, statistics.sent),
        (3, 3, 0),
        "the counters announced, dropped and sent",
    )


def check_rejects_invalid_queues(make: MakeWakeupBroker, queue: str) -> None:
    """Check that `listener` rejects no queue, a repeated queue, an empty name, and too many queues."""
    with _running(make) as broker:
        for queues in ([], [queue, queue], [""], [f"{queue}{number}" for number in range(65)], queue):
            raises(ConfigError, lambda queues=queues: broker.listener(queues), f"listener({queues!r})")


def check_announcement_ends_wait(make: MakeWakeupBroker, queue: str) -> None:
    """Check that each announcement ends one wait of another wakeup broker."""
    with _running(make) as submitter, _running(make) as worker:
        listener = worker.listener([queue])
        _require_silence(listener, "before any announcement")
        for _ in range(3):
            _require_delivery(submitter, listener, queue, "during the wait")
            _require_silence(listener, "after its message was received")
        equal(submitter.statistics().sent, 3, "the number of sent messages")
        statistics = worker.statistics()
        equal(
            (statistics.taken, statistics.wakes),
            (3, 3),
            "the numbers of received messages and of waits that they ended",
        )


def check_delivers_earlier_announcements(make: MakeWakeupBroker, queue: str) -> None:
    """Check that a worker receives announcements that precede its start."""
    with _running(make) as submitter:
        submitter.announce(queue, ["job"])
    with _running(make) as worker:
        listener = worker.listener([queue])
        true(
            listener.wait(DELIVERY_S_MAX), "an announcement made before any listener existed is not delivered"
        )
        _require_silence(listener, "after its message was received")


def check_one_message_wakes_one_worker(make: MakeWakeupBroker, queue: str) -> None:
    """Check that one message ends one of two waits, and a second message the other."""
    with _running(make) as submitter, _running(make) as first, _running(make) as second:
        listeners = [first.listener([queue]), second.listener([queue])]
        # The first waits create the broker's objects for the queue; later waits end only by messages.
        for listener in listeners:
            _require_silence(listener, "before any announcement")
        with ThreadPoolExecutor(2) as pool:
            waits = [pool.submit(listener.wait, DELIVERY_S_MAX) for listener in listeners]
            submitter.announce(queue, ["a"])
            _wait_until(lambda: any(wait.done() for wait in waits), "one message ends no wait")
            submitter.announce(queue, ["b"])
            equal(
                [wait.result(DELIVERY_S_MAX) for wait in waits],
                [True, True],
                "the results of two waits after two messages",
            )
        equal(first.statistics().taken, 1, "the number of messages received by the first worker")
        equal(second.statistics().taken, 1, "the number of messages received by the second worker")


def check_takes_no_more_than_free_slots(make: MakeWakeupBroker, queue: str) -> None:
    """Check that a worker with one free slot leaves messages to others.

    A worker that does not wait receives none.
    """
    with _running(make) as submitter, _running(make) as busy, _running(make) as idle:
        first = busy.listener([queue])
        _require_silence(first, "before any announcement")
        submitter.announce(queue, [f"job-{number}" for number in range(4)])
        true(first.wait(DELIVERY_S_MAX, jobs_max=1), "four messages do not end the wait")
        taken = busy.statistics().taken
        true(taken < 4, "a worker with one free slot received all four messages")
        second = idle.listener([queue])
        _receive(second, idle, 4 - taken)
        equal(
            busy.statistics().taken,
            taken,
            "the number of messages received by the busy worker, which did not wait again",
        )


def check_backlog_ends_few_waits(make: MakeWakeupBroker, queue: str) -> None:
    """Check that a backlog is received completely, in fewer waits than messages."""
    with _running(make) as submitter, _running(make) as worker:
        submitter.announce(queue, [f"job-{number}" for number in range(_BACKLOG)])
        listener = worker.listener([queue])
        _receive(listener, worker, _BACKLOG, jobs_max=10)
        wakes = worker.statistics().wakes
        # The broker decides the batch size: under load it delivers messages almost one by one.
        true(wakes < _BACKLOG, f"{_BACKLOG} messages ended {wakes} waits")
        _require_silence(listener, "after all messages were received")


def check_queues_are_isolated(make: MakeWakeupBroker, queue: str) -> None:
    """Check that a listener receives messages of its own queues only, whether one or two."""
    one, other = f"{queue}-a", f"{queue}-b"
    with _running(make) as submitter, _running(make) as worker:
        listener = worker.listener([one])
        _require_silence(listener, "before any announcement")
        submitter.announce(other, ["job"])
        _require_silence(listener, "by an announcement for another queue")
        both = worker.listener([one, other])
        true(both.wait(DELIVERY_S_MAX), "a listener of two queues receives no message of the second")
        _require_silence(both, "after its message was received")
        listener.close()
        for name in (one, other):
            _require_delivery(submitter, both, name, f"by a listener of two queues, from {name}")


def check_duplicates_and_reordering(make: MakeWakeupBroker, queue: str) -> None:
    """Check that repeated and reversed announcements are delivered, and that delivery ends."""
    jobs = [f"job-{number}" for number in range(5)]
    with _running(make) as first, _running(make) as second, _running(make) as worker:
        for submitter in (first, second):
            submitter.announce(queue, [*reversed(jobs), *jobs])
        listener = worker.listener([queue])
        _receive(listener, worker, 2 * len(jobs), jobs_max=10)
        _drain(listener)
        taken = worker.statistics().taken
        true(taken <= 4 * len(jobs), f"received {taken} messages of {4 * len(jobs)} announcements")
        _require_delivery(first, listener, queue, "after repeated announcements")


def check_wake_and_close(make: MakeWakeupBroker, queue: str) -> None:
    """Check that `wake` ends the current or the next wait, and that `close` ends one wait.

    After `close`, further waits last their full time and return False.
    """
    with _running(make) as broker:
        listener = broker.listener([queue])
        listener.wake()
        true(listener.wait(DELIVERY_S_MAX), "wake before wait does not end the wait")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(listener.wait, DELIVERY_S_MAX)
            listener.wake()
            true(waiting.result(DELIVERY_S_MAX), "wake during wait does not end the wait")
            waiting = pool.submit(listener.wait, DELIVERY_S_MAX)
            listener.close()
            equal(waiting.result(DELIVERY_S_MAX / 2), False, "the result of a wait that close ended")
        listener.close()
        listener.wait(IMMEDIATE_S_MAX / 10)
        started_s = time.monotonic()
        equal(listener.wait(IMMEDIATE_S_MAX / 10), False, "the result of a wait after close")
        true(
            time.monotonic() - started_s > IMMEDIATE_S_MAX / 20,
            "a wait after close returns before its timeout",
        )
        remaining = [
            thread.name
            for thread in threading.enumerate()
            if "listen" in thread.name and queue in thread.name
        ]
        true(not remaining, f"threads still run after close: {remaining}")


def check_drained_stop_sends_announcements(make: MakeWakeupBroker, queue: str) -> None:
    """Check that a drained stop sends all announcements made just before."""
    broker = make()
    broker.start()
    broker.announce(queue, [f"job-{number}" for number in range(_BACKLOG)])
    broker.stop(drain=True)
    statistics = broker.statistics()
    equal(
        (statistics.sent, statistics.dropped, statistics.unsent),
        (_BACKLOG, 0, 0),
        "sent, dropped and unsent after a drained stop",
    )
    with _running(make) as worker:
        _receive(worker.listener([queue]), worker, _BACKLOG, jobs_max=10)


WAKEUP_BROKER_CHECKS: tuple[WakeupBrokerCheck, ...] = (
    check_lifecycle,
    check_announce_never_raises,
    check_rejects_invalid_queues,
    check_announcement_ends_wait,
    check_delivers_earlier_announcements,
    check_one_message_wakes_one_worker,
    check_takes_no_more_than_free_slots,
    check_backlog_ends_few_waits,
    check_queues_are_isolated,
    check_duplicates_and_reordering,
    check_wake_and_close,
    check_drained_stop_sends_announcements,
)


def check_outage(
    make: MakeWakeupBroker, queue: str, begin_outage: Callable[[], object], end_outage: Callable[[], object]
) -> None:
    """Check that `announce` does not wait during an outage, and that waking works again after it.

    `begin_outage` makes the message broker unreachable, or kills it. It may block as long as the
    outage is to last, and may lose all data of the broker. Wakeup brokers connected before the
    outage are used after it; one listener waits all the time.
    """
    with _running(make) as submitter, _running(make) as worker, ThreadPoolExecutor(1) as pool:
        listener = worker.listener([queue])
        _require_delivery(submitter, listener, queue, "before the outage")
        stop_listening = threading.Event()
        listening = pool.submit(_listen_until_set, listener, stop_listening)
        try:
            begin_outage()
            started_s = time.monotonic()
            for number in range(100):
                submitter.announce(queue, [f"away-{number}"])
            true(
                time.monotonic() - started_s < IMMEDIATE_S_MAX,
                "announce waits for an unreachable message broker",
            )
            end_outage()
        finally:
            stop_listening.set()
            listener.wake()
        listening.result(DELIVERY_S_MAX)
        _wait_until(
            lambda: submitter.statistics().unsent == 0, "announcements remain unsent after the outage"
        )
        # Announcements made during the outage may be delivered or lost; both are correct.
        _drain(listener)
        for _ in range(2):
            _require_delivery(submitter, listener, queue, "after the outage")
        for broker in (submitter, worker):
            _wait_until(
                lambda broker=broker: broker.statistics().away == 0, "connections remain counted as away"
            )


@contextmanager
def _running(make: MakeWakeupBroker) -> Generator[WakeupBroker]:
    with ExitStack() as stack:
        broker = make()
        stack.callback(broker.stop, drain=True)
        broker.start()
        yield broker


def _require_delivery(submitter: WakeupBroker, listener: WakeupListener, queue: str, when: str) -> None:
    submitter.announce(queue, ["job"])
    true(listener.wait(DELIVERY_S_MAX), f"no message is received in {DELIVERY_S_MAX} s {when}")


def _require_silence(listener: WakeupListener, when: str) -> None:
    true(not listener.wait(SILENCE_S), f"a wait ended unexpectedly {when}")


def _receive(listener: WakeupListener, broker: WakeupBroker, messages: int, *, jobs_max: int = 1) -> None:
    deadline_s = time.monotonic() + DELIVERY_S_MAX
    while broker.statistics().taken < messages and time.monotonic() < deadline_s:
        listener.wait(SILENCE_S, jobs_max=jobs_max)
    taken = broker.statistics().taken
    true(taken >= messages, f"received {taken} messages, expected {messages}")


def _drain(listener: WakeupListener) -> None:
    deadline_s = time.monotonic() + DELIVERY_S_MAX
    while listener.wait(SILENCE_S, jobs_max=10):
        true(time.monotonic() < deadline_s, f"messages still arrive after {DELIVERY_S_MAX} s")


def _listen_until_set(listener: WakeupListener, stop_listening: threading.Event) -> None:
    while not stop_listening.is_set():
        listener.wait(DELIVERY_S_MAX)


def _wait_until(condition: Callable[[], bool], message: str) -> None:
    deadline_s = time.monotonic() + DELIVERY_S_MAX
    while not condition():
        true(time.monotonic() < deadline_s, message)
        time.sleep(0.005)
