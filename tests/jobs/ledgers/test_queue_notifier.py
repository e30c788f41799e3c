from headrace.jobs.ledgers.database import CommitNotice
from headrace.jobs.ledgers.queue_notifier import QueueNotifier
from headrace.jobs.ledgers.sqlite import SqliteWakeup


def was_woken(waiter) -> bool:
    """Return True if the waiter was woken, and reset it."""
    woken = waiter.is_set()
    waiter.clear()
    return woken


def test_waiters_are_woken_for_their_queues():
    notifier = QueueNotifier()
    of_a, of_all = notifier.add_waiter(["a"]), notifier.add_waiter(None)
    notifier.notify(CommitNotice({"b"}, changed=True))
    assert (was_woken(of_a), was_woken(of_all)) == (False, True)
    notifier.notify(CommitNotice({"a", "b"}))
    assert (was_woken(of_a), was_woken(of_all)) == (True, True)
    assert (was_woken(of_a), was_woken(of_all)) == (False, False)


def test_removed_waiter_is_not_woken():
    notifier = QueueNotifier()
    waiter = notifier.add_waiter(None)
    notifier.remove_waiter(waiter)
    notifier.remove_waiter(waiter)
    notifier.notify(CommitNotice({"a"}, changed=True))
    assert not was_woken(waiter)


def test_wake_before_a_wait_ends_it(tmp_path):
    wakeup = SqliteWakeup(tmp_path / "jobs.db", QueueNotifier(), ["a"])
    wakeup.wake()
    assert wakeup.wait(10)
    assert not wakeup.wait(0)
    wakeup.close()
