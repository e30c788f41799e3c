"""Checks of submission: replies in order, idempotency keys, and queues that refuse jobs."""

from collections.abc import Sequence
from dataclasses import replace

from headrace.core.errors import IdempotencyError, QueueClosedError, QueueFullError
from headrace.jobs.job import NewJob
from headrace.jobs.ledger import JobFilter, QueueSettings, SubmitReply
from headrace.jobs.state import JobState
from headrace.testing.expect import equal, short_repr, true
from headrace.testing.job_checks.bench import (
    THREADS,
    LedgerBench,
    accepted,
    ids,
    run_concurrently,
    without_id,
)

_FULL_JOB = NewJob(
    model="m@3",
    kind="transform",
    queue="long",
    input_uri="memory://box/ünï in/",
    content_type="text/csv",
    accept="application/json",
    output_uri="memory://box/out/",
    key="K-1",
    options={"rows": [1, 2.5, None, True], "nested": {"a": "日本"}, "large": 2**53},
    priority=0,
    delay_ms=1_500,
    attempts_max=7,
    time_limit_s=0.25,
    time_to_live_s=60.0,
    deadline_s=3_600.0,
    idempotency_key="key",
    body_digest="digest",
    correlation_id="c-1",
    trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    tags={"team": "blue", "ünï": "日本"},
    notify=(
        {"kind": "webhook", "url": "https://example.org/hook"},
        {"kind": "email", "to": ["a@example.org"]},
    ),
    tenant="t",
    owned_input=True,
)


def check_submit_keeps_all_fields(bench: LedgerBench) -> None:
    """Check that a submitted job keeps every field.

    Times are the ledger's, and delays count from now.
    """
    now_ms = bench.clock.now_ms()
    (reply,) = bench.ledger.submit([_FULL_JOB])
    true(accepted(reply).created, "a new submission is reported as known")
    for job in (accepted(reply).job, bench.ledger.get(accepted(reply).job.id)):
        equal(without_id(job.spec), _FULL_JOB, "the stored specification")
        equal(job.state, JobState.PENDING, "a new job's state")
        equal((job.attempt, job.lease, job.crashes), (0, 0, 0), "a new job's attempts, leases and crashes")
        equal((job.created_at_ms, job.due_at_ms), (now_ms, now_ms + 1_500), "the creation and due times")
        equal(
            (job.expires_at_ms, job.deadline_at_ms),
            (now_ms + 60_000, now_ms + 3_600_000),
            "its expiry and deadline",
        )
        equal(
            (job.started_at_ms, job.ended_at_ms, job.lease_until_ms),
            (None, None, None),
            "the start, end and lease end of a new job",
        )
        equal(
            (job.result, job.failure, job.cancel_requested),
            (None, None, False),
            "the result, failure and cancellation of a new job",
        )
    equal([q.name for q in bench.ledger.queues()], ["long"], "the queues after a job for an unknown one")


def check_submit_replies_in_order(bench: LedgerBench) -> None:
    """Check that each of many submissions has its own job and id, at its index in the reply."""
    names = [f"model-{number}" for number in range(25)]
    replies = [accepted(reply) for reply in bench.ledger.submit([NewJob(model=name) for name in names])]
    equal([reply.job.spec.model for reply in replies], names, "the order of replies")
    equal(len({reply.job.id for reply in replies}), 25, "the number of different ids")
    equal(bench.ledger.counts("default").due, 25, "the pending jobs")
    equal(bench.ledger.submit([]), [], "the reply to no submissions")


def check_submitted_ids(bench: LedgerBench) -> None:
    """Check that a submitted id is kept.

    Repeating the submission returns the same job, so a lost reply is harmless.
    """
    new = NewJob(model="m", id="01a3185c-5000-7849-aacf-f0401441a1cd")
    first, again = (accepted(bench.ledger.submit([new])[0]) for _ in range(2))
    equal((first.job.id, again.job.id), (new.id, new.id), "the ids of a job with a submitted id")
    equal((first.created, again.created), (True, False), "created, of each submission")
    equal(bench.ledger.counts("default").due, 1, "the pending jobs")


def check_idempotency_keys(bench: LedgerBench) -> None:
    """Check that a key stands for its job until the job is deleted, also after its end.

    Each tenant has its own keys.
    """
    new = NewJob(model="m", idempotency_key="key", body_digest="d", tenant="a")
    first = accepted(bench.ledger.submit([new])[0])
    true(first.created, "the first submission under a key created no job")
    for state in (JobState.PENDING, JobState.CANCELLED):
        bench.advance(3_600_000)
        again = accepted(bench.ledger.submit([new])[0])
        equal((again.job.id, again.created), (first.job.id, False), f"the key again, its job {state.value}")
        equal(again.job.state, state, "the state of the job under a known key")
        bench.ledger.cancel(first.job.id)
    others = bench.ledger.submit([replace(new, tenant="b"), replace(new, tenant="")])
    true(all(accepted(reply).created for reply in others), "a key is shared between tenants")
    bench.ledger.delete(first.job.id)
    after_delete = accepted(bench.ledger.submit([replace(new, body_digest="other")])[0])
    true(after_delete.created, "a key outlives its deleted job")
    bench.ledger.cancel(after_delete.job.id)
    bench.ledger.forget([after_delete.job.id])
    true(accepted(bench.ledger.submit([new])[0]).created, "a key outlives its forgotten job")


def check_empty_key_is_not_shared(bench: LedgerBench) -> None:
    """Check that submissions without a key are different jobs, also with equal digests."""
    replies = bench.ledger.submit([NewJob(model="m", body_digest="same")] * 3)
    equal([accepted(reply).created for reply in replies], [True] * 3, "created, of the submissions")


def check_key_with_another_digest(bench: LedgerBench) -> None:
    """Check that a key with another digest is refused with the id of its job.

    The rest of the call is queued.
    """
    known = bench.submit(idempotency_key="key", body_digest="one")
    replies = bench.ledger.submit(
        [NewJob(model="a"), NewJob(idempotency_key="key", body_digest="two"), NewJob(model="b")]
    )
    equal(
        _reply_types(replies), [SubmitReply, IdempotencyError, SubmitReply], "the replies around a used key"
    )
    refusal = replies[1]
    true(
        isinstance(refusal, IdempotencyError) and refusal.job_id == known.id, "the refusal names another job"
    )
    equal(bench.ledger.counts("default").due, 3, "the pending jobs")


def check_keys_within_one_call(bench: LedgerBench) -> None:
    """Check that two submissions of one call may share a key and a job.

    With another digest the second is refused.
    """
    one, two = NewJob(model="m", idempotency_key="key", body_digest="one"), NewJob(model="n")
    replies = bench.ledger.submit([one, two, one, replace(one, body_digest="two")])
    equal(
        _reply_types(replies),
        [SubmitReply] * 3 + [IdempotencyError],
        "the replies to a repeated key",
    )
    first, other, again = (accepted(reply) for reply in replies[:3])
    equal((first.created, other.created, again.created), (True, True, False), "created, of the submissions")
    equal(again.job.id, first.job.id, "the job of a repeated key")
    equal(bench.ledger.counts("default").due, 2, "the pending jobs")


def check_key_race(bench: LedgerBench) -> None:
    """Check that concurrent submissions under one key create one job and all return it."""
    ledgers = (bench.ledger, bench.start_ledger())
    for number in range(5):
        new = NewJob(model="m", idempotency_key=f"key-{number}", body_digest="d")
        replies = run_concurrently(
            (lambda ledger=ledgers[n % 2], new=new: accepted(ledger.submit([new])[0])) for n in range(THREADS)
        )
        equal(sum(reply.created for reply in replies), 1, "the number of submissions that created the job")
        equal(len({reply.job.id for reply in replies}), 1, "the number of jobs under one key")
    equal(bench.ledger.counts("default").due, 5, "the pending jobs")


def check_draining_queue(bench: LedgerBench) -> None:
    """Check that a draining queue refuses new jobs in the reply.

    Its jobs are still claimed, and known keys still work.
    """
    held = bench.submit(queue="old", idempotency_key="key")
    bench.ledger.set_queue(QueueSettings("old", draining=True))
    replies = bench.ledger.submit(
        [NewJob(queue="old"), NewJob(queue="new"), NewJob(queue="old", model="m", idempotency_key="key")]
    )
    equal(
        _reply_types(replies),
        [QueueClosedError, SubmitReply, SubmitReply],
        "the replies during draining",
    )
    equal(accepted(replies[2]).job.id, held.id, "the job of a key from before draining")
    equal(ids(bench.claim(5, queues=["old"])), [held.id], "the claimed jobs of a draining queue")
    bench.ledger.set_queue(QueueSettings("old"))
    bench.submit(queue="old")


def check_full_queue(bench: LedgerBench) -> None:
    """Check that a queue accepts jobs up to `pending_max` pending ones of a tenant, also within one call.

    Delayed jobs count, running jobs and those of other tenants do not.
    """
    bench.ledger.set_queue(QueueSettings("small", pending_max=3))
    small, other = NewJob(queue="small"), NewJob(queue="other")
    replies = bench.ledger.submit([small, replace(small, delay_ms=9_000), other, small, small, other, small])
    wanted = [SubmitReply] * 4 + [QueueFullError, SubmitReply, QueueFullError]
    equal(_reply_types(replies), wanted, "the replies as a queue of three fills up")
    full = replies[-1]
    true(
        isinstance(full, QueueFullError) and full.retry_after_s > 0,
        "a full queue has no retry_after_s",
    )
    equal(_reply_types(bench.ledger.submit([small])), [QueueFullError], "the reply of a full queue")
    bench.claim(1, queues=["small"])
    equal(
        _reply_types(bench.ledger.submit([small, small])),
        [SubmitReply, QueueFullError],
        "the replies after a claim",
    )
    of_other = [replace(small, tenant="other"), small, *[replace(small, tenant="other")] * 3]
    equal(
        _reply_types(bench.ledger.submit(of_other)),
        [SubmitReply, QueueFullError, SubmitReply, SubmitReply, QueueFullError],
        "the replies to another tenant at a queue that one tenant has filled",
    )
    bench.ledger.set_queue(QueueSettings("small"))
    equal(
        _reply_types(bench.ledger.submit([small] * 5)),
        [SubmitReply] * 5,
        "the replies of a queue without a limit",
    )


def check_all_or_nothing(bench: LedgerBench) -> None:
    """Check that one refused job keeps all others of an `all_or_nothing` call out of the ledger."""
    ledger = bench.ledger
    ledger.submit([NewJob(id="earlier", idempotency_key="k", body_digest="1")])
    ledger.set_queue(QueueSettings("closed", draining=True))
    jobs = [
        NewJob(id="new", idempotency_key="n", tags={"day": "1"}),
        NewJob(id="named", queue="other", output_uri="memory://box/", key="K"),
        NewJob(id="refused", queue="closed"),
        NewJob(id="known", idempotency_key="k", body_digest="1"),
    ]
    before = ledger.counters()
    replies = ledger.submit(jobs, all_or_nothing=True)
    true(isinstance(replies[2], QueueClosedError), f"the refused job has the reply {short_repr(replies[2])}")
    equal(sorted(ledger.get_many([job.id for job in jobs])), [], "the jobs of a refused call")
    equal(ids(ledger.find(JobFilter(tags={"day": "1"})).jobs), [], "the tags of a refused call")
    equal([queue.name for queue in ledger.queues()], ["closed", "default"], "the queues afterwards")
    equal(ledger.counters(), before, "the counters after a refused call")

    del jobs[2]
    created = [accepted(reply).created for reply in ledger.submit(jobs, all_or_nothing=True)]
    equal(created, [True, True, False], "the new jobs of a call without a refusal")
    equal(
        sorted(ledger.get_many(["new", "named", "known", "earlier"])), ["earlier", "named", "new"], "all jobs"
    )
    equal(ledger.get("named").spec.output_name, "", "the output name, which no refused job owns")


def check_full_queue_returns_known_keys(bench: LedgerBench) -> None:
    """Check that a known key returns its job from a full queue.

    A refused submission leaves its key unused.
    """
    bench.ledger.set_queue(QueueSettings("small", pending_max=1))
    known = NewJob(queue="small", idempotency_key="known")
    refused = replace(known, idempotency_key="refused")
    replies = bench.ledger.submit([known, known, refused, refused])
    equal(
        _reply_types(replies),
        [SubmitReply] * 2 + [QueueFullError] * 2,
        "the replies of a queue with a limit of one",
    )
    bench.ledger.set_queue(QueueSettings("small"))
    true(accepted(bench.ledger.submit([refused])[0]).created, "a refused submission has used up its key")


def check_concurrent_submission(bench: LedgerBench) -> None:
    """Check that all submissions of concurrent threads are stored, each with its own jobs."""
    ledgers = (bench.ledger, bench.start_ledger())

    def submit(number: int) -> list[str]:
        replies = ledgers[number % 2].submit([NewJob(model=f"m-{number}")] * 10)
        equal(
            {accepted(a).job.spec.model for a in replies}, {f"m-{number}"}, "the jobs of one thread's reply"
        )
        return [accepted(reply).job.id for reply in replies]

    found = run_concurrently((lambda number=number: submit(number)) for number in range(THREADS))
    every = [job_id for reply in found for job_id in reply]
    equal(len(set(every)), 10 * THREADS, "the number of ids")
    equal(set(bench.ledger.get_many(every)), set(every), "the stored jobs")
    listed = bench.ledger.find(JobFilter(), limit=1000).jobs
    equal(sorted(ids(listed)), sorted(every), "the listed jobs")


def _reply_types(replies: Sequence[SubmitReply | Exception]) -> list[type]:
    for reply in replies:
        if isinstance(reply, Exception) and not str(reply):
            raise AssertionError(f"an error has no message: {short_repr(reply)}")
    return [type(reply) for reply in replies]
