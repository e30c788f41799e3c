"""Random operations on every job ledger, compared with the in-memory reference.

The operations are:

- submissions with and without idempotency keys, by submitters with wrong clocks;
- claims by several workers through two ledgers over the same jobs;
- heartbeats and outcomes;
- workers that crash, and workers that return late (zombies);
- jobs that come after others, unfinished, ended or unknown;
- publications, their failures, and outputs whose names several jobs want;
- cancellations, requeues, deletions and paused queues;
- passing time.

After each step every job is compared, and the invariants of any ledger are checked.

Times coincide only on purpose: durations are whole seconds, and the clock advances by whole
seconds and 7 ms.
"""

import random
from collections import Counter
from dataclasses import replace
from functools import partial
from math import inf

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cases import for_each
from headrace.core.errors import JobError
from headrace.jobs.job import (
    Cancelled,
    Completed,
    Expired,
    Failed,
    JobFailure,
    JobProgress,
    NewJob,
    Released,
    ResultRef,
    Settlement,
    new_job_id,
)
from headrace.jobs.lanes import ClaimLimit
from headrace.jobs.ledger import (
    ClaimRequest,
    Heartbeat,
    JobFilter,
    MaintenanceCounts,
    QueueSettings,
    SubmitReply,
)
from headrace.jobs.paths import output_location
from headrace.jobs.state import Cause, JobState
from headrace.jobs.worker_registry import WorkerInfo, WorkerReport
from headrace.testing import ManualWallClock, MemoryJobLedger
from jobs.ledger_fixtures import LEDGERS
from levels import by_level

QUEUES = ("a", "b")
REGIONS = ("", "", "east", "west")
WORKERS = ("w0", "w1", "w2")
LEASE_MS = 60_000
LIMIT = 1_000
ROUNDS_MAX = 10
ODD_MS = 7
EXAMPLES = by_level(60, 60, 600)
# Writes go to a disk, and each move of the clock costs a connection to PostgreSQL.
EXAMPLES_ON_DISK = {"sqlite": by_level(25, 25, 250), "postgres": by_level(10, 10, 100)}
STEPS = by_level(30, 30, 80)

FILTERS = (
    JobFilter(tags={"team": "blue"}),
    JobFilter(queue="a", states=frozenset({JobState.PENDING, JobState.RUNNING})),
    JobFilter(tenant="t"),
    JobFilter(tenant="", states=frozenset({JobState.COMPLETED}), kind="infer"),
    JobFilter(model="other"),
)

pick = st.integers(0, 999)
plain_jobs = st.builds(
    NewJob,
    model=st.sampled_from(("m", "m@2", "n")),
    queue=st.sampled_from(QUEUES),
    priority=st.integers(4, 6),
    attempts_max=st.sampled_from((1, 3, 5, 9)),
    time_limit_s=st.just(2.5),
    tags=st.just({"team": "blue"}),
    region=st.sampled_from(REGIONS),
    tenant=st.sampled_from(("", "t", "u")),
    submitted_by=st.sampled_from(("", "web")),
    endpoint=st.sampled_from(("", "e")),
)
timed_jobs = st.builds(
    NewJob,
    model=st.just("m"),
    queue=st.sampled_from(QUEUES),
    time_to_live_s=st.sampled_from((None, 30.0)),
    deadline_s=st.sampled_from((100.0, 1_000.0)),
    attempts_max=st.sampled_from((3, 9)),
)
few_seconds = st.sampled_from((0, 0, 1_000, 5_000, 90_000))
failure = JobFailure(Cause.MODEL, "the model raised on it")

new_jobs = st.builds(
    NewJob,
    model=st.just("m"),
    queue=st.sampled_from(QUEUES),
    priority=st.integers(4, 6),
    delay_ms=few_seconds,
    attempts_max=st.integers(1, 4),
    time_to_live_s=st.sampled_from((None, None, 30.0)),
    deadline_s=st.sampled_from((None, None, 120.0)),
    idempotency_key=st.sampled_from(("", "", "k1", "k2")),
    body_digest=st.sampled_from(("d1", "d1", "d2")),
    tenant=st.sampled_from(("", "t")),
    region=st.sampled_from(REGIONS),
)
published_jobs = st.builds(
    NewJob,
    model=st.just("m"),
    queue=st.sampled_from(QUEUES),
    kind=st.sampled_from(("infer", "infer", "transform")),
    output_uri=st.sampled_from(("memory://out/", "memory://out", "memory://out/below/")),
    key=st.sampled_from(("", "k", "k", "a/b", "a-b")),
    if_exists=st.sampled_from(("fail", "replace", "version", "rename")),
    idempotency_key=st.sampled_from(("", "", "k3")),
    body_digest=st.sampled_from(("d1", "d1", "d2")),
    tenant=st.sampled_from(("", "t")),
)
outcomes = st.one_of(
    st.builds(lambda n: Completed(ResultRef(f"memory://box/{n}", n)), st.integers(0, 9)),
    st.builds(Failed, st.just(failure), st.sampled_from((None, 0, 1_000, 90_000)), st.booleans()),
    st.builds(Failed, st.just(failure), st.just(0), st.booleans()),
    st.builds(
        Released, st.one_of(st.none(), st.builds(lambda n: {"chunk": n}, st.integers(0, 9))), few_seconds
    ),
    st.just(Cancelled()),
    st.just(Expired()),
)


class LedgerBesideReference(RuleBasedStateMachine):
    """Random operations on a ledger and on the reference.

    Subclasses set `new_ledgers`.
    """

    new_ledgers = None

    def __init__(self):
        super().__init__()
        self.clock = ManualWallClock()
        self.host_ms = self.clock.now_ms()
        self.reference = MemoryJobLedger(self.clock, lost_delay_ms=self._delay_of_tested_ledger)
        # A ledger remembers the shares of tenants for itself, so that each one has its reference.
        self.references = [self.reference, MemoryJobLedger(self.clock, beside=self.reference)]
        for reference in self.references:
            reference.start()
        open_ledger = type(self).new_ledgers(self.clock)
        self.ledgers = [open_ledger(), open_ledger()]
        for ledger in self.ledgers:
            ledger.start()
        self.steps = 0
        self.random = random.Random(7)
        self.job_ids = set()
        self.requeued = set()
        self.back = set()
        self.held = {worker: {} for worker in WORKERS}
        self.zombies = []
        self.accepted = Counter()
        self.seen = {}

    def teardown(self):
        for job_id in self.job_ids:
            self._check_history(job_id)
        for ledger in self.ledgers:
            ledger.stop()

    # Submissions

    @rule(new_batch=st.lists(new_jobs, min_size=1, max_size=3), named=st.booleans())
    def submit(self, new_batch, named):
        # The submitter makes the ids by its own clock, so that both ledgers get the same ids.
        new_batch = [
            replace(new, id=self._job_id()) if named or not new.idempotency_key else new for new in new_batch
        ]
        new_batch = [new if new.id else replace(new, id=self._job_id()) for new in new_batch]
        found, wanted = self._both(lambda ledger: ledger.submit(new_batch))
        assert [_answer(a) for a in found] == [_answer(a) for a in wanted]
        made = {answer.job.id for answer in found if isinstance(answer, SubmitReply) and answer.created}
        assert not made & self.job_ids
        self.job_ids |= made

    @precondition(lambda self: self.job_ids)
    @rule(which=pick)
    def submit_again(self, which):
        job = self.reference.get(self._pick_id(which))
        found, wanted = self._both(lambda ledger: ledger.submit([job.spec]))
        assert [_answer(a) for a in found] == [_answer(a) for a in wanted]
        assert found[0].created is False

    @initialize(new_batch=st.lists(st.one_of(plain_jobs, timed_jobs), min_size=3, max_size=6))
    def begin(self, new_batch):
        self.submit(new_batch, named=True)

    @rule(new_batch=st.lists(st.one_of(plain_jobs, timed_jobs), min_size=1, max_size=4))
    def submit_more(self, new_batch):
        self.submit(new_batch, named=True)

    @rule(new_batch=st.lists(published_jobs, min_size=1, max_size=4))
    def submit_published(self, new_batch):
        self.submit(new_batch, named=True)

    @rule(
        picks=st.lists(pick, min_size=1, max_size=3),
        early=st.booleans(),
        delay_ms=st.sampled_from((0, 0, 1_000)),
        tenant=st.sampled_from(("", "", "t")),
        batch=st.booleans(),
    )
    def submit_after(self, picks, early, delay_ms, tenant, batch):
        """Submit a job after random ones, and perhaps another one after it in the same call."""
        waiting = sorted(job.id for job in self.seen.values() if not job.state.ended and not job.spec.key)
        known = [each for each in (waiting if early else sorted(self.job_ids)) if each in self.job_ids]
        after = tuple(dict.fromkeys(known[which % len(known)] for which in picks)) if known else ("unknown",)
        of_one = self.seen[after[0]].spec.tenant if after[0] in self.seen else ""
        first = NewJob("m", queue="a", id=self._job_id(), after=after, tenant=of_one, delay_ms=delay_ms)
        last = NewJob("m", queue="b", id=self._job_id(), after=(first.id,), tenant=of_one)
        second = NewJob("n", queue="b", id=self._job_id(), after=(first.id, *after), tenant=tenant)
        self.submit([first, last, second] if batch else [first], named=True)

    @rule(ms=st.sampled_from((-600_000, -1, 600_000)))
    def submitters_clock_jumps(self, ms):
        self.host_ms += ms

    @rule(
        queue=st.sampled_from(QUEUES),
        paused=st.booleans(),
        draining=st.booleans(),
        most=st.sampled_from((None, 2)),
        ageing_s=st.sampled_from((1.0, 3_600.0, inf)),
    )
    def set_queue(self, queue, paused, draining, most, ageing_s):
        self._both(lambda ledger: ledger.set_queue(QueueSettings(queue, paused, draining, most, ageing_s)))

    @rule(
        weights=st.lists(st.sampled_from((0.5, 1.0, 3.0)), max_size=2),
        most=st.lists(st.sampled_from((None, 0, 1, 3)), max_size=3),
    )
    def set_limits(self, weights, most):
        shares = [
            ClaimLimit("tenant", name, weight=weight)
            for name, weight in zip(("", "t"), weights, strict=False)
        ]
        subjects = (("model", "m"), ("key", "web"), ("endpoint", "e"))
        limits = [ClaimLimit(kind, name, most) for (kind, name), most in zip(subjects, most, strict=False)]
        self._both(lambda ledger: ledger.set_limits("tenant", shares))
        for kind, _ in subjects:
            of_kind = [limit for limit in limits if limit.kind == kind]
            self._both(lambda ledger, kind=kind, of_kind=of_kind: ledger.set_limits(kind, of_kind))

    @rule(queue=st.sampled_from(QUEUES))
    def delete_queue(self, queue):
        found, wanted = self._both(lambda ledger: _try(ledger.delete_queue, queue, None))
        assert found == wanted

    @rule()
    def open_queues(self):
        for queue in QUEUES:
            self._both(lambda ledger, queue=queue: ledger.set_queue(QueueSettings(queue)))

    @rule()
    def open_queues_again(self):
        # A second rule with this effect, so that closed queues do not block most examples.
        self.open_queues()

    # Work

    @rule(worker=st.sampled_from(WORKERS), slots=st.integers(1, 4), queues=st.permutations(QUEUES))
    def claim(self, worker, slots, queues):
        self._settle_and_claim(worker, [], ClaimRequest(worker, tuple(queues), slots, LEASE_MS))

    @rule(
        worker=st.sampled_from(WORKERS),
        slots=st.integers(1, 4),
        queues=st.permutations(QUEUES),
        region=st.sampled_from(("east", "west", "unused")),
        others=st.booleans(),
    )
    def claim_for_a_region(self, worker, slots, queues, region, others):
        claim = ClaimRequest(worker, tuple(queues), slots, LEASE_MS, region, others)
        found = self._settle_and_claim(worker, [], claim)
        near = [job for job in found.claimed if job.spec.region in ("", region)]
        assert others or len(near) == len(found.claimed)

    @rule(slots=st.integers(1, 3), first=st.sampled_from(QUEUES))
    def all_claim(self, slots, first):
        queues = (first, *(queue for queue in QUEUES if queue != first))
        for worker in WORKERS:
            self.claim(worker, slots, queues)

    @precondition(lambda self: any(self.held.values()))
    @rule(
        worker=st.sampled_from(WORKERS),
        taken_over=st.sampled_from((True, True, False)),
        cancelled=st.booleans(),
        outcome=outcomes,
    )
    def worker_is_lost(self, worker, taken_over, cancelled, outcome):
        """Let a worker's leases expire, let other workers claim its jobs, then settle late."""
        lost = list(self.held[worker].values())
        if not lost:
            self.claim(worker, 2, QUEUES)
            lost = list(self.held[worker].values())
        self.worker_crashes(worker)
        if cancelled and lost and lost[-1].id in self.job_ids:
            self._decide("cancel", lost[-1].id, None)
        self.time_passes(LEASE_MS)
        self.maintain(twice=False)
        self.time_passes(120_000)
        if taken_over:
            self.all_claim(4, QUEUES[0])
        for job in lost[:2]:
            self.zombie_settles(self.zombies.index(job), outcome)

    @rule(
        new_batch=st.lists(timed_jobs, min_size=2, max_size=3),
        maintained=st.booleans(),
        requeued=st.booleans(),
    )
    def deadlines_pass(self, new_batch, maintained, requeued):
        """Let deadlines pass, for running jobs with heartbeats and for waiting jobs."""
        self.submit(new_batch, named=True)
        self.claim(WORKERS[0], 1, QUEUES)
        if requeued:
            self.worker_completes(WORKERS[0], 1, late=True)
        for _ in range(2):
            self.heartbeat(WORKERS[0], 1, zombies=False, n=1)
            self.time_passes(LEASE_MS - 5_000)
        if maintained:
            self.maintain(twice=True)
        self.heartbeat(WORKERS[0], 1, zombies=True, n=2)
        self.all_claim(1, QUEUES[0])

    @rule(worker=st.sampled_from(WORKERS), n=st.integers(0, 9), late=st.booleans())
    def worker_completes(self, worker, n, late):
        """Complete all jobs of a worker.

        Settle each job twice, as after a lost reply. If `late`, requeue the last job before its
        publication.
        """
        if not self.held[worker]:
            self.claim(worker, 3, QUEUES)
        jobs = list(self.held[worker].values())
        self.worker_crashes(worker)
        for job in jobs:
            settlement = Settlement(job.id, job.lease, Completed(ResultRef(f"memory://box/{n}", n)))
            accepted = self._settle_and_claim(worker, [settlement, settlement], None).accepted
            assert not accepted[1]
            if late and accepted[0] and job is jobs[-1] and self._decide("requeue", job.id, None):
                self.requeued.add(job.id)
                self.back.add(job.id)
            self.publish(self.zombies.index(job))

    @precondition(lambda self: any(self.held.values()))
    @rule(outcome=st.builds(Failed, st.just(failure), st.just(0), st.just(True)))
    def model_crashes(self, outcome):
        worker = next(worker for worker in WORKERS if self.held[worker])
        job = next(iter(self.held[worker].values()))
        del self.held[worker][job.id]
        self._settle_and_claim(worker, [Settlement(job.id, job.lease, outcome)], None)

    @precondition(lambda self: any(self.held.values()))
    @rule(outcome=outcomes)
    def workers_continue(self, outcome):
        for worker in WORKERS:
            if self.held[worker]:
                self.heartbeat(worker, 3, zombies=True, n=len(self.held[worker]))
                self.settle(WORKERS.index(worker), outcome, outcome, claims=True, twice=False)

    @precondition(lambda self: any(self.held.values()))
    @rule(which=pick, outcome=outcomes)
    def cancelled_while_it_runs(self, which, outcome):
        worker = next(worker for worker in WORKERS if self.held[worker])
        job = next(iter(self.held[worker].values()))
        if job.id in self.job_ids:
            self._decide("cancel", job.id, None)
        self.heartbeat(worker, 0, zombies=False, n=0)
        self.settle(0, outcome, outcome, claims=False, twice=True)

    @precondition(lambda self: any(self.held.values()))
    @rule(which=pick, outcome=outcomes, other=outcomes, claims=st.booleans(), twice=st.booleans())
    def settle(self, which, outcome, other, claims, twice):
        busy = [worker for worker in WORKERS if self.held[worker]]
        if not busy:
            return
        worker = busy[which % len(busy)]
        jobs = list(self.held[worker].values())[:2]
        settlements = [Settlement(j.id, j.lease, o) for j, o in zip(jobs, (outcome, other), strict=False)]
        if twice:
            settlements.append(settlements[0])
        for job in jobs:
            del self.held[worker][job.id]
            self.zombies.append(job)
        self._settle_and_claim(
            worker, settlements, ClaimRequest(worker, QUEUES, 2, LEASE_MS) if claims else None
        )

    @precondition(lambda self: self.zombies)
    @rule(which=pick, outcome=outcomes)
    def zombie_settles(self, which, outcome):
        zombie = self.zombies[which % len(self.zombies)]
        now = self.reference.get_many([zombie.id]).get(zombie.id)
        (accepted,) = self._settle_and_claim(
            zombie.worker, [Settlement(zombie.id, zombie.lease, outcome)], None
        ).accepted
        if now is None or now.lease != zombie.lease or now.state is not JobState.RUNNING:
            assert not accepted, (
                f"{zombie.id}: lease {zombie.lease} was accepted, the job's is {now and now.lease}"
            )

    @rule(
        worker=st.sampled_from(WORKERS), fields=st.integers(0, 3), zombies=st.booleans(), n=st.integers(0, 9)
    )
    def heartbeat(self, worker, fields, zombies, n):
        progress = JobProgress(n, 10, "records") if fields & 1 else None
        cursor = {"chunk": n} if fields & 2 else None
        jobs = list(self.held[worker].values())
        known = {job.id for job in jobs}
        jobs += [job for job in self.zombies[-3:] if zombies and job.id not in known]
        heartbeats = list({job.id: Heartbeat(job.id, job.lease, progress, cursor) for job in jobs}.values())
        found, wanted = self._both(lambda ledger: ledger.heartbeat(worker, heartbeats, LEASE_MS))
        assert found == wanted
        for job_id in found.lost & set(self.held[worker]):
            self.zombies.append(self.held[worker].pop(job_id))

    @rule(
        worker=st.sampled_from(WORKERS),
        actions=st.lists(
            st.sampled_from(("register", "restart", "report", "drain", "undrain", "end")), max_size=4
        ),
    )
    def workers_are_registered(self, worker, actions):
        info = WorkerInfo(worker, queues=QUEUES, models=("m",), lease_ms=LEASE_MS)
        report = WorkerReport(claims=False, memory_bytes=1)
        acts = {
            "register": lambda ledger: ledger.register_worker(info, report),
            "restart": lambda ledger: ledger.register_worker(replace(info, start_id="again")),
            "report": lambda ledger: ledger.heartbeat(worker, [], LEASE_MS, report),
            "drain": lambda ledger: _try(partial(ledger.set_worker_draining, draining=True), worker, None),
            "undrain": lambda ledger: _try(partial(ledger.set_worker_draining, draining=False), worker, None),
            "end": lambda ledger: ledger.end_worker(worker),
        }
        for action in actions:
            found, wanted = self._both(acts[action])
            assert found == wanted
        found, wanted = self._both(lambda ledger: (ledger.workers(), ledger.worker_orders(worker)))
        assert found == wanted

    @rule(worker=st.sampled_from(WORKERS))
    def worker_crashes(self, worker):
        self.zombies += self.held[worker].values()
        self.held[worker] = {}

    @precondition(lambda self: self.zombies)
    @rule(which=pick)
    def publish(self, which):
        job = self.zombies[which % len(self.zombies)]
        found, wanted = self._both(
            lambda ledger: ledger.mark_published(job.id, job.lease, "memory://box/K.out", "sha256:0")
        )
        assert found == wanted

    @precondition(lambda self: self.zombies)
    @rule(which=pick, final=st.booleans())
    def fail_to_publish(self, which, final):
        job = self.zombies[which % len(self.zombies)]
        found, wanted = self._both(
            lambda ledger: ledger.mark_publish_failed(job.id, job.lease, failure, final=final)
        )
        assert found == wanted

    @rule()
    def claim_publications(self):
        found, wanted = self._both(lambda ledger: ledger.claim_publications(LIMIT))
        assert {job.id: job.publish_tries for job in found} == {job.id: job.publish_tries for job in wanted}

    @rule(
        new_batch=st.lists(published_jobs, min_size=1, max_size=3),
        acts=st.lists(st.sampled_from(("publish", "fail", "give_up", "cancel", "claim")), max_size=4),
    )
    def results_are_published(self, new_batch, acts):
        """Complete jobs with outputs, then let publishers succeed or fail, and others interfere."""
        self.open_queues()
        self.submit(new_batch, named=True)
        self.claim(WORKERS[0], 4, QUEUES)
        jobs = list(self.held[WORKERS[0]].values())
        self.worker_crashes(WORKERS[0])
        done = [Settlement(job.id, job.lease, Completed(ResultRef("memory://box/1", 1))) for job in jobs]
        self._settle_and_claim(WORKERS[0], done, None)
        for job, act in zip(jobs, acts, strict=False):
            if act == "publish":
                self.publish(self.zombies.index(job))
            elif act == "cancel" and job.id in self.job_ids:
                self._decide("cancel", job.id, None)
            elif act == "claim":
                self.time_passes(30_000)
                self.claim_publications()
            else:
                self.fail_to_publish(self.zombies.index(job), act == "give_up")

    @precondition(lambda self: self.job_ids)
    @rule(which=pick, tenant=st.sampled_from((None, None, "", "t")))
    def republish(self, which, tenant):
        job_id = self._pick_id(which)
        if self._decide("republish", job_id, tenant):
            self.back.add(job_id)

    @rule(ms=st.sampled_from((0, 1_000, 5_000, 30_000, LEASE_MS, 120_000)))
    def time_passes(self, ms):
        self.clock.advance(ms + ODD_MS)

    @rule(twice=st.booleans())
    def maintain(self, twice):
        jobs = self.reference.find(JobFilter(), limit=LIMIT).jobs
        now_ms = self.clock.now_ms()
        # A job may have a lost worker and a passed deadline. The contract does not say whether such
        # a job is pending in between.
        either = any(
            _before(job.lease_until_ms, now_ms) and _before(job.deadline_at_ms, now_ms) for job in jobs
        )
        done = MaintenanceCounts()
        for _ in range(ROUNDS_MAX):
            once = self._ledger().maintain(LIMIT)
            done = _sum(done, once)
            if not once.total:
                break
        else:
            pytest.fail("maintain never finishes")
        wanted = _sum(self.reference.maintain(LIMIT), self.reference.maintain(LIMIT))
        # A claim of the ledger may have woken some of the jobs.
        known_woken = min(done.woken, wanted.woken)
        assert either or done == replace(wanted, woken=known_woken)
        assert self.reference.maintain(LIMIT).total == 0
        if twice:
            assert self._ledger().maintain(LIMIT).total == 0

    # Actions of operators

    @precondition(lambda self: self.job_ids)
    @rule(which=pick, tenant=st.sampled_from((None, None, "", "t")))
    def cancel(self, which, tenant):
        self._decide("cancel", self._pick_id(which), tenant)

    @precondition(lambda self: self.job_ids)
    @rule(which=pick, tenant=st.sampled_from((None, None, "", "t")))
    def requeue(self, which, tenant):
        job_id = self._pick_id(which)
        if self._decide("requeue", job_id, tenant):
            self.requeued.add(job_id)
            self.back.add(job_id)

    @rule(which=pick)
    def requeue_ended(self, which):
        ended = sorted(job.id for job in self.seen.values() if job.state.ended and job.id in self.job_ids)
        if ended:
            job_id = ended[which % len(ended)]
            keyed = self.reference.get(job_id).spec.key
            if self._decide("requeue", job_id, None):
                self.requeued.add(job_id)
                self.back.add(job_id)
            else:
                after = self.reference.get(job_id).spec.after
                assert keyed or after, "a job without a name that others may own was not requeued"

    @precondition(lambda self: self.job_ids)
    @rule(which=pick)
    def delete(self, which):
        job_id = self._pick_id(which)
        if self._decide("delete", job_id, None):
            self._gone(job_id)

    @precondition(lambda self: len(self.job_ids) > 4)
    @rule(which=pick)
    def forget_some(self, which):
        some = [self._pick_id(which), self._pick_id(which + 1), "unknown"]
        before = self.reference.get_many(some)
        found, wanted = self._both(lambda ledger: ledger.forget(some))
        assert found == wanted == sum(job.state.ended for job in before.values())
        for job in before.values():
            if job.state.ended:
                self._gone(job.id)

    # Invariants after each step

    @invariant()
    def ledgers_agree_on_jobs(self):
        found = self._ledger().get_many(sorted(self.job_ids))
        wanted = self.reference.get_many(sorted(self.job_ids))
        assert set(found) == self.job_ids, "a job was lost"
        for job_id, job in wanted.items():
            requeued = job_id in self.requeued
            assert _view(found[job_id], job, requeued) == _view(job, job, requeued)
        self._check_invariants(found)

    @invariant()
    def ledgers_agree_on_owners(self):
        if self.steps % 3 != 2:
            return
        owners = {}
        for job in self.reference.get_many(sorted(self.job_ids)).values():
            if not job.spec.key:
                continue
            found, wanted = self._both(lambda ledger, job=job: ledger.output_owner(job))
            assert (found and found.id) == (wanted and wanted.id)
            if found is not None:
                location = output_location(job.spec)
                assert owners.setdefault(location, found.id) == found.id, "a name has two owners"

    @invariant()
    def ledgers_agree_on_queues(self):
        if self.steps % 3 != 1:
            return
        ledger = self._ledger()
        for queue in QUEUES:
            assert ledger.counts(queue) == self.reference.counts(queue)
            counts = ledger.counts(queue, tenant="t")
            assert counts == self.reference.counts(queue, tenant="t")
        assert ledger.queues() == self.reference.queues()
        assert ledger.counters() == self.reference.counters()
        for tenant in ("", "t"):
            assert ledger.tenant_counts(tenant) == self.reference.tenant_counts(tenant)
            assert ledger.count_pending(tenant, limit=3) == self.reference.count_pending(tenant, limit=3)

    @invariant()
    def each_job_is_listed_once(self):
        if self.steps % 3:
            return
        seen, after = [], ""
        limit = 2 + self.steps % 5
        for _ in range(len(self.job_ids) + 1):
            page = self._ledger().find(JobFilter(), after=after, limit=limit)
            seen += page.jobs
            after = page.next_after
            if not after:
                break
        assert Counter(job.id for job in seen) == Counter(self.job_ids)
        created = [job.created_at_ms for job in seen]
        assert created == sorted(created, reverse=True), "jobs are not sorted by creation, newest first"
        wanted = FILTERS[self.steps // 3 % len(FILTERS)]
        found = [{job.id for job in ledger.find(wanted).jobs} for ledger in (self._ledger(), self.reference)]
        assert found[0] == found[1], wanted
        ended = self._ledger().ended_before(self.clock.now_ms() + 1, limit=LIMIT)
        assert {job.id for job in ended} == {job.id for job in seen if job.state.ended}
        times = [job.ended_at_ms for job in ended]
        assert times == sorted(times), "ended jobs are not sorted by their end"

    def _check_invariants(self, now):
        """Check the rules for any ledger, independently of the reference."""
        for job in now.values():
            was = self.seen.get(job.id)
            assert 0 <= job.attempt <= job.spec.attempts_max
            assert (job.state is JobState.RUNNING) == (job.lease_until_ms is not None)
            assert job.state.ended == (job.ended_at_ms is not None)
            published = {JobState.PUBLISHING, JobState.COMPLETED, JobState.PUBLISH_FAILED}
            assert (job.state in published) == (job.result is not None)
            if job.state is JobState.COMPLETED and job.spec.kind == "infer":
                assert bool(job.result.published_uri) == bool(job.spec.output_uri)
            assert job.state is not JobState.FAILED or job.failure is not None
            if job.state is JobState.BLOCKED:
                before = [now[job_id] for job_id in job.spec.after if job_id in now]
                assert any(not each.state.ended for each in before), "a job stays blocked for nothing"
            if was is None:
                continue
            assert job.lease >= was.lease, "a lease number decreased"
            assert job.crashes >= was.crashes
            if was.state.ended and job.id not in self.back:
                assert job.state is was.state, "an ended job changed its state without a requeue"
                assert job.ended_at_ms == was.ended_at_ms
        self.seen = now
        self.back.clear()
        assert all(count == 1 for count in self.accepted.values()), "a lease was settled twice"

    @invariant()
    def count_step(self):
        self.steps += 1

    # Helpers of the rules

    def _ledger(self):
        return self.ledgers[self.steps % 2]

    def _both(self, act):
        which = self.steps % 2
        return act(self.ledgers[which]), act(self.references[which])

    def _settle_and_claim(self, worker, settlements, claim):
        found, wanted = self._both(lambda ledger: ledger.settle_and_claim(settlements, claim))
        assert found.accepted == wanted.accepted
        assert [job.id for job in found.claimed] == [job.id for job in wanted.claimed]
        for job, reference_job in zip(found.claimed, wanted.claimed, strict=True):
            requeued = job.id in self.requeued
            assert _view(job, reference_job, requeued) == _view(reference_job, reference_job, requeued)
        if claim is not None:
            assert len(found.claimed) <= claim.jobs_max
            assert (found.due_in_ms, found.limited) == (wanted.due_in_ms, wanted.limited)
            assert len(found.claimed) == 1 or not any(job.alone for job in found.claimed)
        for settlement, accepted in zip(settlements, found.accepted, strict=True):
            self.accepted[settlement.job_id, settlement.lease] += accepted
        self.accepted = +self.accepted
        for job in found.claimed:
            self.held[worker][job.id] = job
        return found

    def _decide(self, verb, job_id, tenant):
        """Call `verb` on both ledgers and return True on success.

        Both must succeed, or both must raise the same error.
        """
        found, wanted = self._both(lambda ledger: _try(getattr(ledger, verb), job_id, tenant))
        if isinstance(wanted, type):
            assert found is wanted
            return False
        assert found is not None
        assert not isinstance(found, type), f"{verb} was refused: {found}"
        requeued = job_id in self.requeued or verb == "requeue"
        assert _view(found, wanted, requeued) == _view(wanted, wanted, requeued)
        return True

    def _gone(self, job_id):
        self.job_ids.discard(job_id)
        self.requeued.discard(job_id)
        for key in [key for key in self.accepted if key[0] == job_id]:
            del self.accepted[key]

    def _pick_id(self, which):
        return sorted(self.job_ids)[which % len(self.job_ids)]

    def _job_id(self):
        # Like an id from the host's clock, but the same when hypothesis repeats the example.
        tail = f"{self.random.getrandbits(48):012x}"
        return new_job_id(self.host_ms)[:14] + "7000-8000-" + tail

    def _check_history(self, job_id):
        found, wanted = self._both(lambda ledger: ledger.history(job_id))
        histories = [
            [(e.event, e.attempt, e.lease, e.by, e.at_ms) for e in history] for history in (found, wanted)
        ]
        assert histories[0] == histories[1]

    def _delay_of_tested_ledger(self, job):
        """Return the retry delay that the ledger under test chose for a lost job.

        The contract requires a delay, but leaves its length open.
        """
        other = self._ledger().get(job.id)
        delay_ms = other.due_at_ms - self.clock.now_ms()
        assert other.state is not JobState.PENDING or delay_ms > 0
        return delay_ms


def _view(job, expected, requeued):
    """Return the fields that the contract defines for a job in its state."""
    view = {
        name: getattr(job, name)
        for name in (
            "id",
            "state",
            "attempt",
            "lease",
            "crashes",
            "created_at_ms",
            "ended_at_ms",
            "deadline_at_ms",
            "lease_until_ms",
            "result",
        )
    }
    view["spec"] = replace(job.spec, id="")
    state = expected.state
    if state is JobState.PENDING:
        view["due_at_ms"] = job.due_at_ms
        view["cause"] = job.failure and job.failure.cause
    if state in (JobState.PENDING, JobState.BLOCKED) and expected.started_at_ms is None:
        view["expires_at_ms"] = job.expires_at_ms
    if state is JobState.RUNNING:
        view |= {
            "worker": job.worker,
            "worker_region": job.worker_region,
            "started": job.started_at_ms,
            "cancel": job.cancel_requested,
        }
        if expected.progress is not None:
            view["progress"] = job.progress
    if state is JobState.FAILED:
        view["cause"] = job.failure and job.failure.cause
    if not requeued and not state.ended:
        view["cursor"] = job.cursor
    return view


def _answer(answer):
    if isinstance(answer, SubmitReply):
        return answer.job.id, answer.created, answer.job.state
    return type(answer), getattr(answer, "job_id", "")


def _try(verb, job_id, tenant):
    try:
        return verb(job_id) if tenant is None else verb(job_id, tenant=tenant)
    except JobError as error:
        return type(error)


def _before(at_ms, now_ms):
    return at_ms is not None and at_ms <= now_ms


def _sum(one, other):
    names = ("returned", "failed", "cancelled", "expired", "woken")
    return MaintenanceCounts(*(getattr(one, name) + getattr(other, name) for name in names))


def _run_machine(new_ledgers, **profile):
    class Machine(LedgerBesideReference):
        pass

    Machine.new_ledgers = staticmethod(new_ledgers)
    checks = list(HealthCheck)
    run_state_machine_as_test(
        Machine,
        settings=settings(deadline=None, suppress_health_check=checks, **profile),
    )


def _under_test(ledger, request):
    return lambda clock: LEDGERS[ledger](clock, request.getfixturevalue)


@pytest.mark.timeout(by_level(120, 120, 7200))
@pytest.mark.parametrize("ledger", LEDGERS)
def test_ledger_behaves_like_the_reference(ledger, request):
    examples = EXAMPLES_ON_DISK.get(ledger, EXAMPLES)
    _run_machine(_under_test(ledger, request), max_examples=examples, stateful_step_count=STEPS)


class IgnoresLease(MemoryJobLedger):
    def _running(self, job_id, lease):
        job = self._table.jobs.get(job_id)
        return job if job and job.state is JobState.RUNNING else None


class CountsReleasedAttempts(MemoryJobLedger):
    def _settle(self, settlement):
        before = self._table.jobs.get(settlement.job_id)
        accepted = super()._settle(settlement)
        after = self._table.jobs.get(settlement.job_id)
        if accepted and after.attempt < before.attempt:
            self._table.jobs[after.id] = replace(after, attempt=before.attempt)
        return accepted


class UsesSubmitterClock(MemoryJobLedger):
    def _submit(self, new):
        answer = super()._submit(new)
        if isinstance(answer, SubmitReply) and answer.created:
            made_ms = int(answer.job.id.replace("-", "")[:12], 16)
            self._table.jobs[answer.job.id] = replace(answer.job, created_at_ms=made_ms, due_at_ms=made_ms)
        return answer


class NeverExpiresLeases(MemoryJobLedger):
    def _expired_leases(self):
        return []


@for_each("kind", [IgnoresLease, CountsReleasedAttempts, UsesSubmitterClock, NeverExpiresLeases])
def test_wrong_ledger_is_detected(kind):
    def new_ledgers(clock):
        first = kind(clock)
        return lambda: kind(clock, beside=first)

    with pytest.raises(AssertionError):
        _run_machine(
            new_ledgers, max_examples=200, stateful_step_count=30, database=None, phases=[Phase.generate]
        )
