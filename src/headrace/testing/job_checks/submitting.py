"""What submitting promises: answers in order, keys, and queues that refuse."""

from collections.abc import Sequence
from dataclasses import replace

from headrace.core.errors import IdempotencyError, QueueClosedError, QueueFullError
from headrace.jobs.job import NewJob
from headrace.jobs.ledger import JobFilter, QueueSettings, Submitted
from headrace.jobs.state import JobState
from headrace.testing.expect import equal, shown, true
from headrace.testing.job_checks.bench import THREADS, LedgerBench, accepted, at_once, ids, without_id

_FULL = NewJob(
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


def check_submit_keeps_all(bench: LedgerBench) -> None:
    """What was submitted comes back whole, of every field; times are the ledger's, delays are counted from now."""
    now_ms = bench.clock.now_ms()
    (answer,) = bench.ledger.submit([_FULL])
    true(accepted(answer).created, "a new submission is said to be an old one")
    for job in (accepted(answer).job, bench.ledger.get(accepted(answer).job.id)):
        equal(without_id(job.spec), _FULL, "the specification that comes back")
        equal(job.state, JobState.PENDING, "a new job's state")
        equal((job.attempt, job.lease, job.crashes), (0, 0, 0), "a new job's attempts, leases and crashes")
        equal((job.created_at_ms, job.due_at_ms), (now_ms, now_ms + 1_500), "when it was made, and is due")
        equal(
            (job.expires_at_ms, job.deadline_at_ms), (now_ms + 60_000, now_ms + 3_600_000), "its last times"
        )
        equal(
            (job.started_at_ms, job.ended_at_ms, job.lease_until_ms), (None, None, None), "times yet to come"
        )
        equal((job.result, job.failure, job.cancel_requested), (None, None, False), "what is yet to come")
    equal([q.name for q in bench.ledger.queues()], ["long"], "the queues after a job for an unknown one")


def check_submit_answers_in_order(bench: LedgerBench) -> None:
    """Each of many submissions has its own job, under an id of its own, at its place in the answer."""
    names = [f"model-{number}" for number in range(25)]
    answers = [accepted(answer) for answer in bench.ledger.submit([NewJob(model=name) for name in names])]
    equal([answer.job.spec.model for answer in answers], names, "the order of answers")
    equal(len({answer.job.id for answer in answers}), 25, "the number of different ids")
    equal(bench.ledger.counts("default").due, 25, "the jobs that wait")
    equal(bench.ledger.submit([]), [], "the answer to no submissions")


def check_given_ids(bench: LedgerBench) -> None:
    """An id that was given is kept; the same submission again is the same job, since a lost answer is asked for again."""
    new = NewJob(model="m", id="01a3185c-5000-7849-aacf-f0401441a1cd")
    first, again = (accepted(bench.ledger.submit([new])[0]) for _ in range(2))
    equal((first.job.id, again.job.id), (new.id, new.id), "the ids of a job whose id was given")
    equal((first.created, again.created), (True, False), "whether each submission made it")
    equal(bench.ledger.counts("default").due, 1, "the jobs that wait")


def check_idempotency_keys(bench: LedgerBench) -> None:
    """A key stands for its job as long as there is a row, also after its end; it is a tenant's own."""
    new = NewJob(model="m", idempotency_key="key", body_digest="d", tenant="a")
    first = accepted(bench.ledger.submit([new])[0])
    true(first.created, "the first submission under a key made no job")
    for state in (JobState.PENDING, JobState.CANCELLED):
        bench.later(3_600_000)
        again = accepted(bench.ledger.submit([new])[0])
        equal((again.job.id, again.created), (first.job.id, False), f"the key again, its job {state.value}")
        equal(again.job.state, state, "the job that a key stands for is not shown as it is")
        bench.ledger.cancel(first.job.id)
    others = bench.ledger.submit([replace(new, tenant="b"), replace(new, tenant="")])
    true(all(accepted(answer).created for answer in others), "a key is shared between tenants")
    bench.ledger.delete(first.job.id)
    after_delete = accepted(bench.ledger.submit([replace(new, body_digest="other")])[0])
    true(after_delete.created, "a key outlives its deleted job")
    bench.ledger.cancel(after_delete.job.id)
    bench.ledger.forget([after_delete.job.id])
    true(accepted(bench.ledger.submit([new])[0]).created, "a key outlives its forgotten job")


def check_no_key_is_no_key(bench: LedgerBench) -> None:
    """Submissions without a key are never taken for each other, whatever their digests."""
    answers = bench.ledger.submit([NewJob(model="m", body_digest="same")] * 3)
    equal(
        [accepted(answer).created for answer in answers], [True] * 3, "which of three submissions made a job"
    )


def check_key_with_another_digest(bench: LedgerBench) -> None:
    """A key with another body is refused, naming the job it stands for; the rest of the call is queued all the same."""
    known = bench.submit(idempotency_key="key", body_digest="one")
    answers = bench.ledger.submit(
        [NewJob(model="a"), NewJob(idempotency_key="key", body_digest="two"), NewJob(model="b")]
    )
    equal(_kinds(answers), [Submitted, IdempotencyError, Submitted], "the answers around a used key")
    refusal = answers[1]
    true(
        isinstance(refusal, IdempotencyError) and refusal.job_id == known.id, "the refusal names another job"
    )
    equal(bench.ledger.counts("default").due, 3, "the jobs that wait")


def check_keys_within_one_call(bench: LedgerBench) -> None:
    """Two of one call may share a key: one job. With another digest the second is refused."""
    one, two = NewJob(model="m", idempotency_key="key", body_digest="one"), NewJob(model="n")
    answers = bench.ledger.submit([one, two, one, replace(one, body_digest="two")])
    equal(_kinds(answers), [Submitted] * 3 + [IdempotencyError], "the answers of a call that repeats a key")
    first, other, again = (accepted(answer) for answer in answers[:3])
    equal((first.created, other.created, again.created), (True, True, False), "which submissions made a job")
    equal(again.job.id, first.job.id, "the job of a repeated key")
    equal(bench.ledger.counts("default").due, 2, "the jobs that wait")


def check_key_race(bench: LedgerBench) -> None:
    """Of many threads that submit under one key at once, one makes the job, and all are answered with it."""
    ledgers = (bench.ledger, bench.another())
    for number in range(5):
        new = NewJob(model="m", idempotency_key=f"key-{number}", body_digest="d")
        answers = at_once(
            (lambda ledger=ledgers[n % 2], new=new: accepted(ledger.submit([new])[0])) for n in range(THREADS)
        )
        equal(sum(answer.created for answer in answers), 1, "the number of submissions that made the job")
        equal(len({answer.job.id for answer in answers}), 1, "the number of jobs under one key")
    equal(bench.ledger.counts("default").due, 5, "the jobs that wait")


def check_draining_queue(bench: LedgerBench) -> None:
    """A draining queue takes none, which stands in the answer; it gives out what it holds, and known keys answer."""
    held = bench.submit(queue="old", idempotency_key="key")
    bench.ledger.set_queue(QueueSettings("old", draining=True))
    answers = bench.ledger.submit(
        [NewJob(queue="old"), NewJob(queue="new"), NewJob(queue="old", model="m", idempotency_key="key")]
    )
    equal(_kinds(answers), [QueueClosedError, Submitted, Submitted], "the answers while one queue is drained")
    equal(accepted(answers[2]).job.id, held.id, "the job of a key that was used before the queue was drained")
    equal(ids(bench.claim(5, queues=["old"])), [held.id], "the jobs given out by a draining queue")
    bench.ledger.set_queue(QueueSettings("old"))
    bench.submit(queue="old")


def check_full_queue(bench: LedgerBench) -> None:
    """A queue takes jobs until `pending_max` wait, within one call too; those that sleep wait as well, running ones do not."""
    bench.ledger.set_queue(QueueSettings("small", pending_max=3))
    small, other = NewJob(queue="small"), NewJob(queue="other")
    answers = bench.ledger.submit([small, replace(small, delay_ms=9_000), other, small, small, other, small])
    wanted = [Submitted] * 4 + [QueueFullError, Submitted, QueueFullError]
    equal(_kinds(answers), wanted, "the answers as a queue of three fills up")
    full = answers[-1]
    true(
        isinstance(full, QueueFullError) and full.retry_after_s > 0,
        "a full queue does not say when to ask again",
    )
    equal(_kinds(bench.ledger.submit([small])), [QueueFullError], "the answer of a full queue")
    bench.claim(1, queues=["small"])
    equal(
        _kinds(bench.ledger.submit([small, small])),
        [Submitted, QueueFullError],
        "answers after one was taken",
    )
    bench.ledger.set_queue(QueueSettings("small"))
    equal(_kinds(bench.ledger.submit([small] * 5)), [Submitted] * 5, "answers of a queue without a bound")


def check_full_queue_answers_known_keys(bench: LedgerBench) -> None:
    """Whoever asks again under a known key gets the job, full or not; one refused for lack of room has used no key."""
    bench.ledger.set_queue(QueueSettings("small", pending_max=1))
    known = NewJob(queue="small", idempotency_key="known")
    refused = replace(known, idempotency_key="refused")
    answers = bench.ledger.submit([known, known, refused, refused])
    equal(_kinds(answers), [Submitted] * 2 + [QueueFullError] * 2, "the answers of a queue with room for one")
    bench.ledger.set_queue(QueueSettings("small"))
    true(accepted(bench.ledger.submit([refused])[0]).created, "a refused submission has used up its key")


def check_submitting_from_many_threads(bench: LedgerBench) -> None:
    """What many threads submit at once is all there, each answer its own."""
    ledgers = (bench.ledger, bench.another())

    def submit(number: int) -> list[str]:
        answers = ledgers[number % 2].submit([NewJob(model=f"m-{number}")] * 10)
        equal(
            {accepted(a).job.spec.model for a in answers}, {f"m-{number}"}, "the jobs of one thread's answer"
        )
        return [accepted(answer).job.id for answer in answers]

    found = at_once((lambda number=number: submit(number)) for number in range(THREADS))
    every = [job_id for answer in found for job_id in answer]
    equal(len(set(every)), 10 * THREADS, "the number of ids")
    equal(set(bench.ledger.get_many(every)), set(every), "the jobs that are there")
    listed = bench.ledger.find(JobFilter(), limit=1000).jobs
    equal(sorted(ids(listed)), sorted(every), "the jobs that are listed")


def _kinds(answers: Sequence[Submitted | Exception]) -> list[type]:
    for answer in answers:
        if isinstance(answer, Exception) and not str(answer):
            raise AssertionError(f"a refusal says nothing: {shown(answer)}")
    return [type(answer) for answer in answers]


SUBMITTING_CHECKS = (
    check_submit_keeps_all,
    check_submit_answers_in_order,
    check_given_ids,
    check_idempotency_keys,
    check_no_key_is_no_key,
    check_key_with_another_digest,
    check_keys_within_one_call,
    check_key_race,
    check_draining_queue,
    check_full_queue,
    check_full_queue_answers_known_keys,
    check_submitting_from_many_threads,
)
