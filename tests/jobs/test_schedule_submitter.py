"""Due schedules to jobs: once for each time, with the rights of their keys, whatever fails meanwhile."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from headrace.core.errors import (
    ForbiddenError,
    JobLedgerUnavailableError,
    LimitError,
    ResourceNotFoundError,
)
from headrace.jobs import schedule_operations
from headrace.jobs.access import Access, ApiKey, Scope
from headrace.jobs.ledger import JobFilter, QueueSettings
from headrace.jobs.paths import UriAllowList
from headrace.jobs.schedule_submitter import LEASE_MS, ScheduleSubmitter
from headrace.jobs.schedules import ScheduleSettings, run_key
from headrace.jobs.service import JobService, JobServiceSettings
from headrace.jobs.submission import SubmissionLimits
from headrace.storage import Stores
from headrace.testing import ManualWallClock, MemoryJobLedger

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
INPUTS = UriAllowList(prefixes=("s3://in",))
WEB = ApiKey("web", "shop", frozenset({Scope.SUBMIT, Scope.READ}), inputs=INPUTS)
OPS = ApiKey("ops", "ops", frozenset({Scope.OPERATE}))
JOB = {"model": "m", "input_uri": "s3://in/{time:%H}.csv"}
HOURLY = ScheduleSettings("0 * * * *", JOB)


@pytest.fixture
def world():
    clock = ManualWallClock()
    ledger = MemoryJobLedger(clock)
    ledger.start()
    service = JobService(ledger, Stores(), JobServiceSettings("memory://s"))
    service.start()
    keys = {WEB.name: WEB}
    made = SimpleNamespace(
        clock=clock, ledger=ledger, service=service, schedules=service.schedules, keys=keys
    )

    def submitter(ledger=ledger, **changes):
        options = {"find_key": keys.get, "submit": service.submit, **changes}
        return ScheduleSubmitter(ledger, SubmissionLimits(), **options)

    made.submitter = submitter
    made.tick = submitter().tick
    yield made
    service.stop()
    ledger.stop()


def to_next_hour(world):
    """Move to the next full hour and return it."""
    world.clock.advance(HOUR_MS - world.ledger.now_ms() % HOUR_MS)
    return world.ledger.now_ms()


def jobs(world):
    return list(world.ledger.find(JobFilter()).jobs)


def test_due_schedule_submits_one_job_for_each_time(world):
    world.schedules.set(WEB, "s", HOURLY)
    assert world.tick() == 0
    at_ms = to_next_hour(world)
    assert [world.tick() for _ in range(3)] == [1, 0, 0]
    (job,) = jobs(world)
    assert (job.spec.tenant, job.spec.submitted_by) == ("shop", "web")
    assert job.spec.idempotency_key == run_key("s", at_ms)
    assert job.spec.tags == {"schedule": "s"}
    assert world.ledger.find(JobFilter(tags={"schedule": "s"})).jobs == (job,)
    schedule = world.schedules.get(WEB, "s")
    assert (schedule.last_at_ms, schedule.last_job_id, schedule.last_error) == (at_ms, job.id, "")
    to_next_hour(world)
    world.tick()
    assert len(jobs(world)) == 2


def test_missed_times_make_one_job_for_the_last(world, caplog):
    world.schedules.set(WEB, "s", HOURLY)
    first_ms = to_next_hour(world)
    world.clock.advance(5 * HOUR_MS + 1234)
    world.tick()
    (job,) = jobs(world)
    assert job.spec.idempotency_key == run_key("s", first_ms + 5 * HOUR_MS)
    assert world.schedules.get(WEB, "s").missed == 5
    (record,) = [record for record in caplog.records if "missed" in record.message]
    assert (record.missed, record.schedule) == (5, "s")


def test_process_that_dies_after_the_submission_makes_no_second_job(world):
    world.schedules.set(WEB, "s", HOURLY)
    at_ms = to_next_hour(world)

    class Dying(MemoryJobLedger):
        def record_run(self, claimed, *, job_id="", error=""):
            raise JobLedgerUnavailableError("the process died")

    dying = Dying(world.clock, beside=world.ledger)
    dying.start()
    world.submitter(ledger=dying).tick()
    (job,) = jobs(world)
    assert world.schedules.get(WEB, "s").last_at_ms is None
    assert world.tick() == 0
    world.clock.advance(LEASE_MS)
    assert world.tick() == 1
    assert jobs(world) == [job]
    schedule = world.schedules.get(WEB, "s")
    assert (schedule.last_job_id, schedule.next_at_ms) == (job.id, at_ms + HOUR_MS)


def test_job_of_a_dead_process_is_found_after_its_key_has_ended(world):
    world.schedules.set(WEB, "s", replace(HOURLY, overlap="skip"))
    to_next_hour(world)
    world.ledger.record_run, record_run = (lambda *_, **__: False), world.ledger.record_run
    world.tick()
    world.ledger.record_run = record_run
    world.keys.clear()
    world.clock.advance(3 * HOUR_MS)
    world.tick()
    (job,) = jobs(world)
    assert world.schedules.get(WEB, "s").last_job_id == job.id
    world.keys["web"] = WEB
    world.tick()
    assert jobs(world) == [job]
    assert f"job {job.id} is pending" in world.schedules.get(WEB, "s").last_error


def test_claim_without_a_job_ends_at_the_next_time(world):
    world.schedules.set(WEB, "s", HOURLY)
    first_ms = to_next_hour(world)
    world.ledger.claim_schedules(1, LEASE_MS)
    world.clock.advance(2 * HOUR_MS)
    world.tick()
    assert jobs(world) == []
    assert "before the next time" in world.schedules.get(WEB, "s").last_error
    world.tick()
    (job,) = jobs(world)
    assert job.spec.idempotency_key == run_key("s", first_ms + 2 * HOUR_MS)


def test_key_that_has_ended_submits_nothing(world):
    world.schedules.set(WEB, "s", HOURLY)
    for keys in ({}, {"web": replace(WEB, tenant="other")}):
        world.keys.clear()
        world.keys.update(keys)
        to_next_hour(world)
        world.tick()
        assert jobs(world) == []
        assert "the API key 'web', which set this schedule, has ended" in (
            world.schedules.get(WEB, "s").last_error
        )


def test_rights_are_those_of_the_key_at_the_time(world, caplog):
    world.schedules.set(WEB, "s", HOURLY)
    world.keys["web"] = replace(WEB, inputs=UriAllowList(prefixes=("s3://elsewhere",)))
    to_next_hour(world)
    assert [world.tick() for _ in range(2)] == [1, 0]
    schedule = world.schedules.get(WEB, "s")
    assert ("s3://in/" in schedule.last_error, schedule.last_job_id, jobs(world)) == (True, "", [])
    assert len([record for record in caplog.records if "submitted no job" in record.message]) == 1
    world.keys["web"] = WEB
    to_next_hour(world)
    world.tick()
    assert (len(jobs(world)), world.schedules.get(WEB, "s").last_error) == (1, "")


def test_temporary_error_is_retried_until_the_next_time(world):
    world.schedules.set(WEB, "s", HOURLY)
    at_ms = to_next_hour(world)
    world.ledger.set_queue(QueueSettings("default", pending_max=0))
    tries = 0
    while world.ledger.now_ms() < at_ms + HOUR_MS - 1:
        tries += world.tick()
        world.clock.advance(min(LEASE_MS, at_ms + HOUR_MS - 1 - world.ledger.now_ms()))
    assert tries == HOUR_MS // LEASE_MS
    schedule = world.schedules.get(WEB, "s")
    assert (schedule.last_at_ms, "default" in schedule.last_error) == (at_ms, True)
    to_next_hour(world)
    world.tick()
    world.ledger.set_queue(QueueSettings("default"))
    world.clock.advance(LEASE_MS)
    world.tick()
    (job,) = jobs(world)
    assert job.spec.idempotency_key == run_key("s", at_ms + HOUR_MS)


def test_overlap_is_skipped_until_the_last_job_has_ended(world):
    world.schedules.set(WEB, "s", replace(HOURLY, overlap="skip"))
    world.schedules.set(WEB, "free", HOURLY)
    for _ in range(2):
        to_next_hour(world)
        world.tick()
    (job,) = world.ledger.find(JobFilter(tags={"schedule": "s"})).jobs
    assert len(world.ledger.find(JobFilter(tags={"schedule": "free"})).jobs) == 2
    schedule = world.schedules.get(WEB, "s")
    assert (schedule.last_job_id, f"job {job.id} is pending" in schedule.last_error) == (job.id, True)
    world.ledger.cancel(job.id)
    to_next_hour(world)
    world.tick()
    assert len(world.ledger.find(JobFilter(tags={"schedule": "s"})).jobs) == 2


def test_one_broken_schedule_stops_no_other(world, caplog):
    for name in "abc":
        world.schedules.set(WEB, name, HOURLY)
    at_ms = to_next_hour(world)

    def submit(key, submission):
        if submission.job.idempotency_key == run_key("b", at_ms):
            raise RuntimeError("secret detail")
        return world.service.submit(key, submission)

    assert world.submitter(submit=submit).tick() == 3
    assert len(jobs(world)) == 2
    assert world.schedules.get(WEB, "b").last_error == "internal error"


def test_schedule_of_an_unknown_time_zone_fails_and_is_paused(world):
    world.schedules.set(WEB, "s", HOURLY)
    newer = replace(HOURLY, time_zone="Newer/Zone")
    world.ledger._table.schedules["shop", "s"] = replace(world.ledger.schedule("shop", "s"), settings=newer)
    to_next_hour(world)
    assert [world.tick() for _ in range(2)] == [1, 0]
    schedule = world.schedules.get(WEB, "s")
    assert (schedule.paused, "Newer/Zone" in schedule.last_error) == (True, True)


def test_schedule_replaced_during_its_run_keeps_its_own_state(world):
    world.schedules.set(WEB, "s", HOURLY)
    to_next_hour(world)

    def submit(key, submission):
        world.schedules.set(WEB, "s", replace(HOURLY, cron="30 * * * *"))
        return world.service.submit(key, submission)

    world.submitter(submit=submit).tick()
    schedule = world.schedules.get(WEB, "s")
    assert (schedule.version, schedule.last_at_ms, len(jobs(world))) == (2, None, 1)


def test_inline_input_and_anonymous_access(world):
    access = Access(anonymous=replace(WEB, name="", tenant=""))
    key = access.check(None, Scope.SUBMIT)
    world.schedules.set(key, "s", replace(HOURLY, job={"model": "m", "input": [1]}))
    to_next_hour(world)
    world.submitter(find_key=access.named).tick()
    (job,) = jobs(world)
    assert job.spec.owned_input
    assert (access.named(""), access.named("web")) == (key, None)
    with_keys = Access({b"1": WEB})
    assert (with_keys.named("web"), with_keys.named("")) == (WEB, None)


def test_operations_check_the_rights_of_the_key(world):
    reader = replace(WEB, name="reader", scopes=frozenset({Scope.READ}))
    stranger = replace(WEB, name="stranger", tenant="other")
    made = world.schedules.set(WEB, "s", HOURLY)
    for refused in (
        lambda: world.schedules.set(reader, "s", HOURLY),
        lambda: world.schedules.run(reader, "s"),
        lambda: world.schedules.delete(reader, "s"),
        lambda: world.schedules.set_paused(reader, "s", paused=True),
        lambda: world.schedules.set(OPS, "s", HOURLY),
        lambda: world.schedules.set(WEB, "t", replace(HOURLY, job={**JOB, "input_uri": "s3://other/x"})),
    ):
        with pytest.raises(ForbiddenError):
            refused()
    for hidden in (
        lambda: world.schedules.get(stranger, "s"),
        lambda: world.schedules.get(stranger, "s", tenant="shop"),
        lambda: world.schedules.delete(stranger, "s", tenant="shop"),
        lambda: world.schedules.set_paused(stranger, "s", paused=True, tenant="shop"),
        lambda: world.schedules.run(stranger, "s"),
    ):
        with pytest.raises(ResourceNotFoundError):
            hidden()
    assert world.schedules.find(stranger, tenant="shop") == []
    assert world.schedules.find(reader) == world.schedules.find(OPS) == [made]
    assert world.schedules.find(OPS, tenant="none") == []
    paused = world.schedules.set_paused(OPS, "s", paused=True, tenant="shop")
    assert (paused.paused, paused.changed_by) == (True, "web")


def test_number_of_schedules_of_a_tenant_is_limited(world, monkeypatch):
    monkeypatch.setattr(schedule_operations, "SCHEDULES_MAX", 2)
    for name in "ab":
        world.schedules.set(WEB, name, HOURLY)
    with pytest.raises(LimitError, match="2 schedules exist"):
        world.schedules.set(WEB, "c", HOURLY)
    world.schedules.set(WEB, "a", replace(HOURLY, cron="1 * * * *"))
    world.schedules.set(replace(WEB, tenant="other"), "a", HOURLY)


def test_run_by_a_client_leaves_the_schedule(world):
    made = world.schedules.set(WEB, "s", HOURLY)
    first = world.schedules.run(WEB, "s", idempotency_key="k").result(5)
    world.clock.advance(HOUR_MS)
    again = world.schedules.run(WEB, "s", idempotency_key="k").result(5)
    assert (first.created, again.created, again.job.id) == (True, False, first.job.id)
    assert world.schedules.run(WEB, "s").result(5).created
    assert world.schedules.get(WEB, "s") == made
