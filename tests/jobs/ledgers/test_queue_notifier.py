from headrace.jobs.ledgers.database import CommitNotice
from headrace.jobs.ledgers.sqlite import QueueNotifier


def test_waiters_are_woken_for_their_queues():
    notifier = QueueNotifier()
    of_a, of_all = notifier.add_waiter(["a"]), notifier.add_waiter(None)
    notifier.notify(CommitNotice({"b"}, changed=True))
    assert (of_a.wait(0), of_all.wait(0)) == (False, True)
    notifier.notify(CommitNotice({"a", "b"}))
    assert (of_a.wait(0), of_all.wait(0)) == (True, True)
    assert (of_a.wait(0), of_all.wait(0)) == (False, False)


def test_removed_waiter_is_not_woken():
    notifier = QueueNotifier()
    waiter = notifier.add_waiter(None)
    notifier.remove_waiter(waiter)
    notifier.remove_waiter(waiter)
    notifier.notify(CommitNotice({"a"}, changed=True))
    assert not waiter.wait(0)


def test_wake_before_a_wait_ends_it():
    waiter = QueueNotifier().add_waiter(["a"])
    waiter.wake()
    assert waiter.wait(10)
