"""The times of schedules, their placeholders, and refused settings."""

from datetime import datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import levels
from cases import for_each
from headrace.core.errors import DataError, LimitError
from headrace.jobs.schedules import (
    MISSED_COUNTED_MAX,
    SETTINGS_BYTES_MAX,
    JobSchedule,
    ScheduleSettings,
    check_schedule,
    due_time_ms,
    dump_schedule_settings,
    format_time,
    last_time_ms,
    load_schedule_settings,
    next_time_ms,
    read_schedule_name,
    read_scheduled_job,
    run_key,
    schedule_document,
    times_ms,
)
from headrace.jobs.submission import SubmissionLimits

LIMITS = SubmissionLimits()
JOB = {"model": "m", "input_uri": "s3://in/rows.csv"}
NIGHTLY = ScheduleSettings("30 2 * * *", JOB, "Europe/Berlin")
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Apia")


def ms(text, zone="UTC"):
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * 1000


def times(schedule, after_ms, count):
    return [format_time(schedule, at_ms) for at_ms in islice(times_ms(schedule, after_ms), count)]


def test_times_are_in_the_time_zone():
    assert times(NIGHTLY, ms("2026-01-01"), 2) == ["2026-01-01T02:30:00+01:00", "2026-01-02T02:30:00+01:00"]
    assert next_time_ms(NIGHTLY, ms("2026-01-01T01:30:00")) == ms("2026-01-02T01:30:00")
    assert next_time_ms(NIGHTLY, ms("2026-01-01T01:30:00") - 1) == ms("2026-01-01T01:30:00")


def test_time_skipped_in_spring_runs_at_the_next_minute_that_exists():
    assert times(NIGHTLY, ms("2026-03-28T00:00:00"), 3) == [
        "2026-03-28T02:30:00+01:00",
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]


def test_several_skipped_times_make_one_run():
    quarters = ScheduleSettings("0,15,30,45 2,3 * * *", JOB, "Europe/Berlin")
    found = times(quarters, ms("2026-03-29T00:59:59"), 3)
    assert [each[11:16] for each in found] == ["03:00", "03:15", "03:30"]


def test_repeated_hour_of_autumn_runs_once_at_a_time_of_day():
    assert times(NIGHTLY, ms("2026-10-24T12:00:00"), 2) == [
        "2026-10-25T02:30:00+02:00",
        "2026-10-26T02:30:00+01:00",
    ]
    in_second_hour = ms("2026-10-25T01:10:00")
    assert times(NIGHTLY, in_second_hour, 1) == ["2026-10-26T02:30:00+01:00"]


def test_last_time_in_the_repeated_hour_is_the_first_of_the_equal_times():
    last_ms = ms("2026-10-25T00:30:00")
    for minutes in (0, 29, 30, 59, 60, 90, 24 * 60):
        assert last_time_ms(NIGHTLY.cron, NIGHTLY.time_zone, last_ms + minutes * 60_000) == last_ms, minutes


@for_each(
    ("at", "last"),
    [("2026-01-01T01:30", "2026-01-01T01:30"), ("2026-01-01T01:29:59.999", "2025-12-31T01:30")],
)
def test_last_time_may_be_the_moment_itself(at, last):
    at_ms = int(datetime.fromisoformat(at + "+00:00").timestamp() * 1000)
    assert last_time_ms(NIGHTLY.cron, NIGHTLY.time_zone, at_ms) == ms(last)


def test_expression_without_a_time_has_no_last_time():
    assert last_time_ms("0 0 */30 2 MON#5", "UTC", 0) is None


def test_interval_runs_in_both_repeated_hours():
    every = ScheduleSettings("*/30 * * * *", JOB, "Europe/Berlin")
    found = times(every, ms("2026-10-24T23:59:59"), 4)
    assert [each[11:] for each in found] == [
        "02:00:00+02:00",
        "02:30:00+02:00",
        "02:00:00+01:00",
        "02:30:00+01:00",
    ]


def test_leap_day_is_found():
    leap = ScheduleSettings("0 0 29 2 *", JOB)
    assert times(leap, ms("2026-01-01"), 2) == ["2028-02-29T00:00:00+00:00", "2032-02-29T00:00:00+00:00"]


@for_each(
    ("cron", "message"),
    [
        ("0 0 30 2 *", "day-of-month"),
        ("0 0 */30 2 MON#5", "no time in the next 50 years"),
        ("61 * * * *", "minute"),
        ("* 24 * * *", "hour"),
        ("* * * * 8", "day-of-week"),
        ("* * * *", "five fields"),
        ("0 * * * * *", "five fields"),
        ("@daily", "five fields"),
        ("", "five fields"),
        ("1," * 200 + "2 * * * *", "five fields"),
        ("5-1 * * * *", "minute"),
        ("*/0 * * * *", "minute"),
    ],
)
def test_expression_without_a_time_is_refused(cron, message):
    with pytest.raises(DataError, match=f"^cron: .*{message}"):
        next_time_ms(ScheduleSettings(cron, JOB), 0)


@for_each("name", ["Europe/Berln", "Mars/Base", "", "../../etc/passwd", "localtime", "America"])
def test_unknown_time_zone_is_refused(name):
    with pytest.raises(DataError, match=r"^time_zone: ") as caught:
        next_time_ms(ScheduleSettings("* * * * *", JOB, name), 0)
    assert ("did you mean Europe/Berlin?" in str(caught.value)) == (name == "Europe/Berln")


fields_of = st.tuples(
    st.sampled_from(("*", "*/7", "0", "5,35", "10-20")),
    st.sampled_from(("*", "*/5", "2", "1-3", "0,23")),
    st.sampled_from(("*", "1", "31", "*/10", "L")),
    st.sampled_from(("*", "2", "3,10", "*/4")),
    st.sampled_from(("*", "MON-FRI", "0", "7", "5")),
).map(" ".join)
HOUR_S = 3600
moments_s = st.integers(ms("2024-01-01") // 1000, ms("2030-01-01") // 1000) | st.sampled_from(
    [ms(day) // 1000 for day in ("2026-03-29", "2026-10-25", "2026-03-08", "2026-11-01", "2026-04-04")]
).flatmap(lambda at_s: st.integers(at_s - 12 * HOUR_S, at_s + 24 * HOUR_S))


def allowed(text, first, last):
    """Return the numbers of a field, by a parser of its own."""
    numbers = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        low, _, high = span.partition("-")
        names = {"MON": "1", "FRI": "5"}
        low, high = names.get(low, low), names.get(high, high)
        found = range(first, last + 1) if low == "*" else range(int(low), int(high or low) + 1)
        numbers |= set(list(found)[:: int(step or 1)])
    return numbers


def matches(cron, at):
    minute, hour, day, month, weekday = cron.split()
    last_day = (at + timedelta(days=1)).day == 1
    in_day = last_day if day == "L" else at.day in allowed(day, 1, 31)
    in_week = bool({at.isoweekday() % 7, at.isoweekday()} & allowed(weekday, 0, 7))
    by_day = in_day and in_week if day.startswith("*") or weekday.startswith("*") else in_day or in_week
    return (
        by_day
        and at.minute in allowed(minute, 0, 59)
        and at.hour in allowed(hour, 0, 23)
        and at.month in allowed(month, 1, 12)
    )


@settings(max_examples=levels.examples(2), deadline=None)
@given(fields_of, st.sampled_from(ZONES), moments_s)
def test_times_ascend_and_match_their_fields(cron, zone, after_s):
    schedule = ScheduleSettings(cron, JOB, zone)
    try:
        found = list(islice(times_ms(schedule, after_s * 1000), 4))
    except DataError:
        assert " 2 " in cron  # the 31st of February
        return
    assert found == sorted(set(found))
    assert found[0] > after_s * 1000
    for at_ms in found:
        at = datetime.fromtimestamp(at_ms // 1000, ZoneInfo(zone))
        earlier = datetime.fromtimestamp(at_ms // 1000 - 24 * HOUR_S, ZoneInfo(zone))
        # A change of the offset may have moved a skipped time.
        assert matches(cron, at) or at.utcoffset() != earlier.utcoffset(), (cron, zone, at)


@settings(max_examples=levels.examples(1), deadline=None)
@given(fields_of, st.sampled_from(ZONES), moments_s, st.integers(0, 3 * 24 * HOUR_S))
def test_due_time_is_the_last_of_the_missed_times(cron, zone, after_s, waited_s):
    schedule = ScheduleSettings(cron, JOB, zone)
    try:
        first_ms = next_time_ms(schedule, after_s * 1000)
    except DataError:
        return
    now_ms = first_ms + waited_s * 1000
    passed = [first_ms]
    for at_ms in times_ms(schedule, first_ms):
        if at_ms > now_ms:
            break
        passed.append(at_ms)
    missed = min(len(passed) - 1, MISSED_COUNTED_MAX)
    assert due_time_ms(schedule, first_ms, now_ms) == (passed[-1], missed)
    assert last_time_ms(cron, zone, now_ms) == passed[-1]


def submission(job, *, at="2026-11-28T01:30:00", zone="Europe/Berlin", **options):
    schedule = ScheduleSettings("30 2 * * *", job, zone)
    return read_scheduled_job("nightly", schedule, ms(at), LIMITS, **options)


def test_placeholders_have_the_time_of_the_run_in_the_time_zone():
    job = {
        "model": "m",
        "kind": "transform",
        "input_uri": "s3://in/{time:%Y/%m/%d}/",
        "output_uri": "s3://out/{time:%Y-%m-%dT%H%M%z}/",
        "options": {"read": {"name": ["{time:%j}", 3]}, "plain": "{timeline} {a} 100%"},
        "tags": {"day": "{time:%d}/{time:%m}"},
        "correlation_id": "{time:%d}",
    }
    found = submission(job).job
    assert found.input_uri == "s3://in/2026/11/28/"
    assert found.output_uri == "s3://out/2026-11-28T0230+0100/"
    assert found.options == {"read": {"name": ["332", 3]}, "plain": "{timeline} {a} 100%"}
    assert found.tags == {"schedule": "nightly", "day": "28/11"}
    assert found.correlation_id == "{time:%d}"


@for_each("text", ["{time}", "{time:%Y", "{time:%Q}", "{time:%}", "{time:%-d}", "{time:%c}", "{time:%Y{a}}"])
def test_invalid_placeholder_is_refused(text):
    for job in ({**JOB, "key": text}, {**JOB, "options": {"a": [text]}}):
        with pytest.raises(DataError, match=r"^job\.(key|options\.a): .*time:FORMAT"):
            submission(job)


def test_job_of_one_time_has_one_idempotency_key_and_digest():
    first, again = (submission(JOB, idempotency_key=run_key("nightly", 5)).job for _ in range(2))
    assert (first, first.idempotency_key) == (again, "schedule/nightly/5")
    assert submission({**JOB, "tags": {"schedule": "other"}}).job.tags == {"schedule": "other"}


@for_each(
    ("job", "message"),
    [
        ({"input": [1]}, "job: model: is missing"),
        ({"model": "m"}, "job: input_uri: is missing"),
        ({"model": "m", "upload": "u", "content_type": "text/csv"}, "job.upload: "),
        ({**JOB, "colour": "m"}, "job: 'colour' is not a field"),
        ({**JOB, "notify": [{"webhook": "https://h.example/", "secret": "whsec_eA=="}]}, "job.notify: "),
        ({**JOB, "notify": 7}, "job: notify: must be a list"),
        ({**JOB, "tags": 7}, "job: tags: must be a JSON object"),
        ({**JOB, "input_uri": 7}, "job: input_uri: must be a URI"),
    ],
)
def test_invalid_job_is_refused(job, message):
    with pytest.raises(DataError) as caught:
        check_schedule("s", ScheduleSettings("* * * * *", job), 0, LIMITS)
    assert str(caught.value).startswith(message)


def test_large_settings_are_refused():
    job = {"model": "m", "input": "x" * SETTINGS_BYTES_MAX}
    with pytest.raises(LimitError, match=rf"limit of {SETTINGS_BYTES_MAX}"):
        check_schedule("s", ScheduleSettings("* * * * *", job), 0, LIMITS)
    with pytest.raises(LimitError, match=r"^job: tags: 33 tags"):
        check_schedule(
            "s", ScheduleSettings("* * * * *", {**JOB, "tags": {f"t{n}": "" for n in range(32)}}), 0, LIMITS
        )
    with pytest.raises(DataError, match=r"^schedule: "):
        read_schedule_name("a b")


def test_settings_survive_the_ledger_without_those_of_newer_programs():
    text = dump_schedule_settings(NIGHTLY)
    assert load_schedule_settings(text) == NIGHTLY
    assert load_schedule_settings(text.replace("{", '{"newer": 1, ', 1)) == NIGHTLY


def test_document_has_the_next_times_and_hides_targets():
    schedule = JobSchedule(
        "t",
        "s",
        ScheduleSettings("0 0 * * *", {**JOB, "notify": [{"webhook": "https://h.example/"}]}),
        next_at_ms=ms("2026-01-01"),
    )
    shown = schedule_document(schedule, times=2, with_notify=False)
    assert shown["next_times"] == ["2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00"]
    assert (shown["paused"], shown["settings"]["job"]) == (False, JOB)
    assert schedule_document(schedule)["settings"]["job"]["notify"]
    assert "job" not in schedule_document(schedule, with_job=False)["settings"]
    paused = JobSchedule("t", "s", NIGHTLY)
    assert (schedule_document(paused, times=2)["next_times"], paused.paused) == ([], True)
    unknown = JobSchedule("t", "s", ScheduleSettings("* * * * *", JOB, "Newer/Zone"), next_at_ms=1)
    assert schedule_document(unknown, times=2)["next_times"] == []


def test_midnight_that_does_not_exist_is_the_first_moment_of_the_day():
    cuba = ScheduleSettings("0 0 * * *", JOB, "America/Havana")
    assert times(cuba, ms("2026-03-07T12:00:00"), 1) == ["2026-03-08T01:00:00-04:00"]
