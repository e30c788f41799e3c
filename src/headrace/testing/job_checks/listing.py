"""Checks of queries: single jobs, lists, stable pages, queues, counts and tenants."""

from dataclasses import replace
from itertools import chain
from typing import Any, Final

from headrace.core.errors import JobNotFoundError, QueueInUseError
from headrace.jobs.job import Failed, Job, NewJob
from headrace.jobs.ledger import JobFilter, QueueCounts, QueueSettings
from headrace.jobs.state import JobState
from headrace.testing.expect import equal, raises, true
from headrace.testing.job_checks.bench import OOPS, LedgerBench, accepted, done, ids

_PAGES_MAX: Final = 50


def check_get(bench: LedgerBench) -> None:
    """Check that jobs are found by id, alone or many at once.

    Unknown ids are left out of the latter.
    """
    one, two = bench.submit(), bench.submit()
    equal(bench.ledger.get(one.id), one, "a job by its id")
    error = raises(JobNotFoundError, lambda: bench.ledger.get("unknown"), "an unknown job")
    true("unknown" in str(error), "the error does not name the id")
    found = bench.ledger.get_many([two.id, "unknown", one.id, two.id])
    equal(found, {one.id: one, two.id: two}, "many jobs, with one id repeated and one unknown")
    equal(bench.ledger.get_many([]), {}, "jobs of no ids")


def check_get_by_key(bench: LedgerBench) -> None:
    """Check that a job is found by its tenant's key until it is deleted."""
    one = bench.submit(tenant="a", idempotency_key="k")
    bench.submit(tenant="a")
    equal(bench.ledger.get_by_key("a", "k"), one, "a job by its key")
    for tenant, key in (("b", "k"), ("", "k"), ("a", "other"), ("a", "")):
        equal(bench.ledger.get_by_key(tenant, key), None, f"the job of tenant {tenant!r} and key {key!r}")
    bench.ledger.cancel(one.id)
    bench.ledger.delete(one.id)
    equal(bench.ledger.get_by_key("a", "k"), None, "a job by its key, deleted")


def check_tenant_isolation(bench: LedgerBench) -> None:
    """Check that every operation treats another tenant's job as missing.

    The tenant None sees all jobs.
    """
    job = bench.submit(tenant="a")
    ended = bench.submit_ended(JobState.FAILED, tenant="a", queue="other")
    for tenant in ("b", ""):
        for verb, target in (
            (bench.ledger.get, job),
            (bench.ledger.cancel, job),
            (bench.ledger.requeue, ended),
            (bench.ledger.delete, ended),
        ):
            act = lambda verb=verb, target=target, tenant=tenant: verb(target.id, tenant=tenant)  # noqa: E731
            raises(JobNotFoundError, act, f"{verb.__name__} of another tenant's job")
        equal(bench.ledger.find(JobFilter(tenant=tenant)).jobs, (), "the list of a tenant without jobs")
    equal([bench.reload(job), bench.reload(ended)], [job, ended], "the jobs after all was refused")
    equal(bench.events(job), [], "the history after all was refused")
    equal(bench.ledger.get(job.id, tenant="a"), job, "a tenant's own job")
    equal(set(ids(bench.ledger.find(JobFilter()).jobs)), {job.id, ended.id}, "the jobs of all tenants")
    equal(bench.ledger.requeue(ended.id, tenant="a").state, JobState.PENDING, "a tenant's own job, requeued")
    equal(bench.ledger.cancel(job.id, tenant="a").state, JobState.CANCELLED, "a tenant's own job, cancelled")
    equal(bench.ledger.delete(job.id, tenant="a").id, job.id, "a tenant's own job, deleted")


def check_failure_groups(bench: LedgerBench) -> None:
    """Check that failed jobs are grouped by their failures, the largest group first."""

    def fail(message: str, **values: Any) -> Job:
        bench.advance(1)
        job = bench.submit(**values)
        bench.settle(bench.claim_one(), Failed(replace(OOPS, message=message)))
        return bench.reload(job)

    equal(bench.ledger.failure_groups(), [], "the groups without failed jobs")
    bench.submit_ended(JobState.CANCELLED)
    one, alone = fail("row 1 is odd", tenant="a"), fail("the model is too old")
    two, last = fail("row 22 is odd", tenant="b"), fail("row 3 is odd", tenant="a")
    large, small = bench.ledger.failure_groups()
    fingerprints = {job.fingerprint for job in (one, two, last)}
    equal(({large.fingerprint}, small.fingerprint), (fingerprints, alone.fingerprint), "the fingerprints")
    equal((large.jobs, small.jobs), (3, 1), "the numbers of jobs")
    equal((large.first_at_ms, large.last_at_ms), (one.ended_at_ms, last.ended_at_ms), "the times of the ends")
    equal((large.last, small.last), (last, alone), "the last jobs")
    equal(bench.ledger.failure_groups(limit=1), [large], "the groups up to a limit")
    own = [(group.jobs, group.last) for group in bench.ledger.failure_groups(tenant="a")]
    equal(own, [(2, last)], "the group of a tenant")
    listed = ids(bench.ledger.find(JobFilter(fingerprint=large.fingerprint)).jobs)
    equal(listed, ids([last, two, one]), "the jobs of a group")
    bench.ledger.requeue(last.id)
    equal(bench.ledger.failure_groups()[0].jobs, 2, "the number of jobs after a requeue")
    bench.ledger.delete(alone.id)
    equal(len(bench.ledger.failure_groups()), 1, "the number of groups after a deletion")


def check_find_filters(bench: LedgerBench) -> None:
    """Check that a list contains exactly the jobs that match all conditions, newest first."""
    rows: dict[str, dict[str, Any]] = {
        "a": {"queue": "q1", "model": "m1", "tags": {"team": "blue", "run": "1"}, "tenant": "x"},
        "b": {
            "queue": "q2",
            "model": "m1",
            "kind": "transform",
            "correlation_id": "c",
            "tags": {"team": "red"},
        },
        "c": {"queue": "q1", "model": "m2", "kind": "stream", "tags": {"team": "blue", "run": "2"}},
        "d": {"queue": "q1", "model": "m1", "correlation_id": "c", "tenant": "x", "delay_ms": 9_000},
    }
    made: dict[str, Job] = {}
    for name, spec in rows.items():
        made[name] = bench.submit(**spec)
        bench.advance(1_000)
    bench.ledger.cancel(made["b"].id)
    bench.claim_one(queues=["q1"])
    names = {job.id: name for name, job in made.items()}
    at = {name: job.created_at_ms for name, job in made.items()}
    pending, running, cancelled = JobState.PENDING, JobState.RUNNING, JobState.CANCELLED
    for wanted, expected in (
        (JobFilter(), "dcba"),
        (JobFilter(queue="q1"), "dca"),
        (JobFilter(model="m1"), "dba"),
        (JobFilter(kind="infer"), "da"),
        (JobFilter(correlation_id="c"), "db"),
        (JobFilter(tags={"team": "blue"}), "ca"),
        (JobFilter(tags={"team": "blue", "run": "2"}), "c"),
        (JobFilter(tags={"team": "green"}), ""),
        (JobFilter(tags={"other": "blue"}), ""),
        (JobFilter(tenant="x"), "da"),
        (JobFilter(tenant=""), "cb"),
        (JobFilter(states=frozenset({pending})), "dc"),
        (JobFilter(states=frozenset({running, cancelled})), "ba"),
        (JobFilter(states=frozenset({JobState.FAILED})), ""),
        (JobFilter(created_from_ms=at["b"]), "dcb"),
        (JobFilter(created_before_ms=at["b"]), "a"),
        (JobFilter(created_from_ms=at["b"], created_before_ms=at["d"]), "cb"),
        (JobFilter(queue="q1", model="m1", tenant="x", states=frozenset({pending})), "d"),
        (JobFilter(queue="q2", model="m2"), ""),
    ):
        page = bench.ledger.find(wanted)
        equal("".join(names[job.id] for job in page.jobs), expected, f"the jobs of {wanted}")
        equal(page.next_after, "", f"next_after of all {wanted}")
    equal(bench.ledger.find(JobFilter(queue="q2")).jobs, (bench.reload(made["b"]),), "a listed job as it is")


def check_pages(bench: LedgerBench) -> None:
    """Check that pages cover the list: each job once, in order.

    Only the last page may be short, and it ends the list.
    """
    bench.submit_many(4)
    bench.advance(1)
    bench.submit_many(3)
    bench.submit(queue="other")
    whole = ids(bench.ledger.find(JobFilter(queue="default")).jobs)
    equal(len(whole), 7, "the number of jobs on one page")
    for limit in (1, 2, 3, 7, 8):
        pages = _pages(bench, JobFilter(queue="default"), limit)
        equal(list(chain(*pages)), whole, f"all pages of {limit}")
        sizes = [limit] * (7 // limit) + ([7 % limit] if 7 % limit else [])
        equal([len(page) for page in pages], sizes, f"the sizes of pages of {limit}")
    equal(bench.ledger.find(JobFilter(queue="none")).next_after, "", "next_after of an empty page")


def check_pages_during_changes(bench: LedgerBench) -> None:
    """Check that changes between two pages neither repeat nor hide any other job.

    Jobs are submitted and deleted, also the last job of a page.
    """
    jobs: list[Job] = []
    for _ in range(9):
        jobs.append(bench.submit())
        bench.advance(1)
    deleted, listed, after = jobs[4], list[str](), ""
    for number in range(_PAGES_MAX):
        page = bench.ledger.find(JobFilter(), after=after, limit=2)
        listed += ids(page.jobs)
        after = page.next_after
        if not after:
            break
        bench.submit_many(3)
        bench.advance(1)
        if number == 0:
            bench.ledger.cancel(deleted.id)
            bench.ledger.delete(deleted.id)
        if number == 1:
            # The job at the end of this page is deleted before the next page is requested.
            bench.ledger.cancel(listed[-1])
            bench.ledger.delete(listed[-1])
    remaining = [job_id for job_id in reversed(ids(jobs)) if job_id != deleted.id]
    equal(listed, remaining, "the jobs on all pages, newest first")


def _pages(bench: LedgerBench, wanted: JobFilter, limit: int) -> list[list[str]]:
    pages: list[list[str]] = []
    after = ""
    for _ in range(_PAGES_MAX):
        page = bench.ledger.find(wanted, after=after, limit=limit)
        pages.append(ids(page.jobs))
        after = page.next_after
        if not after:
            return pages
    raise AssertionError(f"the pages do not end: {_PAGES_MAX} of {limit}, for 7 jobs")


def check_queue_settings(bench: LedgerBench) -> None:
    """Check that queues are listed by name once they had a job or settings.

    They stay after their jobs are deleted. Settings are replaced.
    """
    equal(bench.ledger.queues(), [], "the queues of a new ledger")
    equal(bench.ledger.queue("unknown"), QueueSettings("unknown"), "the settings of an unknown queue")
    equal(bench.ledger.queues(), [], "the queues after asking for an unknown one")
    job = bench.submit(queue="ünï")
    bench.submit(queue="b")
    bench.ledger.set_queue(QueueSettings("a", paused=True, draining=True, pending_max=7))
    bench.ledger.delete(bench.ledger.cancel(job.id).id)
    bench.ledger.set_queue(QueueSettings("b", pending_max=1))
    bench.ledger.set_queue(QueueSettings("b", draining=True))
    wanted = [QueueSettings("a", True, True, 7), QueueSettings("b", draining=True), QueueSettings("ünï")]
    equal(bench.ledger.queues(), wanted, "the queues, by name")
    equal([bench.ledger.queue(q.name) for q in wanted], wanted, "each queue by its name")


def check_submit_keeps_queue_settings(bench: LedgerBench) -> None:
    """Check that submitting to a known queue leaves its settings unchanged."""
    settings = QueueSettings("q", paused=True, pending_max=2)
    bench.ledger.set_queue(settings)
    bench.ledger.submit([NewJob(queue="q")] * 3)
    equal(bench.ledger.queue("q"), settings, "the settings after submitting")


def check_counts(bench: LedgerBench) -> None:
    """Check the counts of one queue: due, delayed and running jobs, and the oldest due job's wait."""
    equal(bench.ledger.counts("default"), QueueCounts(), "the counts of an empty queue")
    bench.submit(priority=0)
    bench.advance(500)
    bench.submit_many(2)
    bench.submit(delay_ms=60_000)
    bench.submit(queue="other")
    bench.advance(250)
    equal(bench.ledger.counts("default"), QueueCounts(3, 1, 0, 750), "the counts of a queue")
    job = bench.claim_one()
    counts = bench.ledger.counts("default")
    equal((counts, counts.backlog), (QueueCounts(2, 1, 1, 250), 3), "the counts with one running job")
    bench.settle(job, Failed(OOPS, retry_ms=60_000))
    equal(
        bench.ledger.counts("default"),
        QueueCounts(2, 2, 0, 250),
        "the counts with one retried job",
    )
    for running in bench.claim(2):
        bench.settle(running, done())
    equal(
        bench.ledger.counts("default"),
        QueueCounts(0, 2, 0, None),
        "the counts with only delayed jobs",
    )


def check_counts_of_tenants(bench: LedgerBench) -> None:
    """Check that the jobs of a tenant are counted apart from those of others, by queue.

    Jobs that are being published are no load, but make their queue one of the tenant's.
    """
    equal(bench.ledger.tenant_counts("a"), {}, "the counts of an unknown tenant")
    east = bench.submit(tenant="a", region="east", priority=0)
    bench.submit(tenant="a", region="east", queue="other")
    bench.submit_many(3, tenant="b", region="west")
    bench.submit(tenant="b", queue="of b")
    bench.advance(500)
    bench.submit(tenant="a")
    bench.submit(tenant="a", delay_ms=10_000)
    bench.advance(250)
    default = QueueCounts(2, 1, 0, 750, {"east": 1})
    other = QueueCounts(1, 0, 0, 750, {"east": 1})
    equal(bench.ledger.tenant_counts("a"), {"default": default, "other": other}, "the counts of tenant a")
    equal(bench.ledger.counts("default", tenant="a"), default, "the counts of tenant a in a queue")
    equal(bench.ledger.counts("of b", tenant="a"), QueueCounts(), "the counts of a in a queue of b")
    equal(bench.ledger.counts("default").due, 5, "the due jobs of all tenants")
    equal(bench.claim_one().id, east.id, "the claimed job")
    equal(bench.claim_one().spec.tenant, "b", "the tenant of the next claimed job")
    bench.claim_one(queues=["of b"])
    bench.advance(20_000)
    default = QueueCounts(2, 0, 1, 20_250)
    equal(bench.ledger.counts("default", tenant="a"), default, "the counts with a running job")
    bench.submit(tenant="a", queue="published", output_uri="s3://box/out", key="K")
    bench.settle(bench.claim_one(queues=["published"]), done())
    ended = bench.submit(tenant="a", queue="ended")
    bench.ledger.cancel(ended.id)
    found = bench.ledger.tenant_counts("a")
    equal(sorted(found), ["default", "other", "published"], "the queues with unfinished jobs of tenant a")
    equal(found["published"], QueueCounts(), "the counts of a queue with a job that is being published")


def check_delete_queue(bench: LedgerBench) -> None:
    """Check that only a queue without unfinished jobs is deleted, and that the next job creates it again.

    Its ended jobs stay; one that is requeued creates the queue, too.
    """
    equal(bench.ledger.delete_queue("unknown"), False, "the deletion of an unknown queue")
    ended = bench.submit(queue="q", output_uri="s3://box/out", key="K")
    bench.ledger.set_queue(QueueSettings("q", pending_max=7))
    bench.submit(queue="other")
    _expect_queue_in_use(bench, "a pending job")
    claimed = bench.claim_one(queues=["q"])
    _expect_queue_in_use(bench, "a running job")
    bench.settle(claimed, Failed(OOPS, retry_ms=1_000))
    _expect_queue_in_use(bench, "a job that waits for its next attempt")
    bench.advance(1_000)
    claimed = bench.claim_one(queues=["q"])
    bench.settle(claimed, done())
    _expect_queue_in_use(bench, "a job that is being published")
    bench.ledger.mark_published(ended.id, claimed.lease, "s3://box/out/K.out")
    equal(bench.ledger.queue("q").pending_max, 7, "the limit of the queue after refused deletions")
    equal(bench.ledger.delete_queue("q"), True, "the deletion of a queue with an ended job")
    equal(bench.ledger.queue("q"), QueueSettings("q"), "the settings of the deleted queue")
    equal(bench.ledger.queues(), [QueueSettings("other")], "the queues after the deletion")
    equal(bench.ledger.delete_queue("q"), False, "the second deletion")
    equal(bench.ledger.get(ended.id).spec.queue, "q", "the queue of the ended job")
    bench.ledger.requeue(ended.id)
    equal([q.name for q in bench.ledger.queues()], ["other", "q"], "the queues after a requeued job")
    bench.ledger.cancel(ended.id)
    bench.ledger.delete_queue("q")
    new = bench.submit(queue="q")
    equal([q.name for q in bench.ledger.queues()], ["other", "q"], "the queues after a new job")
    equal(bench.claim_one(queues=["q"]).id, new.id, "the claimed job of the queue")


def _expect_queue_in_use(bench: LedgerBench, having: str) -> None:
    raises(QueueInUseError, lambda: bench.ledger.delete_queue("q"), f"deleting a queue with {having}")


def check_count_pending(bench: LedgerBench) -> None:
    """Check that a tenant's pending jobs are counted over all queues, up to the limit.

    Running and ended jobs do not count.
    """
    replies = bench.ledger.submit([NewJob(tenant="a", queue=f"q{n % 2}", delay_ms=n) for n in range(6)])
    bench.submit(tenant="b")
    bench.claim_one(queues=["q0"])
    bench.ledger.cancel(accepted(replies[1]).job.id)
    found = [bench.ledger.count_pending("a", limit=at_most) for at_most in (100, 4, 3, 0)]
    equal(found, [4, 4, 3, 0], "the pending jobs of a tenant, counted up to 100, 4, 3 and 0")
    equal(bench.ledger.count_pending("unknown", limit=5), 0, "the pending jobs of an unknown tenant")


def check_states_account_for_all_jobs(bench: LedgerBench) -> None:
    """Check that every job is listed in exactly one state after any changes.

    The counts add up to the submitted jobs.
    """
    jobs = bench.submit_many(12)
    for number, job in enumerate(bench.claim(9)):
        outcomes = (done(), Failed(OOPS), Failed(OOPS, retry_ms=9_000), None)
        outcome = outcomes[number % 4]
        if outcome is not None:
            bench.settle(job, outcome)
    bench.ledger.cancel(bench.submit().id)
    bench.advance(70_000)
    bench.maintain()
    by_state = {
        state: len(bench.ledger.find(JobFilter(states=frozenset({state})), limit=100).jobs)
        for state in JobState
    }
    equal(sum(by_state.values()), 13, f"the jobs of all states together, {by_state}")
    equal(len(bench.ledger.get_many(ids(jobs))), 12, "the stored jobs")
    counts = bench.ledger.counts("default")
    equal(counts.due + counts.later, by_state[JobState.PENDING], "the counted pending jobs")
    equal(counts.running, by_state[JobState.RUNNING], "the counted running jobs")
