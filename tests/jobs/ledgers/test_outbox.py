"""Notifications in the ledger's own database: the suite of outboxes, and that they come with what becomes of jobs."""

from dataclasses import dataclass

import orjson
import pytest

from headrace.jobs.job import Completed, Failed, JobFailure, Progress, ResultRef
from headrace.jobs.ledger import Beat
from headrace.jobs.ledgers.outbox import _PUT, SqlOutbox
from headrace.testing import OUTBOX_CHECKS, LedgerBench
from headrace.testing.job_checks.bench import LEASE_MS, OOPS
from jobs.ledgers_under_test import LEDGERS

SQL = [name for name in LEDGERS if name != "memory"]
HOOK = {"webhook": "https://example.com/hook"}


@dataclass
class SqlBench:
    """Implements `OutboxBench` over a ledger."""

    bench: LedgerBench
    puts: int = 0

    @property
    def outbox(self) -> SqlOutbox:
        """See `OutboxBench`."""
        return self.bench.ledger.outbox

    def add_endpoint(self, target):
        """See `OutboxBench`."""
        self.outbox.register(target)
        self.outbox.enable(target.endpoint_id)

    def put(self, notification, endpoint_id):
        """See `OutboxBench`."""
        self.puts += 1
        row = {
            "new_id": f"dlv-{self.puts:04}",
            "job_id": notification.job_id,
            "endpoint_id": endpoint_id,
            "event_id": notification.event_id,
            "type": notification.type,
            "data": orjson.dumps(dict(notification.data)).decode(),
            "state": "waiting",
        }
        database = self.bench.ledger._database
        database.write(lambda transaction: transaction.run(_PUT, [row]))
        at = "UPDATE headrace_notification SET at_ms = :at WHERE id = :id"
        import sqlalchemy as sa

        database.write(
            lambda transaction: transaction.connection.execute(
                sa.text(at), {"at": notification.at_ms, "id": row["new_id"]}
            )
        )
        return row["new_id"]

    def advance(self, ms):
        """See `OutboxBench`."""
        self.bench.later(ms)


@pytest.fixture(params=SQL)
def bench(request):
    with LedgerBench(lambda clock: LEDGERS[request.param](clock, request.getfixturevalue)) as made:
        yield made


@pytest.mark.parametrize("check", OUTBOX_CHECKS, ids=lambda check: check.__name__)
def test_the_outbox_of_a_ledger_keeps_every_promise(bench, check):
    check(SqlBench(bench))


def told(bench):
    """The notifications that are due now, each recorded as delivered."""
    from headrace.jobs.delivery import HEALTHY, Decision, Done

    found = []
    while claims := bench.ledger.outbox.claim(10, LEASE_MS):
        for claim in claims:
            found.append(claim.notification)
            assert bench.ledger.outbox.record(claim, Decision(Done("HTTP 200"), HEALTHY))
    return found


def test_an_end_is_told_with_what_it_came_to(bench):
    job = bench.running(notify=(HOOK,), correlation_id="c-1", tags={"team": "x"}, model="m")
    assert told(bench) == []
    assert bench.settle(job, Completed(ResultRef("memory://box/1", 9, "text/csv")))
    (notification,) = told(bench)
    assert (notification.type, notification.job_id) == ("job.completed", job.id)
    assert notification.data["correlation_id"] == "c-1"
    assert notification.data["tags"] == {"team": "x"}
    assert notification.data["output_bytes"] == 9
    assert notification.at_ms == bench.clock.now_ms()
    assert told(bench) == []


def test_a_refused_settlement_tells_nobody(bench):
    job = bench.running(notify=(HOOK,))
    assert bench.settle(job, Completed(ResultRef("memory://box/1")))
    assert not bench.settle(job, Failed(OOPS))
    assert [notification.type for notification in told(bench)] == ["job.completed"]


def test_retries_are_not_told_and_the_last_failure_is(bench):
    job = bench.running(notify=(HOOK,), attempts_max=2)
    assert bench.settle(job, Failed(JobFailure(OOPS.cause, "first"), 0))
    assert told(bench) == []
    again = bench.claim_one()
    assert bench.settle(again, Failed(JobFailure(OOPS.cause, "second")))
    (notification,) = told(bench)
    assert (notification.type, notification.data["reason"]) == ("job.failed", "second")


@pytest.mark.parametrize("state", ["cancelled", "expired"])
def test_other_ends_are_told_too(bench, state):
    from headrace.jobs.state import JobState

    bench.ended(JobState(state), notify=(HOOK,))
    assert [notification.type for notification in told(bench)] == [f"job.{state}"]


def test_a_lost_worker_is_told_once_however_many_look(bench):
    job = bench.running(notify=(HOOK,), attempts_max=1)
    bench.later(LEASE_MS + 1)
    for ledger in (bench.ledger, bench.another()):
        ledger.maintain(10)
    assert [notification.type for notification in told(bench)] == ["job.failed"]
    assert bench.now(job).state.ended


def test_only_what_was_asked_for_is_told(bench):
    failures = {**HOOK, "events": ["failed"]}
    job = bench.running(notify=(failures,))
    bench.settle(job, Completed(ResultRef("memory://box/1")))
    assert told(bench) == []


def test_everybody_is_told_of_one_event_under_one_id(bench):
    job = bench.running(notify=(HOOK, {"email": "a@example.com"}, {"sns": {"success_topic": "arn:t"}}))
    bench.settle(job, Completed(ResultRef("memory://box/1")))
    notifications = told(bench)
    assert len(notifications) == 3
    assert len({notification.event_id for notification in notifications}) == 1


def test_an_end_is_told_when_it_is_where_it_was_asked_for(bench):
    job = bench.running(notify=(HOOK,), output_uri="memory://out/")
    bench.settle(job, Completed(ResultRef("memory://box/1")))
    assert told(bench) == []
    assert bench.ledger.outbox.next_due_at_ms() is None
    assert bench.ledger.published(job.id, job.lease, "memory://out/K.out")
    (notification,) = told(bench)
    assert notification.data["output_uri"] == "memory://out/K.out"
    assert bench.ledger.published(job.id, job.lease, "memory://out/K.out")
    assert told(bench) == []


def test_an_end_that_can_never_be_there_is_told_all_the_same(bench):
    job = bench.running(notify=(HOOK,), output_uri="memory://gone/")
    bench.settle(job, Failed(OOPS))
    assert bench.ledger.published(job.id, job.lease, "")
    (notification,) = told(bench)
    assert "failure_uri" not in notification.data


def test_a_job_that_is_put_back_tells_of_its_next_end_too_under_another_id(bench):
    job = bench.running(notify=(HOOK,))
    bench.settle(job, Failed(OOPS))
    (first,) = told(bench)
    bench.ledger.requeue(job.id)
    bench.settle(bench.claim_one(), Completed(ResultRef("memory://box/1")))
    (second,) = told(bench)
    assert (first.type, second.type) == ("job.failed", "job.completed")
    assert first.event_id != second.event_id


def test_progress_is_told_to_those_who_asked_when_the_worker_says_so(bench):
    asks = bench.running(notify=({**HOOK, "events": ["progress"]},))
    other = bench.running(queue="other", notify=(HOOK,))
    progress = Progress(3, 10, "records")
    for tell in (False, True):
        beats = [Beat(job.id, job.lease, progress, None, tell) for job in (asks, other)]
        bench.ledger.beat("w", beats, LEASE_MS)
    (notification,) = told(bench)
    assert (notification.type, notification.job_id) == ("job.progress", asks.id)
    assert (notification.data["done"], notification.data["total"], notification.data["unit"]) == (
        3,
        10,
        "records",
    )


def test_endpoints_that_the_operator_has_set_up_are_told_by_their_names(bench):
    from headrace.jobs.notifier import WebhookTarget

    target = WebhookTarget("billing", "https://billing.example.com/")
    bench.ledger.outbox.register(target)
    job = bench.running(notify=({"endpoint": "billing"}, {"endpoint": "unknown"}))
    bench.settle(job, Completed(ResultRef("memory://box/1")))
    (claim,) = bench.ledger.outbox.claim(10, LEASE_MS)
    assert claim.target == target


def test_what_does_not_fit_into_a_notification_is_left_out(bench):
    job = bench.running(notify=(HOOK,), tags={f"t{i}": "x" * 1000 for i in range(30)})
    bench.settle(job, Completed(ResultRef("memory://box/1")))
    (notification,) = told(bench)
    assert "tags" not in notification.data
    assert notification.data["state"] == "completed"


def test_a_subscription_that_cannot_be_read_keeps_no_job_from_ending(bench):
    job = bench.running(notify=({"pigeon": "coo"}, HOOK))
    assert bench.settle(job, Completed(ResultRef("memory://box/1")))
    assert told(bench) == []


def test_notifications_go_with_their_job(bench):
    job = bench.running(notify=(HOOK,))
    bench.settle(job, Completed(ResultRef("memory://box/1")))
    assert len(bench.ledger.outbox.deliveries_of(job.id)) == 1
    bench.ledger.delete(job.id)
    assert bench.ledger.outbox.deliveries_of(job.id) == []
    assert told(bench) == []
