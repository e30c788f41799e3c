"""Schedules: a job submitted at the times of a cron expression in a time zone. Pure.

The times follow Debian's cron when a time zone changes its offset. A time of day that a change to
daylight saving time skips is replaced by the next minute that exists. One that occurs twice fires the
first time only. Expressions whose minute or hour begins with ``*`` follow the elapsed time instead: they
fire in both of the repeated hours.

Strings of a job may name the time of a run, in the schedule's time zone: ``{time:%Y-%m-%d}``.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, tzinfo
from difflib import get_close_matches
from functools import cache
from itertools import islice, takewhile
from typing import Any, Final, Literal, cast
from zoneinfo import ZoneInfo, available_timezones

import orjson

from headrace.core.errors import DataError, LimitError, MissingExtraError
from headrace.jobs.submission import (
    FIELDS,
    Submission,
    SubmissionHeaders,
    SubmissionLimits,
    format_value,
    read_document,
)

SCHEDULES_MAX: Final = 1000
"""Limit of the schedules of a tenant."""
SETTINGS_BYTES_MAX: Final = 64 << 10
"""Limit of the settings of a schedule as JSON, with the inline input of the job."""
MISSED_COUNTED_MAX: Final = 100
"""Limit to which missed times are counted."""
SCHEDULE_TAG: Final = "schedule"
"""The tag that names the schedule of a job, unless the job has such a tag of its own."""
TIME_DIRECTIVES: Final = "YmdHMSyjGVuz%"
"""The directives of ``{time:…}``: those that every platform and locale formats alike."""
_DIRECTIVES: Final = frozenset(TIME_DIRECTIVES)
_CRON_CHARS_MAX: Final = 200
_CRON_FIELDS: Final = 5
_NOT_SCHEDULED: Final = ("upload",)
_EXPANDED: Final = ("input_uri", "output_uri", "key", "options", "tags")
_PLACEHOLDER: Final = re.compile(r"\{time(?:\}|:([^{}]*)(\})?)")
_DIRECTIVE: Final = re.compile(r"%.?", re.DOTALL)

Overlap = Literal["allow", "skip"]


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """The settings of a schedule.

    `cron` has five fields. `time_zone` is a name of the IANA database. `job` is the body of a
    submission, as JSON, with placeholders. `overlap`: with "skip" no job is submitted while the last
    one has not ended.
    """

    cron: str
    job: Mapping[str, Any]
    time_zone: str = "UTC"
    overlap: Overlap = "allow"


@dataclass(frozen=True, slots=True)
class JobSchedule:
    """A schedule of a tenant."""

    tenant: str
    name: str
    settings: ScheduleSettings
    version: int = 1
    changed_at_ms: int = 0
    changed_by: str = ""
    """The name of the API key that wrote the settings. Jobs are submitted with its rights."""
    next_at_ms: int | None = None
    """The next time to submit a job; None while the schedule is paused."""
    last_at_ms: int | None = None
    """The time of the last run, whether or not it made a job."""
    last_job_id: str = ""
    """The last job that a run made."""
    last_error: str = ""
    """The reason why the last run made no job; "" if it made one."""
    missed: int = 0
    """Missed times that the last run stands for, counted up to `MISSED_COUNTED_MAX`."""

    @property
    def paused(self) -> bool:
        """True if no job is submitted."""
        return self.next_at_ms is None


@dataclass(frozen=True, slots=True)
class ScheduleClaim:
    """A due schedule that one process has claimed. Its `next_at_ms` is the time of the run."""

    schedule: JobSchedule
    claimed_at_ms: int

    @property
    def at_ms(self) -> int:
        """The time of the run."""
        assert self.schedule.next_at_ms is not None, "a paused schedule is never due"
        return self.schedule.next_at_ms


def read_schedule_name(name: str) -> str:
    """Return the name of a schedule. Raise DataError for an invalid one."""
    return FIELDS["endpoint"]("schedule", name, SubmissionLimits())


def dump_schedule_settings(settings: ScheduleSettings) -> str:
    """Return settings as JSON for a ledger."""
    return orjson.dumps(settings, option=orjson.OPT_SORT_KEYS).decode()


def load_schedule_settings(text: str) -> ScheduleSettings:
    """Return settings from a ledger. Settings of newer programs are dropped."""
    known = {each.name for each in fields(ScheduleSettings)}
    return ScheduleSettings(**{name: value for name, value in orjson.loads(text).items() if name in known})


# Times


def next_time_ms(settings: ScheduleSettings, after_ms: int) -> int:
    """Return the first time of a schedule after `after_ms`, in milliseconds since the epoch.

    Raise DataError for an invalid cron expression or time zone, and for an expression without a time
    in the next 50 years.
    """
    return next(times_ms(settings, after_ms))


def times_ms(settings: ScheduleSettings, after_ms: int) -> Iterator[int]:
    """Yield the times of a schedule after `after_ms`, ascending. Raises as `next_time_ms` does."""
    for at in _cron_times(settings.cron, _read_time_zone(settings.time_zone), after_ms):
        at_ms = int(at.timestamp()) * 1000
        # The library repeats a time that stands for several skipped ones, and returns the first of
        # two equal times of day to a search that begins between them.
        if at_ms > after_ms:
            yield at_ms
            after_ms = at_ms
    raise DataError(f"cron: {format_value(settings.cron)} has no time in the next 50 years")


def last_time_ms(cron: str, time_zone: str, at_ms: int) -> int | None:
    """Return the last time of a cron expression up to `at_ms`, or None if it has none.

    Raise DataError for an invalid expression or time zone.
    """
    # The search begins at a time that it does not return.
    times = _cron_times(cron, _read_time_zone(time_zone), at_ms + 1000, reverse=True)
    found_ms = next((int(at.timestamp()) * 1000 for at in times), None)
    if found_ms is None:
        return None
    # From the second of two equal times of day, the library misses later times in the first of them.
    later = takewhile(
        lambda time_ms: time_ms <= at_ms, times_ms(ScheduleSettings(cron, {}, time_zone), found_ms)
    )
    return max(later, default=found_ms)


def due_time_ms(settings: ScheduleSettings, first_ms: int, now_ms: int) -> tuple[int, int]:
    """Return the last time of a schedule up to `now_ms`, and the number of times before it.

    `first_ms` is the first time that has had no run. Times are counted up to `MISSED_COUNTED_MAX`.
    """
    low, high = first_ms, now_ms
    # A schedule may have missed a million times: search by halves instead of walking over them.
    while low < high:
        middle = (low + high) // 2
        found = next_time_ms(settings, middle)
        low, high = (found, high) if found <= now_ms else (low, middle)
    counted = islice(times_ms(settings, first_ms - 1), MISSED_COUNTED_MAX)
    return low, sum(at_ms < low for at_ms in counted)


def claim_due(schedule: JobSchedule, now_ms: int, *, claimed_before: bool) -> ScheduleClaim:
    """Return the claim of a due schedule: at its last time, or at that of an unrecorded claim before."""
    assert schedule.next_at_ms is not None, "a paused schedule is never due"
    if not claimed_before:
        try:
            at_ms, missed = due_time_ms(schedule.settings, schedule.next_at_ms, now_ms)
        except DataError:
            # The run fails with this error, which its record shows.
            at_ms, missed = schedule.next_at_ms, 0
        schedule = replace(schedule, next_at_ms=at_ms, missed=missed)
    return ScheduleClaim(schedule, now_ms)


def time_after_run_ms(settings: ScheduleSettings, at_ms: int) -> int | None:
    """Return the next time of a schedule after a run, or None if this host cannot compute it."""
    try:
        return next_time_ms(settings, at_ms)
    except DataError:
        return None


def format_time(settings: ScheduleSettings, at_ms: int) -> str:
    """Return a time in the schedule's time zone as ISO 8601, with its offset."""
    return datetime.fromtimestamp(at_ms // 1000, _read_time_zone(settings.time_zone)).isoformat()


def _cron_times(cron: str, zone: tzinfo, from_ms: int, *, reverse: bool = False) -> Iterator[datetime]:
    """Yield the times after `from_ms`, or with `reverse` those before it, the latest first."""
    try:
        from cronsim import CronSim, CronSimError  # noqa: PLC0415 - extra `jobs`
    except ImportError as error:
        raise MissingExtraError("jobs", "a schedule") from error

    text = cron.strip()
    if len(text) > _CRON_CHARS_MAX or len(text.split()) != _CRON_FIELDS:
        raise DataError(
            f"cron: must be five fields (minute, hour, day of the month, month, day of the week), "
            f"{_CRON_CHARS_MAX} characters at most, not {format_value(cron)}"
        )
    try:
        return CronSim(text, datetime.fromtimestamp(from_ms // 1000, zone), reverse=reverse)
    except CronSimError as error:
        where = str(error).removeprefix("Bad ")
        raise DataError(f"cron: the field {where} of {format_value(cron)} is not valid") from None


def _read_time_zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    if name not in _time_zones():
        close = get_close_matches(name, _time_zones(), 1)
        advice = f"; did you mean {close[0]}?" if close else ""
        raise DataError(
            f"time_zone: {format_value(name)} is not a name of the IANA database, such as "
            f"Europe/Berlin{advice}"
        )
    return ZoneInfo(name)


@cache
def _time_zones() -> frozenset[str]:
    # "localtime" differs from host to host.
    return frozenset(available_timezones() - {"localtime"})


# Jobs


def run_key(name: str, at_ms: int) -> str:
    """Return the idempotency key of the job of one time, so that it is submitted only once."""
    return f"schedule/{name}/{at_ms}"


def read_scheduled_job(
    name: str,
    settings: ScheduleSettings,
    at_ms: int,
    limits: SubmissionLimits,
    *,
    idempotency_key: str = "",
    model_optional: bool = False,
) -> Submission:
    """Return the submission of a schedule at one time, with its placeholders expanded.

    Raises as `read_document` does, and DataError for a placeholder or a field that a schedule's job
    cannot have.
    """
    document = dict(settings.job)
    for field in _NOT_SCHEDULED:
        if field in document:
            raise DataError(f"job.{field}: one upload makes one job; give input or input_uri")
    at = datetime.fromtimestamp(at_ms // 1000, _read_time_zone(settings.time_zone))
    for field in document.keys() & set(_EXPANDED):
        document[field] = _expand(f"job.{field}", document[field], at)
    tags = document.get("tags", {})
    if isinstance(tags, dict):
        document["tags"] = {SCHEDULE_TAG: name, **tags}
    headers = SubmissionHeaders(idempotency_key=idempotency_key)
    try:
        return read_document(orjson.dumps(document), headers, limits, model_optional=model_optional)
    except DataError as error:
        raise DataError(f"job: {error}") from None
    except LimitError as error:
        raise LimitError(f"job: {error}") from None


def check_schedule(
    name: str,
    settings: ScheduleSettings,
    now_ms: int,
    limits: SubmissionLimits,
    *,
    model_optional: bool = False,
) -> Submission:
    """Return the submission of a new schedule at its next time.

    Raise DataError and LimitError for invalid settings; the message names the field.
    """
    try:
        size = len(dump_schedule_settings(settings))
    except TypeError as error:
        raise DataError(f"job: not storable as JSON: {error}") from None
    if size > SETTINGS_BYTES_MAX:
        raise LimitError(
            f"job: {size} bytes of settings exceed the limit of {SETTINGS_BYTES_MAX}: write the input to a "
            "bucket and name it as input_uri"
        )
    at_ms = next_time_ms(settings, now_ms)
    submission = read_scheduled_job(name, settings, at_ms, limits, model_optional=model_optional)
    if any("secret" in entry for entry in submission.job.notify):
        raise DataError(
            "job.notify: a schedule stores no secret of a webhook: name an endpoint that notifies the webhook"
        )
    return submission


def _expand(where: str, value: Any, at: datetime) -> Any:
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda match: _format_placeholder(where, match, at), value)
    if isinstance(value, dict):
        return {
            name: _expand(f"{where}.{name}", each, at) for name, each in cast("dict[str, Any]", value).items()
        }
    if isinstance(value, list):
        return [_expand(where, each, at) for each in cast("list[Any]", value)]
    return value


def _format_placeholder(where: str, match: re.Match[str], at: datetime) -> str:
    form = match[1] or ""
    if not match[2] or any(each[1:] not in _DIRECTIVES for each in _DIRECTIVE.findall(form)):
        raise DataError(
            f"{where}: {format_value(match[0])} must be {{time:FORMAT}} with directives of strftime, as in "
            f"{{time:%Y-%m-%d}}; known: {', '.join(f'%{each}' for each in TIME_DIRECTIVES)}"
        )
    # Directive by directive, because platforms treat other characters of a format differently.
    return _DIRECTIVE.sub(lambda directive: at.strftime(directive[0]), form)


# Documents


def schedule_document(
    schedule: JobSchedule, *, with_job: bool = True, with_notify: bool = True, times: int = 0
) -> dict[str, Any]:
    """Return a schedule as JSON, with its next times.

    Without `with_job` the job is left out, because it may be large. Without `with_notify` the job's
    notification targets are left out, because their addresses may be secrets.
    """
    values = {each.name: getattr(schedule, each.name) for each in fields(JobSchedule)}
    settings = {each.name: getattr(schedule.settings, each.name) for each in fields(ScheduleSettings)}
    hidden = () if with_notify else ("notify",)
    settings["job"] = {name: value for name, value in schedule.settings.job.items() if name not in hidden}
    if not with_job:
        del settings["job"]
    return {
        **values,
        "settings": settings,
        "paused": schedule.paused,
        "next_times": _next_times(schedule, times),
    }


def _next_times(schedule: JobSchedule, count: int) -> list[str]:
    settings, first_ms = schedule.settings, schedule.next_at_ms
    if first_ms is None or not count:
        return []
    try:
        return [format_time(settings, at_ms) for at_ms in islice(times_ms(settings, first_ms - 1), count)]
    except DataError:
        # This host may know fewer time zones than the one that wrote the schedule.
        return []
