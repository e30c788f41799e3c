"""The outbox in a ledger's database: its contract, and the notifications of job events."""

from dataclasses import dataclass

import pytest
from typing_extensions import override

from conformance.check_tables import run_each
from headrace.jobs.job import Completed, Failed, JobFailure, JobProgress, ResultRef
from headrace.jobs.ledger import Heartbeat
from headrace.jobs.ledgers.database import sa
from headrace.jobs.ledgers.outbox import _ADD_RECEIVER, _INSERT, SqlOutbox, dump_event, dump_target
from headrace.jobs.notify import Notification, WebhookTarget
from headrace.jobs.notify.delivery import HEALTHY, DeliveryDecision, Done
from headrace.jobs.state import Cause, JobState
from headrace.testing import OUTBOX_CHECKS, LedgerBench
from headrace.testing.job_checks.bench import LEASE_MS, OOPS
from headrace.testing.outbox import OutboxBench
from jobs.ledger_fixtures import LEDGERS, SQL_LEDGERS

HOOK = {"webhook": "https://example.com/hook"}


@dataclass
class SqlBench(OutboxBench):
    """The outbox of an SQL ledger, for the contract's checks."""

    bench: LedgerBench
    puts: int = 0

    @property
    @override
    def outbox(self) -> SqlOutbox:
        return self.bench.ledger.outbox

    @override
    def add_receiver(self, target, tenant=""):
        values = {"id": target.receiver_id, "target": dump_target(target), "tenant": tenant}
        self.bench.ledger._database.run(lambda transaction: transaction.run(_ADD_RECEIVER, **values))

    @override
    def put(self, notification, receiver_id):
        self.puts += 1
        row = {
            "new_id": f"dlv-{self.puts:04}",
            "job_id": notification.job_id,
            "receiver_id": receiver_id,
            "event_id": notification.event_id,
            "type": notification.type,
            "data": dump_event(notification.data, notification.trace),
            "state": "waiting",
        }
        database = self.bench.ledger._database
        database.run(lambda transaction: transaction.run(_INSERT, [row]))
        at = "UPDATE headrace_notification SET at_ms = :at WHERE id = :id"
        database.run(
            lambda transaction: transaction.connection.execute(
                sa.text(at), {"at": notification.at_ms, "id": row["new_id"]}
            )
        )
        return row["new_id"]

    @override
    def advance(self, ms):
        self.bench.advance(ms)


@pytest.fixture(params=SQL_LEDGERS)
def new_bench(request):
    return lambda: LedgerBench(lambda clock: LEDGERS[request.param](clock, request.getfixturevalue))


@pytest.fixture
def bench(new_bench):
    with new_bench() as bench:
        yield bench


def test_outbox_meets_its_contract(new_bench):
    def run(check):
        with new_bench() as bench:
            check(SqlBench(bench))

    run_each(OUTBOX_CHECKS, run)


def deliver(bench):
    """Record the due notifications as delivered, and return them."""
    notifications = []
    while claims := bench.ledger.outbox.claim(10, LEASE_MS):
        for claim in claims:
            notifications.append(claim.notification)
            assert bench.ledger.outbox.record(claim, DeliveryDecision(Done("HTTP 200"), HEALTHY))
    return notifications


def test_end_notification_has_the_outcome(bench):
    job = bench.submit_running(notify=(HOOK,), correlation_id="c-1", tags={"team": "x"}, model="m")
    assert deliver(bench) == []
    assert bench.settle(job, Completed(ResultRef("memory://box/1", 9, "text/csv")))
    (notification,) = deliver(bench)
    assert (notification.type, notification.job_id) == ("job.completed", job.id)
    assert notification.data["correlation_id"] == "c-1"
    assert notification.data["tags"] == {"team": "x"}
    assert notification.data["output_bytes"] == 9
    assert notification.at_ms == bench.clock.now_ms()
    assert deliver(bench) == []


def test_refused_settlement_sends_no_notification(bench):
    job = bench.submit_running(notify=(HOOK,))
    assert bench.settle(job, Completed(ResultRef("memory://box/1")))
    assert not bench.settle(job, Failed(OOPS))
    assert [notification.type for notification in deliver(bench)] == ["job.completed"]


def test_only_the_last_failure_is_notified(bench):
    job = bench.submit_running(notify=(HOOK,), attempts_max=2)
    assert bench.settle(job, Failed(JobFailure(OOPS.cause, "first"), 0))
    assert deliver(bench) == []
    second = bench.claim_one()
    assert bench.settle(second, Failed(JobFailure(OOPS.cause, "second")))
    (notification,) = deliver(bench)
    assert (notification.type, notification.data["reason"]) == ("job.failed", "second")


def test_cancelled_and_expired_jobs_are_notified(bench):
    for state in (JobState.CANCELLED, JobState.EXPIRED):
        bench.submit_ended(state, notify=(HOOK,))
        assert [notification.type for notification in deliver(bench)] == [f"job.{state.value}"]


def test_lost_worker_is_notified_once(bench):
    job = bench.submit_running(notify=(HOOK,), attempts_max=1)
    bench.advance(LEASE_MS + 1)
    for ledger in (bench.ledger, bench.start_ledger()):
        ledger.maintain(10)
    assert [notification.type for notification in deliver(bench)] == ["job.failed"]
    assert bench.reload(job).state.ended


def test_only_subscribed_events_are_notified(bench):
    failures = {**HOOK, "events": ["failed"]}
    job = bench.submit_running(notify=(failures,))
    bench.settle(job, Completed(ResultRef("memory://box/1")))
    assert deliver(bench) == []


def test_tenants_share_no_receiver(bench):
    """Before, a tenant's deliveries waited behind those of another one that named the same webhook."""
    for tenant in ("alpha", "alpha", "beta"):
        job = bench.submit_running(notify=(HOOK,), tenant=tenant)
        bench.settle(job, Completed(ResultRef("memory://box/1")))
    claims = bench.ledger.outbox.claim(10, LEASE_MS)
    assert len({claim.target.receiver_id for claim in claims}) == len(claims) == 2
    assert bench.ledger.outbox.disable(claims[0].target.receiver_id, "it is gone")
    assert bench.ledger.outbox.receiver(claims[1].target.receiver_id).disabled_why == ""


def test_all_receivers_share_the_event_id(bench):
    job = bench.submit_running(notify=(HOOK, {"email": "a@example.com"}, {"sns": {"success_topic": "arn:t"}}))
    bench.settle(job, Completed(ResultRef("memory://box/1")))
    notifications = deliver(bench)
    assert len(notifications) == 3
    assert len({notification.event_id for notification in notifications}) == 1


def test_notification_waits_for_publication(bench):
    job = bench.submit_running(notify=(HOOK,), output_uri="memory://out/")
    bench.settle(job, Completed(ResultRef("memory://box/1")))
    assert deliver(bench) == []
    assert bench.ledger.outbox.next_due_at_ms() is None
    assert bench.ledger.mark_published(job.id, job.lease, "memory://out/K.out")
    (notification,) = deliver(bench)
    assert notification.data["output_uri"] == "memory://out/K.out"
    assert bench.ledger.mark_published(job.id, job.lease, "memory://out/K.out")
    assert deliver(bench) == []


def test_unpublishable_end_is_notified(bench):
    job = bench.submit_running(notify=(HOOK,), output_uri="memory://gone/")
    bench.settle(job, Failed(OOPS))
    failed = JobFailure(Cause.INPUT, "no such bucket")
    assert bench.ledger.mark_publish_failed(job.id, job.lease, failed, final=False)
    assert deliver(bench) == []
    assert bench.ledger.mark_publish_failed(job.id, job.lease, failed, final=True)
    (notification,) = deliver(bench)
    assert (notification.type, notification.data["reason"]) == ("job.failed", OOPS.message)
    assert "failure_uri" not in notification.data


def test_unpublished_result_is_notified_as_such(bench):
    job = bench.submit_running(notify=(HOOK,), output_uri="memory://gone/")
    bench.settle(job, Completed(ResultRef("memory://box/1")))
    failed = JobFailure(Cause.INPUT, "no such bucket")
    assert bench.ledger.mark_publish_failed(job.id, job.lease, failed, final=True)
    (notification,) = deliver(bench)
    assert (notification.type, notification.data["reason"]) == ("job.publish_failed", "no such bucket")
    bench.ledger.republish(job.id)
    assert bench.ledger.mark_published(job.id, job.lease, "memory://out/K.out")
    (notification,) = deliver(bench)
    assert (notification.type, notification.data["output_uri"]) == ("job.completed", "memory://out/K.out")


def test_requeued_job_notifies_its_next_end_with_a_new_id(bench):
    job = bench.submit_running(notify=(HOOK,))
    bench.settle(job, Failed(OOPS))
    (first,) = deliver(bench)
    bench.ledger.requeue(job.id)
    bench.settle(bench.claim_one(), Completed(ResultRef("memory://box/1")))
    (second,) = deliver(bench)
    assert (first.type, second.type) == ("job.failed", "job.completed")
    assert first.event_id != second.event_id


def test_progress_is_notified_to_subscribers_on_request(bench):
    subscribed = bench.submit_running(notify=({**HOOK, "events": ["progress"]},))
    other = bench.submit_running(queue="other", notify=(HOOK,))
    progress = JobProgress(3, 10, "records")
    for notify in (False, True):
        heartbeats = [Heartbeat(job.id, job.lease, progress, None, notify) for job in (subscribed, other)]
        bench.ledger.heartbeat("w", heartbeats, LEASE_MS)
    (notification,) = deliver(bench)
    assert (notification.type, notification.job_id) == ("job.progress", subscribed.id)
    assert (notification.data["done"], notification.data["total"], notification.data["unit"]) == (
        3,
        10,
        "records",
    )


def test_operator_receivers_are_notified_by_name(bench):
    target = WebhookTarget("billing", "https://billing.example.com/")
    bench.ledger.outbox.register(target)
    job = bench.submit_running(notify=({"receiver": "billing"}, {"receiver": "unknown"}))
    bench.settle(job, Completed(ResultRef("memory://box/1")))
    (claim,) = bench.ledger.outbox.claim(10, LEASE_MS)
    assert claim.target == target


def test_too_large_notification_is_reduced(bench):
    job = bench.submit_running(notify=(HOOK,), tags={f"t{i}": "x" * 1000 for i in range(30)})
    bench.settle(job, Completed(ResultRef("memory://box/1")))
    (notification,) = deliver(bench)
    assert "tags" not in notification.data
    assert notification.data["state"] == "completed"


def test_unreadable_subscription_does_not_block_the_end(bench):
    job = bench.submit_running(notify=({"pigeon": "coo"}, HOOK))
    assert bench.settle(job, Completed(ResultRef("memory://box/1")))
    assert deliver(bench) == []


def test_notifications_are_deleted_with_their_job(bench):
    job = bench.submit_running(notify=(HOOK,))
    bench.settle(job, Completed(ResultRef("memory://box/1")))
    assert len(bench.ledger.outbox.deliveries_of(job.id)) == 1
    bench.ledger.delete(job.id)
    assert bench.ledger.outbox.deliveries_of(job.id) == []
    assert deliver(bench) == []


def test_row_of_an_earlier_version_has_no_trace_context(bench):
    """Earlier versions stored the data of an event alone."""
    outbox = SqlBench(bench)
    outbox.add_receiver(WebhookTarget("a", "https://a.example/"))
    outbox.put(Notification("evt_1", "job.completed", "j", 1, {"n": 1}), "a")
    (claim,) = outbox.outbox.claim(1, LEASE_MS)
    assert (claim.notification.trace, claim.notification.data) == ("", {"n": 1})


@pytest.mark.parametrize("output_uri", ["", "memory://out/"])
def test_trace_context_of_a_job_is_no_part_of_the_body(bench, output_uri):
    """With an output, the notification is written again when the reason of the end is published."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    job = bench.submit_running(notify=(HOOK,), trace=trace, output_uri=output_uri)
    bench.settle(job, Failed(OOPS))
    if output_uri:
        bench.ledger.mark_published(job.id, job.lease, "memory://out/KEY.error")
    (claim,) = bench.ledger.outbox.claim(1, LEASE_MS)
    assert claim.notification.trace == trace
    assert trace not in claim.notification.data_json().decode()
