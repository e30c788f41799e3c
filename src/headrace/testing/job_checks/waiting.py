"""What waiting promises, and the ledger's life: news, the clock, stopping, and what is there after a new start."""

import threading
import time
from collections.abc import Callable

from headrace.core.errors import HeadraceError, JobLedgerUnavailableError, StoppedError
from headrace.jobs.job import Failed, NewJob, Progress, Released, Settlement
from headrace.jobs.ledger import Beat, ClaimRequest, JobFilter, JobLedger, QueueSettings, Wakeup
from headrace.jobs.state import JobState
from headrace.testing.expect import equal, true
from headrace.testing.job_checks.bench import LEASE_MS, NEWS_S, OOPS, LedgerBench, done
from headrace.testing.service import check_service

_NO_WAIT_S = 0.01
_NEWS_MAX = 20
_LONG_S = 120.0


def check_clock(bench: LedgerBench) -> None:
    """The ledger's time is its own clock's, whoever asks, also where that goes back."""
    other = bench.another()
    for ms in (0, 1, 86_400_000, -3_600_000):
        now_ms = bench.later(ms)
        equal((bench.ledger.now_ms(), other.now_ms()), (now_ms, now_ms), "the time that ledgers tell")


def check_wakeup(bench: LedgerBench) -> None:
    """A worker that waits hears of jobs that become due in its queues: new, tried again, given back, woken, put back."""
    wakeup = bench.ledger.wakeup(["a", "b"])
    bench.submit(queue="a")
    _news(wakeup, "a new job")
    for queue in ("b", "a"):
        bench.submit(queue=queue)
        _news(wakeup, f"a new job in {queue}")
    first, second, third = bench.claim(3, queues=["a", "b"])
    for job, outcome, what in (
        (first, Failed(OOPS, retry_ms=0), "a job to be tried again at once"),
        (second, Released(), "a job that was given back"),
    ):
        bench.settle(job, outcome)
        _news(wakeup, what)
    bench.settle(third, done())
    _quiet(wakeup)
    bench.ledger.requeue(third.id)
    _news(wakeup, "a job that was put back")
    bench.submit(queue="a", delay_ms=5_000)
    _quiet(wakeup)
    bench.later(5_000)
    equal(bench.ledger.maintain(100).woken, 1, "the jobs that were woken")
    _news(wakeup, "a job that became due")
    wakeup.close()


def check_wakeup_by_others(bench: LedgerBench) -> None:
    """News comes from other ledgers over the same jobs too, and to all who wait."""
    wakeups = [bench.ledger.wakeup(["default"]), bench.another().wakeup(["default"])]
    other = bench.another()
    other.submit([NewJob(model="m")])
    for wakeup in wakeups:
        _news(wakeup, "a job that another ledger was given")
    for wakeup in wakeups:
        wakeup.close()


def check_wakeup_of_cancellations(bench: LedgerBench) -> None:
    """A worker that waits hears that a running job is to be cancelled."""
    job = bench.running()
    wakeup = bench.ledger.wakeup(["default"])
    _quiet(wakeup)
    bench.ledger.cancel(job.id)
    _news(wakeup, "a running job that is to be cancelled")
    wakeup.close()


def check_wakeup_of_resumed_queues(bench: LedgerBench) -> None:
    """A worker that waits hears that a queue gives out jobs again."""
    bench.submit()
    bench.ledger.set_queue(QueueSettings("default", paused=True))
    wakeup = bench.ledger.wakeup(["default"])
    _quiet(wakeup)
    bench.ledger.set_queue(QueueSettings("default"))
    _news(wakeup, "a queue that was resumed")
    wakeup.close()


def check_watch(bench: LedgerBench) -> None:
    """Whoever follows jobs hears of every change of state, and of progress."""
    job = bench.submit()
    watch = bench.ledger.watch()
    _quiet(watch)
    claimed = bench.claim_one()
    _news(watch, "a job that was begun")
    bench.beat(claimed, progress=Progress(1, 2))
    _news(watch, "progress")
    bench.settle(claimed, Failed(OOPS, retry_ms=0))
    _news(watch, "a job to be tried again")
    bench.ledger.cancel(job.id)
    _news(watch, "a job that was cancelled")
    bench.ledger.requeue(job.id)
    _news(watch, "a job that was put back")
    lost = bench.claim_one()
    _quiet(watch)
    bench.lose(lost)
    _news(watch, "a job whose worker was lost")
    bench.submit(queue="never-seen")
    _news(watch, "a new job in a new queue")
    watch.close()


def check_waiting_ends(bench: LedgerBench) -> None:
    """A wait ends at its timeout without an error; `wake` ends one that is under way, and the next one where none is."""
    for make in (lambda: bench.ledger.wakeup(["default"]), bench.ledger.watch):
        wakeup = make()
        began_s = time.monotonic()
        wakeup.wait(_NO_WAIT_S)
        true(time.monotonic() - began_s < NEWS_S, "a wait does not end at its timeout")
        wakeup.wake()
        _ends(lambda wakeup=wakeup: wakeup.wait(_LONG_S), "a wait after `wake`")
        _quiet(wakeup)
        waiter = threading.Thread(target=wakeup.wait, args=(_LONG_S,), daemon=True)
        waiter.start()
        wakeup.wake()
        waiter.join(NEWS_S)
        true(not waiter.is_alive(), f"a wait that was under way goes on {NEWS_S:g} s after `wake`")
        wakeup.close()
        wakeup.close()


def check_waiting_twice(bench: LedgerBench) -> None:
    """One wake-up that is closed leaves the others, and what is told to one is not lost for another."""
    gone, stays = bench.ledger.wakeup(["default"]), bench.ledger.wakeup(["default"])
    gone.close()
    bench.submit()
    _news(stays, "a new job, after another wake-up was closed")
    stays.close()


def check_statistics(bench: LedgerBench) -> None:
    """Gauges have the numbers that they show."""
    bench.submit()
    statistics = bench.ledger.statistics()
    for name in ("pool_size", "pool_in_use", "errors"):
        value = statistics.get(name)
        true(isinstance(value, int) and value >= 0, f"statistics' {name} is {value!r}")


def check_other_ledgers_see_all(bench: LedgerBench) -> None:
    """What one ledger has answered, another over the same jobs shows at once, and may go on with."""
    other = bench.another()
    job = bench.running()
    equal(other.get_many([job.id]), {job.id: job}, "the job in another ledger")
    true(other.turn([_done(job.id, job.lease)]).accepted == (True,), "another ledger refused the outcome")
    equal(bench.state(job), JobState.COMPLETED, "the state in the first ledger")
    equal(other.history(job.id), bench.ledger.history(job.id), "the history in another ledger")


def check_restart(bench: LedgerBench) -> None:
    """What was answered is there after the ledger has stopped: jobs, leases, keys, histories and queues."""
    new = NewJob(model="m", idempotency_key="key", body_digest="d")
    bench.ledger.submit([new])
    bench.settle(bench.claim_one(), Failed(OOPS))
    running = bench.running(queue="q")
    bench.ledger.set_queue(QueueSettings("q", draining=True))
    before = bench.ledger.find(JobFilter()).jobs
    histories = [bench.ledger.history(job.id) for job in before]
    queues = bench.ledger.queues()
    bench.ledger.stop()
    again = bench.another()
    equal(again.find(JobFilter()).jobs, before, "the jobs after a new start")
    equal([again.history(job.id) for job in before], histories, "their histories")
    equal(again.queues(), queues, "the queues")
    (answer,) = again.submit([new])
    true(not getattr(answer, "created", True), "an idempotency key was forgotten by a new start")
    equal(again.turn([_done(running.id, running.lease)]).accepted, (True,), "a lease of before")


def check_stopped_ledgers_refuse(bench: LedgerBench) -> None:
    """Before its start and after its stop each verb says that the ledger does not answer; others go on."""
    job = bench.submit()
    ledgers = {"before start": bench.unstarted(), "after stop": bench.another()}
    ledgers["after stop"].stop()
    for when, ledger in ledgers.items():
        for name, act in _verbs(ledger, job.id).items():
            _refuses(act, f"{name} {when}")
    equal(bench.now(job), job, "the job in a ledger that goes on")


def check_life(bench: LedgerBench) -> None:
    """A ledger lives as every service does: starting and stopping in any order, leaving no thread behind."""
    check_service(bench.unstarted)


def _verbs(ledger: JobLedger, job_id: str) -> dict[str, Callable[[], object]]:
    return {
        "submit": lambda: ledger.submit([NewJob(model="m")]),
        "turn": lambda: ledger.turn([], ClaimRequest("w", ("default",), 1, LEASE_MS)),
        "beat": lambda: ledger.beat("w", [Beat(job_id, 1)], LEASE_MS),
        "published": lambda: ledger.published(job_id, 1, "memory://x"),
        "maintain": lambda: ledger.maintain(1),
        "get": lambda: ledger.get(job_id),
        "get_many": lambda: ledger.get_many([job_id]),
        "history": lambda: ledger.history(job_id),
        "find": lambda: ledger.find(JobFilter()),
        "cancel": lambda: ledger.cancel(job_id),
        "requeue": lambda: ledger.requeue(job_id),
        "delete": lambda: ledger.delete(job_id),
        "queues": ledger.queues,
        "queue": lambda: ledger.queue("default"),
        "set_queue": lambda: ledger.set_queue(QueueSettings("default")),
        "counts": lambda: ledger.counts("default"),
        "pending_of": lambda: ledger.pending_of("", at_most=1),
        "ended_before": lambda: ledger.ended_before(0, limit=1),
        "forget": lambda: ledger.forget([job_id]),
    }


def _refuses(act: Callable[[], object], what: str) -> None:
    try:
        act()
    except (JobLedgerUnavailableError, StoppedError):
        return
    except HeadraceError as error:
        raise AssertionError(f"{what}: got {error!r}, wanted JobLedgerUnavailableError") from error
    raise AssertionError(f"{what} answers, where the ledger is not running")


def _done(job_id: str, lease: int) -> Settlement:
    return Settlement(job_id, lease, done())


def _quiet(wakeup: Wakeup) -> None:
    """Let news be heard that was told so far; bounded, since a waiter may be told for nothing."""
    for _ in range(_NEWS_MAX):
        if not wakeup.wait(_NO_WAIT_S):
            return


def _news(wakeup: Wakeup, of_what: str) -> None:
    true(wakeup.wait(NEWS_S), f"a waiter has not heard of {of_what} within {NEWS_S:g} s")


def _ends(wait: Callable[[], object], what: str) -> None:
    began_s = time.monotonic()
    wait()
    true(time.monotonic() - began_s < NEWS_S, f"{what} does not end within {NEWS_S:g} s")


WAITING_CHECKS = (
    check_clock,
    check_wakeup,
    check_wakeup_by_others,
    check_wakeup_of_cancellations,
    check_wakeup_of_resumed_queues,
    check_watch,
    check_waiting_ends,
    check_waiting_twice,
    check_statistics,
    check_other_ledgers_see_all,
    check_restart,
    check_stopped_ledgers_refuse,
    check_life,
)
