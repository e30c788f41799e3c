"""Checks of schedules: their times, claims and runs."""

from dataclasses import replace
from functools import partial

from headrace.core.errors import DataError, ResourceNotFoundError
from headrace.jobs.ledger import JobLedger
from headrace.jobs.schedules import MISSED_COUNTED_MAX, JobSchedule, ScheduleClaim, ScheduleSettings
from headrace.testing.expect import equal, raises, true
from headrace.testing.job_checks.bench import LEASE_MS, LedgerBench, run_concurrently

_HOUR_MS = 3_600_000
_DAY_MS = 86_400_000
_HOURLY = ScheduleSettings("0 * * * *", {"model": "m", "options": {"a": [1]}})
_DAILY = ScheduleSettings("30 2 * * *", {"model": "m"}, "Europe/Berlin", "skip")
_RACE_THREADS = 4


def check_set_schedule(bench: LedgerBench) -> None:
    """Check that a schedule is stored, replaced under a new version, and listed by tenant and name."""
    now_ms = bench.advance(7)
    first = bench.ledger.set_schedule("t", "b", _HOURLY, by="web")
    equal(first, JobSchedule("t", "b", _HOURLY, 1, now_ms, "web", _next_hour_ms(bench)), "a new schedule")
    equal(bench.ledger.schedule("t", "b"), first, "the schedule that was read")
    equal(bench.ledger.set_schedule("t", "b", _HOURLY, by="web"), first, "an unchanged schedule")
    bench.advance(5)
    again = bench.ledger.set_schedule("t", "b", _HOURLY, by="other")
    equal((again.version, again.changed_by), (2, "other"), "a schedule of another key")
    changed = bench.ledger.set_schedule("t", "b", _DAILY, by="other")
    equal((changed.version, changed.settings), (3, _DAILY), "a changed schedule")
    true(changed.next_at_ms != again.next_at_ms, "a changed schedule keeps its next time")
    others = [bench.ledger.set_schedule(tenant, "a", _HOURLY) for tenant in ("u", "t")]
    equal(bench.ledger.schedules("t"), [others[1], changed], "the schedules of a tenant")
    equal(bench.ledger.schedules(), [others[1], changed, others[0]], "all schedules")


def check_invalid_schedule(bench: LedgerBench) -> None:
    """Check that a schedule without a time is refused, and that the one before stays."""
    kept = bench.ledger.set_schedule("t", "s", _HOURLY)
    for settings in (replace(_HOURLY, cron="61 * * * *"), replace(_HOURLY, time_zone="Nowhere/City")):
        set_invalid = partial(bench.ledger.set_schedule, "t", "s", settings)
        raises(DataError, set_invalid, f"a schedule with {settings.cron} in {settings.time_zone}")
    equal(bench.ledger.schedules(), [kept], "the schedules after a refused change")


def check_deleted_schedule(bench: LedgerBench) -> None:
    """Check that a deleted schedule is gone, and that those of other tenants stay."""
    bench.ledger.set_schedule("t", "s", _HOURLY)
    other = bench.ledger.set_schedule("u", "s", _HOURLY)
    equal(bench.ledger.delete_schedule("t", "s"), True, "the deletion of a schedule")
    equal(bench.ledger.delete_schedule("t", "s"), False, "the deletion of a deleted schedule")
    ledger = bench.ledger
    raises(ResourceNotFoundError, lambda: ledger.schedule("t", "s"), "a read of a deleted schedule")
    pause = partial(ledger.set_schedule_paused, "t", "s", paused=True)
    raises(ResourceNotFoundError, pause, "a pause of a deleted schedule")
    equal(bench.ledger.schedules(), [other], "the schedules after a deletion")


def check_paused_schedule(bench: LedgerBench) -> None:
    """Check that a paused schedule is never due, and that no time of the pause is due after it."""
    made = bench.ledger.set_schedule("t", "s", _HOURLY, by="web")
    paused = bench.ledger.set_schedule_paused("t", "s", paused=True)
    equal(paused, replace(made, next_at_ms=None), "a paused schedule")
    bench.advance(3 * _HOUR_MS)
    equal(bench.ledger.claim_schedules(9, LEASE_MS), [], "the claims of a paused schedule")
    replaced = bench.ledger.set_schedule("t", "s", _DAILY, by="web")
    true(replaced.paused, "a paused schedule is resumed by a change")
    bench.ledger.set_schedule("t", "s", _HOURLY, by="web")
    resumed = bench.ledger.set_schedule_paused("t", "s", paused=False)
    equal(resumed.next_at_ms, _next_hour_ms(bench), "the next time of a resumed schedule")
    equal(bench.ledger.set_schedule_paused("t", "s", paused=False), resumed, "a schedule resumed twice")
    equal(bench.ledger.schedule("t", "s"), resumed, "the resumed schedule that was read")


def check_schedule_claim(bench: LedgerBench) -> None:
    """Check that a schedule is claimed when it is due, once, and is due again after its run."""
    made = bench.ledger.set_schedule("t", "s", _HOURLY, by="web")
    due_ms = _next_hour_ms(bench)
    _advance_to(bench, due_ms - 1)
    equal(bench.ledger.claim_schedules(9, LEASE_MS), [], "the claims before the time")
    now_ms = bench.advance(1)
    claims = bench.ledger.claim_schedules(9, LEASE_MS)
    equal(claims, [ScheduleClaim(made, now_ms)], "the claims at the time")
    equal(bench.ledger.claim_schedules(9, LEASE_MS), [], "the claims of a claimed schedule")
    equal(bench.ledger.record_run(claims[0].schedule, job_id="j1"), True, "the record of a run")
    wanted = replace(made, next_at_ms=due_ms + _HOUR_MS, last_at_ms=due_ms, last_job_id="j1")
    equal(bench.ledger.schedule("t", "s"), wanted, "the schedule after a run")
    bench.advance(LEASE_MS)
    equal(bench.ledger.claim_schedules(9, LEASE_MS), [], "the claims after a run")
    _advance_to(bench, due_ms + _HOUR_MS)
    claim = _claim_one(bench.ledger)
    bench.ledger.record_run(claim.schedule, error="refused")
    found = bench.ledger.schedule("t", "s")
    equal((found.last_job_id, found.last_error), ("j1", "refused"), "the record of a run without a job")


def check_missed_times(bench: LedgerBench) -> None:
    """Check that a schedule that missed times is claimed once, at the last of them."""
    made = bench.ledger.set_schedule("t", "s", _HOURLY)
    due_ms = _next_hour_ms(bench)
    _advance_to(bench, due_ms + 3 * _HOUR_MS + 5)
    claim = _claim_one(bench.ledger)
    equal(claim.schedule, replace(made, next_at_ms=due_ms + 3 * _HOUR_MS, missed=3), "the claimed schedule")
    equal(bench.ledger.schedule("t", "s"), claim.schedule, "the schedule after its claim")
    bench.ledger.record_run(claim.schedule, job_id="j")
    equal(bench.ledger.schedule("t", "s").next_at_ms, due_ms + 4 * _HOUR_MS, "the next time")
    bench.advance(300 * _DAY_MS)
    later = _claim_one(bench.ledger)
    equal(later.at_ms, due_ms + 3 * _HOUR_MS + 300 * _DAY_MS, "the last of very many missed times")
    equal(later.schedule.missed, MISSED_COUNTED_MAX, "the number of very many missed times")


def check_lost_schedule_claim(bench: LedgerBench) -> None:
    """Check that a run without a record is claimed again at the same time, before a later one."""
    bench.ledger.set_schedule("t", "s", _HOURLY)
    _advance_to(bench, _next_hour_ms(bench) + 1)
    first = _claim_one(bench.ledger)
    bench.advance(LEASE_MS - 1)
    equal(bench.ledger.claim_schedules(9, LEASE_MS), [], "the claims during a lease")
    now_ms = bench.advance(5 * _HOUR_MS)
    again = _claim_one(bench.start_ledger())
    equal(again, ScheduleClaim(first.schedule, now_ms), "the claim after a lease")
    bench.ledger.record_run(again.schedule, job_id="j")
    next_claim = _claim_one(bench.ledger)
    equal(next_claim.at_ms, first.at_ms + 5 * _HOUR_MS, "the claim after the repeated run")
    equal(bench.ledger.record_run(next_claim.schedule, job_id="k"), True, "the record of the later run")
    equal(bench.ledger.record_run(first.schedule, job_id="late"), False, "a late record of an earlier run")
    equal(bench.ledger.schedule("t", "s").last_job_id, "k", "the last job")


def check_schedule_changed_during_run(bench: LedgerBench) -> None:
    """Check that the record of a run changes no schedule that was replaced or deleted since its claim."""
    claimed = _claim(bench)
    replaced = bench.ledger.set_schedule("t", "s", _DAILY)
    equal(bench.ledger.record_run(claimed, job_id="j"), False, "the record of a replaced schedule")
    equal(bench.ledger.schedule("t", "s"), replaced, "the replaced schedule")
    bench.ledger.delete_schedule("t", "s")
    equal(bench.ledger.record_run(claimed, job_id="j"), False, "the record of a deleted schedule")
    bench.advance(1)
    created = bench.ledger.set_schedule("t", "s", _HOURLY)
    equal(bench.ledger.record_run(claimed, job_id="j"), False, "the record of an earlier schedule")
    equal(bench.ledger.schedule("t", "s"), created, "the schedule that was created again")


def check_schedule_paused_during_run(bench: LedgerBench) -> None:
    """Check that a schedule that is paused or resumed during a run stays so, and has the run's job."""
    claimed = _claim(bench)
    bench.ledger.set_schedule_paused("t", "s", paused=True)
    equal(bench.ledger.record_run(claimed, job_id="j"), True, "the record of a paused schedule")
    found = bench.ledger.schedule("t", "s")
    equal((found.paused, found.last_job_id), (True, "j"), "the schedule that was paused during its run")
    bench.ledger.set_schedule_paused("t", "s", paused=False)
    claimed = _claim_due(bench)
    bench.ledger.set_schedule_paused("t", "s", paused=True)
    bench.advance(2 * _HOUR_MS)
    resumed = bench.ledger.set_schedule_paused("t", "s", paused=False)
    bench.ledger.record_run(claimed, job_id="k")
    found = bench.ledger.schedule("t", "s")
    equal((found.next_at_ms, found.last_job_id), (resumed.next_at_ms, "k"), "the resumed schedule")


def check_change_ends_schedule_claim(bench: LedgerBench) -> None:
    """Check that a schedule that was replaced, or paused and resumed, is claimed as if it never was."""
    bench.ledger.set_schedule("t", "s", _HOURLY)
    for change in ("replace", "pause"):
        _advance_to(bench, _next_hour_ms(bench))
        equal(len(bench.ledger.claim_schedules(9, _DAY_MS)), 1, "the number of claims")
        if change == "replace":
            bench.ledger.set_schedule("t", "s", replace(_HOURLY, overlap="skip"))
        else:
            bench.ledger.set_schedule_paused("t", "s", paused=True)
            bench.ledger.set_schedule_paused("t", "s", paused=False)
        _advance_to(bench, _next_hour_ms(bench) + _HOUR_MS)
        claim = _claim_one(bench.ledger)
        equal((claim.at_ms, claim.schedule.missed), (claim.claimed_at_ms, 1), f"the claim after a {change}")
        bench.ledger.record_run(claim.schedule)


def check_claimed_schedules_in_order(bench: LedgerBench) -> None:
    """Check that a call claims the schedules that are due the longest, up to its limit."""
    _advance_to(bench, _next_hour_ms(bench))
    for name, cron in (("c", "30 * * * *"), ("a", "50 * * * *"), ("b", "10 * * * *")):
        bench.ledger.set_schedule("t", name, replace(_HOURLY, cron=cron))
    _advance_to(bench, _next_hour_ms(bench) - 1)
    claimed = [{each.schedule.name for each in bench.ledger.claim_schedules(2, LEASE_MS)} for _ in range(2)]
    equal(claimed, [{"b", "c"}, {"a"}], "the claimed schedules of two calls")


def check_schedule_race(bench: LedgerBench) -> None:
    """Check that concurrent calls never claim one schedule twice."""
    for number in range(_RACE_THREADS):
        bench.ledger.set_schedule("t", f"s{number}", _HOURLY)
    _advance_to(bench, _next_hour_ms(bench))
    ledgers = (bench.ledger, bench.start_ledger())
    claims = run_concurrently(
        (lambda number=number: ledgers[number % 2].claim_schedules(3, LEASE_MS))
        for number in range(_RACE_THREADS)
    )
    names = sorted(each.schedule.name for claimed in claims for each in claimed)
    true(len(names) == len(set(names)), f"concurrent calls claimed {names}")
    rest = [each.schedule.name for each in bench.ledger.claim_schedules(9, LEASE_MS)]
    equal(sorted(names + rest), [f"s{number}" for number in range(_RACE_THREADS)], "the claimed schedules")


def check_schedules_survive_restart(bench: LedgerBench) -> None:
    """Check that another ledger over the same storage sees schedules and their claims."""
    claimed = _claim(bench)
    other = bench.start_ledger()
    equal(other.schedules(), [claimed], "the schedules of another ledger")
    equal(other.claim_schedules(9, LEASE_MS), [], "the claims of another ledger")
    equal(other.record_run(claimed, job_id="j"), True, "the record by another ledger")


def _claim(bench: LedgerBench) -> JobSchedule:
    bench.ledger.set_schedule("t", "s", _HOURLY)
    return _claim_due(bench)


def _claim_due(bench: LedgerBench) -> JobSchedule:
    _advance_to(bench, _next_hour_ms(bench))
    return _claim_one(bench.ledger).schedule


def _claim_one(ledger: JobLedger) -> ScheduleClaim:
    claims = ledger.claim_schedules(9, LEASE_MS)
    equal(len(claims), 1, "the number of claims")
    return claims[0]


def _next_hour_ms(bench: LedgerBench) -> int:
    return (bench.ledger.now_ms() // _HOUR_MS + 1) * _HOUR_MS


def _advance_to(bench: LedgerBench, at_ms: int) -> None:
    bench.advance(at_ms - bench.ledger.now_ms())
