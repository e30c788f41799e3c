"""What every dispatcher must do, as checks that any dispatcher can be put through, on a real broker.

Each check takes `make`, which gives a new dispatcher of the same broker each time (not started), and a queue's name that
nobody else uses, and raises AssertionError saying which promise broke::

    @pytest.mark.parametrize("check", DISPATCHER_CHECKS, ids=lambda check: check.__name__)
    def test_my_dispatcher(check, my_queue):
        check(lambda: MyDispatcher(), my_queue)

`check_outage` takes, beside these, what makes the broker go away and come back.
"""

import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Final

from headrace.core.errors import ConfigError, StoppedError
from headrace.jobs.dispatcher import Dispatcher, Listener
from headrace.testing.expect import equal, raises, true
from headrace.testing.service import check_service

MakeDispatcher = Callable[[], Dispatcher]
DispatcherCheck = Callable[[MakeDispatcher, str], None]

HEARD_S: Final = 30.0
"""How long a message may take, on a machine that is busy."""
QUIET_S: Final = 0.5
"""How long nothing must come. A message that is late is not found by this; one that is there is."""
NOW_S: Final = 1.0
"""What does not wait takes less."""
_MANY = 60


def check_dispatcher(make: MakeDispatcher, queue_prefix: str) -> None:
    """Put a dispatcher through every check; queues begin with `queue_prefix`, which nobody else uses."""
    for number, check in enumerate(DISPATCHER_CHECKS):
        check(make, f"{queue_prefix}-{number}")


def check_life(make: MakeDispatcher, queue: str) -> None:
    """It lives as every service does, also with a listener that waits."""
    check_service(make)
    dispatcher = make()
    dispatcher.start()
    listener = dispatcher.listener([queue])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(listener.wait, HEARD_S)
        dispatcher.stop()
        equal(waiting.result(HEARD_S), False, "a wait that stop ended")
    raises(StoppedError, lambda: dispatcher.listener([queue]), "listening after stop")
    dispatcher.start()
    _must_hear(dispatcher, dispatcher.listener([queue]), queue, "after a second start")
    dispatcher.stop()


def check_never_raises_to_submitters(make: MakeDispatcher, queue: str) -> None:
    """Announcing before start, after stop, nothing, or for an impossible queue: no error, and counted."""
    dispatcher = make()
    dispatcher.announce(queue, ["early"])
    dispatcher.start()
    dispatcher.announce(queue, [])
    dispatcher.announce("", ["nameless"])
    dispatcher.stop()
    dispatcher.announce(queue, ["late"])
    told = dispatcher.statistics()
    equal((told.announced, told.dropped, told.sent), (3, 3, 0), "announced, dropped, sent")


def check_refuses_impossible_listeners(make: MakeDispatcher, queue: str) -> None:
    """No queue, a queue twice, one without a name, and too many."""
    with _running(make) as dispatcher:
        for queues in ([], [queue, queue], [""], [f"{queue}{number}" for number in range(65)], queue):
            raises(
                ConfigError, lambda queues=queues: dispatcher.listener(queues), f"listening for {queues!r}"
            )


def check_wakes(make: MakeDispatcher, queue: str) -> None:
    """What one process announces ends another's wait, once for each message; then it is quiet."""
    with _running(make) as submitter, _running(make) as worker:
        listener = worker.listener([queue])
        _must_be_quiet(listener, "before anything was announced")
        for _ in range(3):
            _must_hear(submitter, listener, queue, "while it waits")
            _must_be_quiet(listener, "after its message was taken")
        equal(submitter.statistics().sent, 3, "messages sent")
        told = worker.statistics()
        equal((told.taken, told.wakes), (3, 3), "messages taken, and waits that they ended")


def check_hears_what_was_announced_before(make: MakeDispatcher, queue: str) -> None:
    """A worker that starts because there is work must hear of it."""
    with _running(make) as submitter:
        submitter.announce(queue, ["job"])
    with _running(make) as worker:
        listener = worker.listener([queue])
        true(listener.wait(HEARD_S), "what was announced before anybody listened is not heard")
        _must_be_quiet(listener, "after it was heard")


def check_one_worker_each(make: MakeDispatcher, queue: str) -> None:
    """One message wakes one of two that wait; two messages wake both."""
    with _running(make) as submitter, _running(make) as first, _running(make) as second:
        listeners = [first.listener([queue]), second.listener([queue])]
        # One after the other, so that what the broker makes for a queue is there: only messages shall end the waits.
        for each in listeners:
            _must_be_quiet(each, "before anything was announced")
        with ThreadPoolExecutor(2) as pool:
            waits = [pool.submit(each.wait, HEARD_S) for each in listeners]
            submitter.announce(queue, ["a"])
            _until(lambda: any(wait.done() for wait in waits), "one message wakes nobody")
            submitter.announce(queue, ["b"])
            equal([wait.result(HEARD_S) for wait in waits], [True, True], "two messages, two waits")
        equal(first.statistics().taken, 1, "messages that the first took")
        equal(second.statistics().taken, 1, "messages that the second took")


def check_leaves_the_rest_to_others(make: MakeDispatcher, queue: str) -> None:
    """Who has room for one job takes one message; who does not wait takes none."""
    with _running(make) as submitter, _running(make) as busy, _running(make) as idle:
        first = busy.listener([queue])
        _must_be_quiet(first, "before anything was announced")
        submitter.announce(queue, [f"job-{number}" for number in range(4)])
        true(first.wait(HEARD_S, jobs_max=1), "four messages do not end a wait")
        taken = busy.statistics().taken
        true(taken < 4, "a worker with room for one job took all four messages")
        second = idle.listener([queue])
        _take(second, idle, 4 - taken)
        equal(busy.statistics().taken, taken, "messages that the busy one took, later")


def check_many_messages_end_few_waits(make: MakeDispatcher, queue: str) -> None:
    """A backlog of messages is taken in fewer waits than there are messages, and none stays."""
    with _running(make) as submitter, _running(make) as worker:
        submitter.announce(queue, [f"job-{number}" for number in range(_MANY)])
        listener = worker.listener([queue])
        _take(listener, worker, _MANY, jobs_max=10)
        wakes = worker.statistics().wakes
        # How many come together is the broker's to say: under load it hands them out almost one by one.
        true(wakes < _MANY, f"{_MANY} messages ended {wakes} waits")
        _must_be_quiet(listener, "after all messages were taken")


def check_queues_are_apart(make: MakeDispatcher, queue: str) -> None:
    """A queue's listener hears that queue only; a listener of two hears both."""
    one, other = f"{queue}-a", f"{queue}-b"
    with _running(make) as submitter, _running(make) as worker:
        listener = worker.listener([one])
        _must_be_quiet(listener, "before anything was announced")
        submitter.announce(other, ["job"])
        _must_be_quiet(listener, "though another queue's jobs were announced")
        both = worker.listener([one, other])
        true(both.wait(HEARD_S), "a listener of two queues does not hear the second")
        _must_be_quiet(both, "after its message was taken")
        listener.close()
        for each in (one, other):
            _must_hear(submitter, both, each, f"of two queues, {each}")


def check_doubled_and_reordered(make: MakeDispatcher, queue: str) -> None:
    """Announcements that come twice, and backwards, are messages like others, and come to an end."""
    jobs = [f"job-{number}" for number in range(5)]
    with _running(make) as first, _running(make) as second, _running(make) as worker:
        for submitter in (first, second):
            submitter.announce(queue, [*reversed(jobs), *jobs])
        listener = worker.listener([queue])
        _take(listener, worker, 2 * len(jobs), jobs_max=10)
        _drain(listener)
        taken = worker.statistics().taken
        true(taken <= 4 * len(jobs), f"{taken} messages came of {4 * len(jobs)} announcements")
        _must_hear(first, listener, queue, "after doubled announcements")


def check_wake_and_close(make: MakeDispatcher, queue: str) -> None:
    """`wake` ends the present wait or the next; `close` too, then every other wait lasts its time, and says False."""
    with _running(make) as dispatcher:
        listener = dispatcher.listener([queue])
        listener.wake()
        true(listener.wait(HEARD_S), "wake before wait is lost")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(listener.wait, HEARD_S)
            listener.wake()
            true(waiting.result(HEARD_S), "wake does not end a wait")
            waiting = pool.submit(listener.wait, HEARD_S)
            listener.close()
            equal(waiting.result(HEARD_S / 2), False, "a wait that close ended")
        listener.close()
        listener.wait(NOW_S / 10)
        begun_s = time.monotonic()
        equal(listener.wait(NOW_S / 10), False, "a wait after close")
        true(time.monotonic() - begun_s > NOW_S / 20, "waits after close return at once: a loop would spin")
        left = [each.name for each in threading.enumerate() if "listen" in each.name and queue in each.name]
        true(not left, f"after close threads still run: {left}")


def check_stop_sends_what_was_announced(make: MakeDispatcher, queue: str) -> None:
    """A drained stop loses nothing that was announced just before."""
    dispatcher = make()
    dispatcher.start()
    dispatcher.announce(queue, [f"job-{number}" for number in range(_MANY)])
    dispatcher.stop(drain=True)
    told = dispatcher.statistics()
    equal(
        (told.sent, told.dropped, told.unsent), (_MANY, 0, 0), "sent, dropped and unsent after a drained stop"
    )
    with _running(make) as worker:
        _take(worker.listener([queue]), worker, _MANY, jobs_max=10)


DISPATCHER_CHECKS: tuple[DispatcherCheck, ...] = (
    check_life,
    check_never_raises_to_submitters,
    check_refuses_impossible_listeners,
    check_wakes,
    check_hears_what_was_announced_before,
    check_one_worker_each,
    check_leaves_the_rest_to_others,
    check_many_messages_end_few_waits,
    check_queues_are_apart,
    check_doubled_and_reordered,
    check_wake_and_close,
    check_stop_sends_what_was_announced,
)


def check_outage(
    make: MakeDispatcher, queue: str, leave: Callable[[], object], come_back: Callable[[], object]
) -> None:
    """Whatever happens between `leave` and `come_back`, submitters feel nothing, and waking works again afterwards.

    `leave` makes the broker unreachable, or dead, and may wait as long as the outage shall last; it may lose all that the
    broker had. Dispatchers that were connected before are used after it, as are listeners that wait all the while.
    """
    with _running(make) as submitter, _running(make) as worker, ThreadPoolExecutor(1) as pool:
        listener = worker.listener([queue])
        _must_hear(submitter, listener, queue, "before the outage")
        over = threading.Event()
        listening = pool.submit(_wait_on, listener, over)
        try:
            leave()
            begun_s = time.monotonic()
            for number in range(100):
                submitter.announce(queue, [f"away-{number}"])
            true(time.monotonic() - begun_s < NOW_S, "announcing waits for a broker that is away")
            come_back()
        finally:
            over.set()
            listener.wake()
        listening.result(HEARD_S)
        _until(lambda: submitter.statistics().unsent == 0, "announcements are still unsent after the outage")
        # What was announced meanwhile may have come, or been lost with the broker. Both is right.
        _drain(listener)
        for _ in range(2):
            _must_hear(submitter, listener, queue, "after the outage")
        for dispatcher in (submitter, worker):
            _until(lambda each=dispatcher: each.statistics().away == 0, "connections still count as away")


@contextmanager
def _running(make: MakeDispatcher) -> Generator[Dispatcher]:
    with ExitStack() as ending:
        dispatcher = make()
        ending.callback(dispatcher.stop, drain=True)
        dispatcher.start()
        yield dispatcher


def _must_hear(submitter: Dispatcher, listener: Listener, queue: str, when: str) -> None:
    submitter.announce(queue, ["job"])
    true(listener.wait(HEARD_S), f"a message is not heard in {HEARD_S} s {when}")


def _must_be_quiet(listener: Listener, when: str) -> None:
    true(not listener.wait(QUIET_S), f"a wait was ended {when}")


def _take(listener: Listener, dispatcher: Dispatcher, messages: int, *, jobs_max: int = 1) -> None:
    until_s = time.monotonic() + HEARD_S
    while dispatcher.statistics().taken < messages and time.monotonic() < until_s:
        listener.wait(QUIET_S, jobs_max=jobs_max)
    taken = dispatcher.statistics().taken
    true(taken >= messages, f"{taken} messages came, not {messages}")


def _drain(listener: Listener) -> None:
    until_s = time.monotonic() + HEARD_S
    while listener.wait(QUIET_S, jobs_max=10):
        true(time.monotonic() < until_s, "messages come without end")


def _wait_on(listener: Listener, over: threading.Event) -> None:
    while not over.is_set():
        listener.wait(HEARD_S)


def _until(holds: Callable[[], bool], why_not: str) -> None:
    until_s = time.monotonic() + HEARD_S
    while not holds():
        true(time.monotonic() < until_s, why_not)
        time.sleep(0.005)
