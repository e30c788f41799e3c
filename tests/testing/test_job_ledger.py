"""The suite for job ledgers goes red for ledgers that break a promise, each in its own way."""

import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest

from headrace.core.errors import JobLedgerUnavailableError, JobStateError
from headrace.jobs.job import Failed, Released
from headrace.jobs.ledger import BeatReply, Page, QueueCounts, Upkeep
from headrace.jobs.state import JobState
from headrace.testing import JOB_LEDGER_CHECKS, LedgerBench, ManualWallClock, MemoryJobLedger
from headrace.testing import job_ledger_memory as memory
from headrace.testing.job_checks import waiting

_CHECKS = {check.__name__: check for check in JOB_LEDGER_CHECKS}


class NotFenced(MemoryJobLedger):
    def _running(self, job_id, lease):
        job = self._table.jobs.get(job_id)
        return job if job and job.state is JobState.RUNNING else None


class EndedJobsSettleAgain(MemoryJobLedger):
    def _settle(self, settlement):
        job = self._table.jobs.get(settlement.job_id)
        if job and job.lease == settlement.lease and job.state is JobState.PENDING:
            self._table.jobs[job.id] = replace(job, state=JobState.RUNNING)
        return super()._settle(settlement)


class BeatsDoNotProlong(MemoryJobLedger):
    def _beat(self, job, beat, lease_ms):
        super()._beat(job, beat, lease_ms)
        told = self._table.jobs[job.id]
        self._table.jobs[job.id] = replace(told, lease_until_ms=job.lease_until_ms)


class BeatsTellNothing(MemoryJobLedger):
    def beat(self, worker, beats, lease_ms):
        return BeatReply(super().beat(worker, beats, lease_ms).lost, frozenset(), frozenset())


class PrioritiesIgnored(MemoryJobLedger):
    def _waiting(self, queues):
        return sorted(super()._waiting(queues), key=lambda job: (job.due_at_ms, job.id))


class QueuesOfAnyOrder(MemoryJobLedger):
    def _waiting(self, queues):
        return super()._waiting(sorted(queues))


class ExpiredJobsGivenOut(MemoryJobLedger):
    def _claimable(self, claim):
        return [job for job in self._waiting(claim.queues) if job.due_at_ms <= self.now_ms()]


class SleepersGivenOut(MemoryJobLedger):
    def _claimable(self, claim):
        return self._waiting(claim.queues)


class RegionsIgnored(MemoryJobLedger):
    def _claimable(self, claim):
        return super()._claimable(replace(claim, region=""))


class OthersNever(MemoryJobLedger):
    def _claimable(self, claim):
        return super()._claimable(replace(claim, other_regions=not claim.region))


class OthersAsIfItsOwn(MemoryJobLedger):
    def _claimable(self, claim):
        return super()._claimable(replace(claim, region="") if claim.other_regions else claim)


class OnlyItsOwn(MemoryJobLedger):
    def _claimable(self, claim):
        found = super()._claimable(claim)
        return [job for job in found if job.spec.region] if claim.region else found


class NewsOfOtherRegions(MemoryJobLedger):
    def _due_in_ms(self, claim):
        return super()._due_in_ms(replace(claim, region=""))


class CountsNoRegions(MemoryJobLedger):
    def counts(self, queue):
        return replace(super().counts(queue), due_by_region={})


class NeverAlone(MemoryJobLedger):
    def _claimable(self, claim):
        return [replace(job, crashes=0) for job in super()._claimable(claim)]


class NoRoomForOne(MemoryJobLedger):
    def _due_in_ms(self, claim):
        return None


class KeysOfEverybody(MemoryJobLedger):
    def _submit(self, new):
        return super()._submit(replace(new, tenant="") if new.idempotency_key else new)


class DigestsIgnored(MemoryJobLedger):
    def _submit(self, new):
        return super()._submit(replace(new, body_digest=""))


class KeysForgotten(MemoryJobLedger):
    def _submit(self, new):
        return super()._submit(replace(new, idempotency_key=""))


class DrainsNothing(MemoryJobLedger):
    def _queue(self, name):
        return replace(super()._queue(name), draining=False)


class PausesNothing(MemoryJobLedger):
    def _queue(self, name):
        return replace(super()._queue(name), paused=False)


class NeverFull(MemoryJobLedger):
    def _queue(self, name):
        return replace(super()._queue(name), pending_max=None)


class OneRefusalRefusesAll(MemoryJobLedger):
    def submit(self, jobs):
        answers = super().submit(jobs)
        refused = [answer for answer in answers if isinstance(answer, Exception)]
        return refused[:1] * len(answers) if refused else answers


class LimitIgnored(MemoryJobLedger):
    def maintain(self, limit):
        return super().maintain(10**6)


class LosesNothing(MemoryJobLedger):
    def _lease_ran_out(self):
        return []


class TakesBackTooEarly(MemoryJobLedger):
    def _lease_ran_out(self):
        return [job for job in self._table.jobs.values() if job.state is JobState.RUNNING]


class WakesForEver(MemoryJobLedger):
    def _wake_due(self, limit):
        super()._wake_due(limit)
        return sum(job.state is JobState.PENDING for job in self._table.jobs.values())


class MaintainsTwiceTheSame(MemoryJobLedger):
    """Looks first, and writes when others may have written."""

    def maintain(self, limit):
        with self._open():
            found = self._lease_ran_out()[:limit]
        threading.Event().wait(0.001)
        with self._open():
            for job in found:
                self._lose(job)
            return Upkeep(returned=len(found))


class ClaimsTwiceTheSame(MemoryJobLedger):
    """The same for claims."""

    def turn(self, settlements, claim=None):
        with self._open():
            found = self._claimable(claim)[: claim.jobs_max] if claim else []
        threading.Event().wait(0.001)
        with self._open() as table:
            turn = super().turn(settlements)
            for job in found:
                table.jobs[job.id] = memory.claimed(job, claim, self.now_ms())
            return replace(turn, claimed=tuple(table.jobs[job.id] for job in found))


class PagesByNumber(MemoryJobLedger):
    def find(self, wanted, *, after="", limit=100):
        jobs = super().find(wanted, limit=10**6).jobs
        start = int(after or 0)
        more = len(jobs) > start + limit
        return Page(jobs[start : start + limit], str(start + limit) if more else "")


class PagesNeverEnd(MemoryJobLedger):
    def find(self, wanted, *, after="", limit=100):
        page = super().find(wanted, after=after, limit=limit)
        return replace(
            page, next_after=page.next_after or (memory._place(page.jobs[-1]) if page.jobs else "")
        )


class TagsIgnored(MemoryJobLedger):
    def find(self, wanted, *, after="", limit=100):
        return super().find(replace(wanted, tags={}), after=after, limit=limit)


class TenantsIgnored(MemoryJobLedger):
    def get(self, job_id, *, tenant=None):
        return super().get(job_id)


class DeletesWhatRuns(MemoryJobLedger):
    def delete(self, job_id, *, tenant=None):
        try:
            return super().delete(job_id, tenant=tenant)
        except JobStateError:
            job = self.get(job_id)
            self._remove(job)
            return job


class KeepsHistories(MemoryJobLedger):
    def _remove(self, job):
        history = self._table.histories[job.id]
        super()._remove(job)
        self._table.histories[job.id] = history


class TellsNoHistory(MemoryJobLedger):
    def _note(self, job, event, **more):
        """Nothing is noted."""


class CancelsEndedJobs(MemoryJobLedger):
    def cancel(self, job_id, *, tenant=None, by=""):
        try:
            return super().cancel(job_id, tenant=tenant, by=by)
        except JobStateError:
            return self.get(job_id, tenant=tenant)


class CancelsRunningJobsAtOnce(MemoryJobLedger):
    def cancel(self, job_id, *, tenant=None, by=""):
        job = super().cancel(job_id, tenant=tenant, by=by)
        if job.state is JobState.RUNNING:
            self._put(replace(job, state=JobState.CANCELLED, lease_until_ms=None, ended_at_ms=self.now_ms()))
        return self.get(job_id)


class PublishesForAnyLease(MemoryJobLedger):
    def published(self, job_id, lease, uri):
        job = self.get_many([job_id]).get(job_id)
        return super().published(job_id, job.lease if job else lease, uri)


class CountsSleepersAsDue(MemoryJobLedger):
    def counts(self, queue):
        counts = super().counts(queue)
        return QueueCounts(counts.due + counts.later, 0, counts.running, counts.oldest_due_ms)


class ForgetsWhatRuns(MemoryJobLedger):
    def forget(self, job_ids):
        jobs = self.get_many(job_ids)
        for job in jobs.values():
            self._remove(job)
        return len(jobs)


class TellsNobody(MemoryJobLedger):
    def _tell(self, queue):
        """Nobody is told."""


class WakesNobody(MemoryJobLedger):
    def _listen(self, queues):
        listener = super()._listen(queues)
        listener.wake = lambda: None
        return listener


class ForgetsByStopping(MemoryJobLedger):
    def stop(self, *, drain=True):
        super().stop(drain=drain)
        self._table.keys.clear()


class AnswersWhenStopped(MemoryJobLedger):
    @contextmanager
    def _open(self):
        with self._table.lock:
            yield self._table


class ForgetsQueuesWithoutJobs(MemoryJobLedger):
    def _remove(self, job):
        super()._remove(job)
        self._table.queues.pop(job.spec.queue, None)


class SharesNothing(MemoryJobLedger):
    def __init__(self, clock, *, beside=None):
        super().__init__(clock)


class ItsOwnClock(MemoryJobLedger):
    def now_ms(self):
        return super().now_ms() + 600_000


# What a rule of `headrace.testing.job_rules` becomes: (its name, what stands in for it, the check that finds it).
_RULES = [
    (
        "claimed",
        lambda rule: lambda job, *a: replace(rule(job, *a), attempt=job.attempt),
        "check_last_attempt",
    ),
    ("claimed", lambda rule: lambda job, *a: replace(rule(job, *a), lease=1), "check_leases_only_grow"),
    ("claimed", lambda rule: lambda job, *a: replace(rule(job, *a), cursor=None), "check_retrying"),
    ("settled", lambda rule: lambda job, o, at: _attempt_lost(rule, job, o, at), "check_releasing"),
    (
        "settled",
        lambda rule: lambda job, o, at: rule(replace(job, cancel_requested=False), o, at),
        "check_cancelled_jobs_are_not_tried_again",
    ),
    (
        "settled",
        lambda rule: (
            lambda job, o, at: rule(job, replace(o, crashed=False) if isinstance(o, Failed) else o, at)
        ),
        "check_crashes_count",
    ),
    (
        "settled",
        lambda rule: lambda job, o, at: _without_failure(*rule(job, o, at)),
        "check_failing_for_good",
    ),
    ("lost", lambda rule: lambda job, *a: replace(rule(job, *a), crashes=job.crashes), "check_lost_leases"),
    ("lost", lambda rule: lambda job, at, delay: rule(job, at, 0), "check_lost_leases"),
    ("lost", lambda rule: lambda job, at, delay: rule(job, at, 500), "check_delay_after_lost_leases_grows"),
    (
        "lost",
        lambda rule: lambda job, *a: rule(replace(job, cancel_requested=False), *a),
        "check_lost_lease_of_cancelled_jobs",
    ),
    ("lost", lambda rule: lambda job, *a: rule(replace(job, attempt=0), *a), "check_last_lost_lease"),
    ("requeued", lambda rule: lambda job, at: replace(rule(job, at), attempt=job.attempt), "check_requeuing"),
    ("requeued", lambda rule: lambda job, at: replace(rule(job, at), lease=0), "check_requeuing"),
    (
        "requeued",
        lambda rule: lambda job, at: replace(rule(job, at), started_at_ms=1),
        "check_requeued_time_to_live",
    ),
    ("fresh", lambda rule: lambda new, *a: rule(replace(new, trace=""), *a), "check_submit_keeps_all"),
    ("past_deadline", lambda rule: lambda job, at: False, "check_beating_tells"),
    ("is_over", lambda rule: lambda job, at: False, "check_expiring"),
]


def _attempt_lost(rule, job, outcome, at_ms):
    after, event = rule(job, outcome, at_ms)
    return (replace(after, attempt=job.attempt) if isinstance(outcome, Released) else after), event


def _without_failure(job, event):
    return replace(job, failure=None), event


_LEDGERS = [
    (NotFenced, "check_stale_leases"),
    (EndedJobsSettleAgain, "check_leases_of_jobs_that_do_not_run"),
    (BeatsDoNotProlong, "check_beating"),
    (BeatsTellNothing, "check_cancelling_running_jobs"),
    (PrioritiesIgnored, "check_claim_order"),
    (QueuesOfAnyOrder, "check_queue_order"),
    (ExpiredJobsGivenOut, "check_time_to_live"),
    (ExpiredJobsGivenOut, "check_deadline_of_pending_jobs"),
    (SleepersGivenOut, "check_future_jobs_sleep"),
    (NeverAlone, "check_lonely_jobs"),
    (NeverAlone, "check_lonely_job_across_queues"),
    (NeverAlone, "check_lonely_after_lost_leases"),
    (NoRoomForOne, "check_future_jobs_sleep"),
    (RegionsIgnored, "check_own_region_first"),
    (RegionsIgnored, "check_regions_that_sleep"),
    (RegionsIgnored, "check_released_jobs_keep_their_region"),
    (RegionsIgnored, "check_region_race"),
    (OthersNever, "check_other_regions_last"),
    (OthersAsIfItsOwn, "check_other_regions_last"),
    (OnlyItsOwn, "check_own_region_first"),
    (NewsOfOtherRegions, "check_regions_that_sleep"),
    (CountsNoRegions, "check_counts_by_region"),
    (PausesNothing, "check_regions_in_paused_queues"),
    (NeverAlone, "check_lonely_jobs_of_regions"),
    (KeysOfEverybody, "check_idempotency_keys"),
    (DigestsIgnored, "check_key_with_another_digest"),
    (DigestsIgnored, "check_keys_within_one_call"),
    (KeysForgotten, "check_key_race"),
    (DrainsNothing, "check_draining_queue"),
    (PausesNothing, "check_paused_queue"),
    (NeverFull, "check_full_queue"),
    (NeverFull, "check_full_queue_answers_known_keys"),
    (OneRefusalRefusesAll, "check_full_queue"),
    (LimitIgnored, "check_maintaining_in_parts"),
    (LosesNothing, "check_lost_leases"),
    (TakesBackTooEarly, "check_live_leases_are_left_alone"),
    (WakesForEver, "check_waking"),
    (MaintainsTwiceTheSame, "check_maintenance_storm"),
    (ClaimsTwiceTheSame, "check_claim_race"),
    (PagesByNumber, "check_pages_while_jobs_come_and_go"),
    (PagesNeverEnd, "check_pages"),
    (TagsIgnored, "check_finding"),
    (TenantsIgnored, "check_tenants"),
    (DeletesWhatRuns, "check_deleting"),
    (KeepsHistories, "check_deleting"),
    (TellsNoHistory, "check_history"),
    (CancelsEndedJobs, "check_cancelling_ended_jobs"),
    (CancelsRunningJobsAtOnce, "check_cancelling_running_jobs"),
    (CancelsRunningJobsAtOnce, "check_cancelled_jobs_may_still_end"),
    (PublishesForAnyLease, "check_publishing"),
    (CountsSleepersAsDue, "check_counts"),
    (ForgetsWhatRuns, "check_retention"),
    (TellsNobody, "check_wakeup"),
    (TellsNobody, "check_watch"),
    (TellsNobody, "check_wakeup_of_cancellations"),
    (WakesNobody, "check_waiting_ends"),
    (ForgetsByStopping, "check_restart"),
    (AnswersWhenStopped, "check_stopped_ledgers_refuse"),
    (ForgetsQueuesWithoutJobs, "check_queues"),
    (SharesNothing, "check_other_ledgers_see_all"),
    (ItsOwnClock, "check_clock"),
]


def _put_to(kind, check):
    def new_ledgers(clock: ManualWallClock):
        first = kind(clock)
        return lambda: kind(clock, beside=first)

    with LedgerBench(new_ledgers) as bench:
        _CHECKS[check](bench)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """News that never comes is not waited for."""
    monkeypatch.setattr(waiting, "NEWS_S", 0.3)
    monkeypatch.setattr(waiting, "_LONG_S", 0.6)


@pytest.mark.parametrize(("kind", "check"), _LEDGERS, ids=lambda value: getattr(value, "__name__", value))
def test_each_broken_promise_is_found(kind, check):
    _put_to(MemoryJobLedger, check)
    with pytest.raises(AssertionError):
        _put_to(kind, check)


@pytest.mark.parametrize(("name", "mutated", "check"), _RULES, ids=[f"{r[0]}-{r[2]}" for r in _RULES])
def test_each_broken_rule_is_found(name, mutated, check, monkeypatch):
    monkeypatch.setattr(memory, name, mutated(getattr(memory, name)))
    with pytest.raises(AssertionError):
        _put_to(MemoryJobLedger, check)


def test_what_is_no_broken_promise_comes_through():
    """A ledger that is away is no ledger that lies."""

    class Away(MemoryJobLedger):
        def start(self):
            super().start()
            self.away = True

    with pytest.raises(JobLedgerUnavailableError):
        _put_to(Away, "check_submit_keeps_all")


def test_a_round_that_never_has_enough_is_found():
    """The bench's own loop over `maintain` ends."""

    class Busy(MemoryJobLedger):
        def maintain(self, limit):
            return Upkeep(woken=1)

    with (
        pytest.raises(AssertionError, match="for ever"),
        LedgerBench(lambda clock: lambda: Busy(clock)) as bench,
    ):
        bench.upkeep()


def test_every_check_is_in_the_suite():
    """A check that nobody runs promises nothing."""
    import headrace.testing.job_checks as room

    modules = [getattr(room, name) for name in dir(room) if hasattr(getattr(room, name), "LedgerBench")]
    written = {name for module in modules for name in vars(module) if name.startswith("check_")}
    assert written - {"check_service"} == set(_CHECKS)
    assert len(_CHECKS) == len(JOB_LEDGER_CHECKS)
