"""Checks of publications, and of the owners of output names."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from headrace.core.errors import JobStateError, OutputTakenError
from headrace.jobs.history import HistoryEvent
from headrace.jobs.job import Completed, Failed, IfExists, Job, JobFailure, NewJob, ResultRef
from headrace.jobs.ledger import (
    OUTPUT_NAMES_KEPT_DAYS,
    PUBLISH_DELAY_MAX_MS,
    PUBLISH_DELAY_MS,
    PUBLISH_FIRST_MS,
    JobFilter,
    SubmitReply,
)
from headrace.jobs.paths import output_name
from headrace.jobs.state import Cause, JobState
from headrace.testing.expect import equal, raises, true
from headrace.testing.job_checks.bench import OOPS, THREADS, LedgerBench, done, ids

OUT: Final = "memory://out/"
AWAY: Final = JobFailure(Cause.UNAVAILABLE, "the store is away", "UnavailableError")


def check_publishing(bench: LedgerBench) -> None:
    """Check that a job with an output is completed by its publication, under its last lease only."""
    job = _submit_running(bench, key="K")
    publish = bench.ledger.mark_published
    equal(publish(job.id, job.lease, "memory://x"), False, "publishing the result of a running job")
    true(bench.settle(job, done("memory://box/1")), "the completion of a running job was refused")
    after = bench.reload(job)
    equal((after.state, after.ended_at_ms), (JobState.PUBLISHING, None), "the state and end before")
    equal(after.result, done("memory://box/1").result, "the result before its publication")
    equal(publish(job.id, job.lease - 1, "memory://x"), False, "publishing for another lease")
    equal(publish("unknown", 1, "memory://x"), False, "publishing for an unknown job")
    equal(bench.reload(job), after, "the job after refused publications")
    now_ms = bench.advance(1_234)
    for _ in range(2):
        equal(publish(job.id, job.lease, "memory://out/K.out", "sha256:0"), True, "the publication")
    wanted = ResultRef("memory://box/1", 3, "text/csv", "memory://out/K.out", "sha256:0")
    after = bench.reload(job)
    equal((after.state, after.ended_at_ms), (JobState.COMPLETED, now_ms), "the state and end")
    equal((after.result, after.failure), (wanted, None), "the published result")
    equal(_refuse(bench, key="K").job_id, job.id, "the owner, once it is completed")
    bench.ledger.requeue(job.id)
    equal(publish(job.id, job.lease, "memory://x"), False, "publishing after requeuing")


def check_publishing_other_ends(bench: LedgerBench) -> None:
    """Check that a failure, cancellation or expiry is recorded at once, and its object later."""
    for state in (JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED):
        ended = bench.submit_ended(state, queue=state.value, output_uri=OUT)
        where = f"memory://out/{state.value}.error"
        true(bench.ledger.mark_published(ended.id, ended.lease, where), f"publishing a {state.value} job")
        after = bench.reload(ended)
        equal((after.state, after.failure and after.failure.uri), (state, where), "the published failure")
        bench.ledger.mark_publish_failed(ended.id, ended.lease, AWAY, final=True)
        equal(bench.reload(ended), after, f"a {state.value} job after another process failed to publish it")


def check_nothing_to_publish(bench: LedgerBench) -> None:
    """Check that jobs that headrace does not publish are completed at once."""
    for spec in ({}, {"output_uri": OUT, "kind": "transform"}, {"output_uri": OUT, "kind": "stream"}):
        job = bench.submit_running(**spec)
        bench.settle(job, done())
        equal(bench.state(job), JobState.COMPLETED, f"the state of a job with {spec}")
    bench.advance(PUBLISH_FIRST_MS)
    equal(bench.ledger.claim_publications(9), [], "the publications of these jobs")


def check_publication_failures(bench: LedgerBench) -> None:
    """Check that a publishing job shows its last failure, and ends with the final one."""
    job = _submit_publishing(bench, key="K")
    record = bench.ledger.mark_publish_failed
    equal(record(job.id, job.lease + 1, AWAY, final=True), False, "a failure for another lease")
    equal(record("unknown", 1, AWAY, final=True), False, "a failure for an unknown job")
    true(record(job.id, job.lease, AWAY, final=False), "a failure that is retried")
    after = bench.reload(job)
    equal((after.state, after.failure), (JobState.PUBLISHING, AWAY), "the job after a failure")
    now_ms = bench.advance(5)
    true(record(job.id, job.lease, OOPS, final=True), "the final failure")
    after = bench.reload(job)
    equal((after.state, after.failure), (JobState.PUBLISH_FAILED, OOPS), "the job after the final failure")
    equal((after.result, after.ended_at_ms), (done().result, now_ms), "its result and end")
    equal(_refuse(bench, key="K").job_id, job.id, "the owner, although its publication failed")
    bench.advance(PUBLISH_DELAY_MAX_MS)
    equal(bench.ledger.claim_publications(9), [], "the publications after the final failure")
    equal(record(job.id, job.lease, AWAY, final=False), False, "a failure after the final one")
    equal(bench.ledger.mark_published(job.id, job.lease, "memory://x"), False, "a late publication")
    equal(bench.reload(job), after, "the job after late reports")


def check_republishing(bench: LedgerBench) -> None:
    """Check that a failed publication is repeated at once, without another attempt."""
    job = _submit_publishing(bench, key="K")
    raises(JobStateError, lambda: bench.ledger.republish(job.id), "republishing a publishing job")
    bench.ledger.mark_publish_failed(job.id, job.lease, OOPS, final=True)
    again = bench.ledger.republish(job.id, by="ann")
    equal((again.state, again.ended_at_ms), (JobState.PUBLISHING, None), "the republished job")
    equal((again.lease, again.attempt, again.result), (job.lease, job.attempt, job.result), "its attempt")
    events = [HistoryEvent.PUBLISH_FAILED, HistoryEvent.REPUBLISHED]
    equal(bench.events(job), events, "its history")
    equal(ids(bench.ledger.claim_publications(9)), [job.id], "the publications that are due at once")
    true(bench.ledger.mark_published(job.id, job.lease, "memory://out/K.out"), "the publication")
    raises(JobStateError, lambda: bench.ledger.republish(job.id), "republishing a completed job")


def check_claim_publications(bench: LedgerBench) -> None:
    """Check that ends are due after the worker's own time, and then again after growing delays."""
    jobs = [_submit_publishing(bench), _fail(bench), _submit_publishing(bench)]
    _fail(bench, kind="stream")
    bench.ledger.cancel(bench.submit(output_uri=OUT).id)
    equal(bench.ledger.claim_publications(9), [], "the publications in the time of the worker")
    bench.advance(PUBLISH_FIRST_MS)
    first = bench.ledger.claim_publications(2)
    rest = bench.start_ledger().claim_publications(9)
    equal(len(first), 2, "the limited publications")
    equal(len(rest), 3, "the others, with a failed stream and a cancelled job")
    true(set(ids((*first, *rest))) >= set(ids(jobs)), "an end was not returned")
    equal([job.publish_tries for job in (*first, *rest)], [1] * 5, "their tries")
    for job in (*first, *rest):
        if job.id != jobs[0].id:
            bench.ledger.mark_published(job.id, job.lease, "memory://out/x")
    waits = [0] * 9
    for number in range(9):
        while not bench.ledger.claim_publications(9):
            bench.advance(PUBLISH_DELAY_MS // 2)
            waits[number] += PUBLISH_DELAY_MS // 2
    doubled = [min(PUBLISH_DELAY_MS * 2**n, PUBLISH_DELAY_MAX_MS) for n in range(9)]
    equal(waits, doubled, "the delays between publications in milliseconds")
    equal(bench.reload(jobs[0]).publish_tries, 10, "the tries")


def check_output_names(bench: LedgerBench) -> None:
    """Check that a name has one owner while its job has, or may have, a result."""
    first = bench.submit(output_uri=OUT, key="K", tenant="a")
    refused = _refuse(bench, key="K", tenant="a")
    equal((refused.key, refused.job_id), ("K", first.id), "the owner in the refusal")
    equal(len(bench.ledger.find(_EVERY).jobs), 1, "the jobs after a refusal")
    bench.submit(output_uri=OUT, key="L", tenant="a")
    bench.submit(output_uri="memory://out/below/", key="K", tenant="a")
    equal(_refuse(bench, output_uri="memory://out", key="K", tenant="a").job_id, first.id, "another spelling")
    for _ in range(2):
        bench.submit(output_uri=OUT, tenant="a")
    equal(_owner(bench, first), first.id, "the owner of the name")
    bench.ledger.cancel(first.id)
    second = bench.submit(output_uri=OUT, key="K", tenant="a")
    equal(_owner(bench, first), second.id, "the owner after a job without a result")
    raises(OutputTakenError, lambda: bench.ledger.requeue(first.id), "requeuing the first job")
    equal(bench.ledger.mark_published(first.id, first.lease, "memory://x"), False, "publishing the first job")
    bench.ledger.cancel(second.id)
    equal(bench.ledger.requeue(first.id).state, JobState.PENDING, "requeuing once the name is free")
    equal(_owner(bench, first), first.id, "the owner after requeuing")


def check_output_names_of_a_key(bench: LedgerBench) -> None:
    """Check that repeated submissions keep their job, and that a call has one owner of a name."""
    spec = {"output_uri": OUT, "key": "K", "idempotency_key": "i", "body_digest": "d"}
    first = bench.submit(**spec)
    equal(bench.submit(**spec).id, first.id, "the job of a repeated submission")
    new = NewJob(model="m", output_uri=OUT, key="L")
    replies = bench.ledger.submit([new] * 12)
    equal([isinstance(reply, SubmitReply) for reply in replies], [True] + [False] * 11, "the accepted jobs")
    keyed = NewJob(model="m", output_uri=OUT, key="L", idempotency_key="j", body_digest="d")
    other = NewJob(model="m", output_uri=OUT, key="other")
    *refused, accepted = bench.ledger.submit([*[keyed] * 12, other])
    equal({type(reply) for reply in refused}, {OutputTakenError}, "the refusals of one idempotency key")
    true(isinstance(accepted, SubmitReply), "a job beside refused ones was not accepted")


def check_output_names_of_tenants(bench: LedgerBench) -> None:
    """Check that no tenant takes the name of another's job, also after that was deleted."""
    policies: tuple[IfExists, ...] = ("fail", "replace", "version")
    mine = bench.submit_ended(JobState.FAILED, output_uri=OUT, key="K", tenant="a")
    for policy in policies:
        refused = _refuse(bench, key="K", tenant="b", if_exists=policy)
        equal(refused.job_id, "", "the owner in a refusal of another tenant")
    bench.ledger.delete(mine.id, tenant="a")
    for policy in policies:
        _refuse(bench, key="K", tenant="b", if_exists=policy)
    renamed = bench.submit(output_uri=OUT, key="K", tenant="b", if_exists="rename")
    equal(output_name(renamed.spec), f"K~{renamed.id}", "the name of a renamed output")
    again = bench.submit(output_uri=OUT, key="K", tenant="a")
    equal(output_name(again.spec), "K", "the name for the tenant of the deleted job")
    bench.ledger.delete(bench.ledger.cancel(again.id).id)
    bench.advance(OUTPUT_NAMES_KEPT_DAYS * 86_400_000 + 1)
    bench.ledger.delete(bench.ledger.cancel(bench.submit().id).id)
    bench.submit(output_uri=OUT, key="K", tenant="b")


def check_replacing_an_owner(bench: LedgerBench) -> None:
    """Check that a replacing job owns the name from its submission on, and the replaced one never again."""
    first = _submit_publishing(bench, key="K")
    second = bench.submit(output_uri=OUT, key="K", if_exists="replace")
    equal((output_name(second.spec), _owner(bench, first)), ("K", second.id), "the name and its owner")
    equal(bench.ledger.mark_published(first.id, first.lease, "memory://x"), False, "publishing the first")
    true(bench.ledger.mark_publish_failed(first.id, first.lease, OOPS, final=True), "its final failure")
    raises(OutputTakenError, lambda: bench.ledger.republish(first.id), "republishing the first")
    raises(OutputTakenError, lambda: bench.ledger.requeue(first.id), "requeuing the first")
    equal(bench.state(first), JobState.PUBLISH_FAILED, "its state")
    running = bench.claim_one()
    bench.settle(running, Completed(ResultRef("memory://box/2")))
    true(
        bench.ledger.mark_published(running.id, running.lease, "memory://out/K.out"), "publishing the second"
    )
    third = bench.submit(output_uri=OUT, key="K", if_exists="replace")
    equal(_owner(bench, second), third.id, "the owner after a completed one was replaced")


def check_versions_of_a_name(bench: LedgerBench) -> None:
    """Check that a version has a name of its own, and so has a key whose name belongs to another key."""
    first = bench.submit(output_uri=OUT, key="K")
    second = bench.submit(output_uri=OUT, key="K", if_exists="version")
    equal(output_name(second.spec), f"K~{second.id}", "the name of a version")
    equal(output_name(bench.reload(second).spec), f"K~{second.id}", "the stored name of a version")
    equal((_owner(bench, first), _owner(bench, second)), (first.id, second.id), "the owners")
    alone = bench.submit(output_uri=OUT, key="new", if_exists="version")
    equal(output_name(alone.spec), "new", "the name of a version without an owner")
    names = [output_name(bench.submit(output_uri=OUT, key=key, tenant=key).spec) for key in ("a/b", "a-b")]
    equal(names[0], "a-b", "the name of the first key")
    true(names[1].startswith("a-b~"), f"the name of another key is {names[1]}")
    _refuse(bench, key="a-b", tenant="a-b")
    bench.ledger.cancel(second.id)
    equal(bench.ledger.requeue(second.id).spec.output_name, f"K~{second.id}", "a requeued version's name")


def check_race_for_a_name(bench: LedgerBench) -> None:
    """Check that one of many concurrent submissions owns a name, and that replacements follow in a row."""
    ledgers = [bench.ledger, bench.start_ledger()]

    def submit(number: int, policy: IfExists) -> SubmitReply | Exception:
        new = NewJob(model="m", output_uri=OUT, key="K", if_exists=policy)
        return ledgers[number % 2].submit([new])[0]

    with ThreadPoolExecutor(THREADS) as pool:
        replies = list(pool.map(submit, range(THREADS), ["fail"] * THREADS))
        owners = [reply.job for reply in replies if isinstance(reply, SubmitReply)]
        equal(len(owners), 1, "the accepted jobs")
        replaced = list(pool.map(submit, range(THREADS), ["replace"] * THREADS))
    jobs = [reply.job.id for reply in replaced if isinstance(reply, SubmitReply)]
    equal(len(jobs), THREADS, "the accepted replacements")
    true(_owner(bench, owners[0]) in jobs, "the owner is none of the replacements")


_EVERY: Final = JobFilter()


def _submit_running(bench: LedgerBench, **spec: Any) -> Job:
    return bench.submit_running(**{"output_uri": OUT, **spec})


def _submit_publishing(bench: LedgerBench, **spec: Any) -> Job:
    job = _submit_running(bench, **spec)
    bench.settle(job, done())
    job = bench.reload(job)
    equal(job.state, JobState.PUBLISHING, "the prepared state")
    return job


def _fail(bench: LedgerBench, **spec: Any) -> Job:
    job = _submit_running(bench, **spec)
    bench.settle(job, Failed(OOPS))
    return bench.reload(job)


def _refuse(bench: LedgerBench, **spec: Any) -> OutputTakenError:
    """Submit a job whose output name is taken. Return the refusal."""
    named: dict[str, Any] = {"model": "m", "output_uri": OUT, **spec}
    reply = bench.ledger.submit([NewJob(**named)])[0]
    if isinstance(reply, OutputTakenError):
        return reply
    raise AssertionError(f"a taken name {spec} was not refused: {reply!r}")


def _owner(bench: LedgerBench, job: Job) -> str:
    owner = bench.ledger.output_owner(job)
    return "" if owner is None else owner.id
