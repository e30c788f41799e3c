"""The settings of pools of workers: of the decision how many a load needs, and of the controller."""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final

from headrace.core.errors import ConfigError, DataError
from headrace.core.settings import Setting, check
from headrace.core.settings_reader import read_settings
from headrace.jobs.job import QUEUE_DEFAULT
from headrace.jobs.schedules import last_time_ms
from headrace.jobs.worker import CONCURRENCY_MAX

WORKERS_MAX: Final = 1000
POOL_DEFAULT: Final = "default"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_DAY_S: Final = 86_400.0
_BACKLOG_DIGITS_MAX: Final = 18
Steps = tuple[tuple[int, int], ...]
"""Backlogs, ascending, with the numbers of workers that apply from them on."""


def _parse_steps(table: dict[str, int]) -> Steps:
    steps: dict[int, int] = {}
    for text, workers in table.items():
        is_number = text.isdecimal() and len(text) <= _BACKLOG_DIGITS_MAX
        if not is_number or not int(text) or not 0 < workers <= WORKERS_MAX:
            raise ConfigError(
                f"{text!r:.40} = {workers} must be a backlog of 1 or more and its number of workers"
            )
        steps[int(text)] = workers
    return tuple(sorted(steps.items()))


@dataclass(frozen=True, slots=True)
class WorkerRange:
    """The smallest and the largest number of workers of a pool: ``0..8``."""

    least: int
    most: int

    def __post_init__(self) -> None:
        """Raise ConfigError for a range that no pool can have."""
        if not 0 <= self.least <= self.most <= WORKERS_MAX:
            raise ConfigError(f"{self}: must be a smallest number and a largest one up to {WORKERS_MAX}")

    def __str__(self) -> str:
        return f"{self.least}..{self.most}"

    @classmethod
    def parse(cls, text: str) -> "WorkerRange":
        """Return the range of ``MIN..MAX``, or of ``N`` for N..N. Raise ConfigError for other texts."""
        first, dots, last = text.partition("..")
        numbers = (first, last if dots else first)
        if not all(number.isdecimal() and len(number) <= len(str(WORKERS_MAX)) for number in numbers):
            raise ConfigError(f"{text!r:.40} is no range of workers: write 0..8, or 4 for always four")
        return cls(*map(int, numbers))


_RANGE_EXPECTED: Final = "a range of workers such as 0..8"


@dataclass(frozen=True, slots=True)
class ScheduledLimits:
    """A range of workers that applies from each time of a cron expression until the next of any schedule."""

    cron: Annotated[str, Setting("Times at which the range begins: a cron expression of five fields.")]
    workers: Annotated[
        WorkerRange,
        Setting(
            "Smallest and largest number of workers.",
            metavar="MIN..MAX",
            expected=_RANGE_EXPECTED,
            written=str,
            parse=WorkerRange.parse,
        ),
    ]
    time_zone: Annotated[str, Setting("Time zone of the times.")] = "UTC"

    def __post_init__(self) -> None:
        """Raise ConfigError for an invalid cron expression or time zone."""
        check(self)
        try:
            last_time_ms(self.cron, self.time_zone, 0)
        except DataError as error:
            raise ConfigError(str(error)) from error


def _parse_schedules(tables: list[dict[str, Any]]) -> tuple[ScheduledLimits, ...]:
    return tuple(
        read_settings(ScheduledLimits, table, f"schedule {number}") for number, table in enumerate(tables, 1)
    )


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """The settings of the decision for one pool. Raises ConfigError for invalid values.

    Without `backlog_per_worker`, `target_wait_s` and `steps`, the backlog of a worker is its number of
    slots: every due job gets a slot.
    """

    workers: Annotated[
        WorkerRange,
        Setting(
            "Smallest and largest number of workers.",
            metavar="MIN..MAX",
            expected=_RANGE_EXPECTED,
            written=str,
            parse=WorkerRange.parse,
            default="0..8",
        ),
    ] = WorkerRange(0, 8)
    backlog_per_worker: Annotated[
        float | None,
        Setting(
            "Due and running jobs for each worker.", above=0, default="the jobs that a worker runs at once"
        ),
    ] = None
    target_wait_s: Annotated[
        float | None,
        Setting(
            "Seconds after which due jobs are to have begun, as far as their run times are known.",
            above=0,
            default="none",
        ),
    ] = None
    steps: Annotated[
        Steps,
        Setting(
            "Numbers of workers by the backlog from which they apply.",
            expected="a table of backlogs and numbers of workers, such as { 1 = 1, 100 = 4 }",
            written=dict[str, int],
            parse=_parse_steps,
            default="none",
        ),
    ] = ()
    schedules: Annotated[
        tuple[ScheduledLimits, ...],
        Setting(
            "Limits that begin at times of a cron expression.",
            expected="a list of tables with cron and workers",
            written=list[dict[str, Any]],
            parse=_parse_schedules,
        ),
    ] = ()
    tolerance: Annotated[
        float,
        Setting(
            "Share by which the backlog may differ from its target without a change of the workers.",
            least=0,
            most=1,
        ),
    ] = 0.0
    scale_out_window_s: Annotated[
        float,
        Setting("Seconds for which workers must be needed before they are added.", least=0, most=_DAY_S),
    ] = 0.0
    scale_in_window_s: Annotated[
        float,
        Setting(
            "Seconds for which workers must be superfluous before they are removed.", least=0, most=_DAY_S
        ),
    ] = 300.0
    idle_s: Annotated[
        float | None,
        Setting(
            "Seconds without a job after which the last worker is removed.",
            least=0,
            most=_DAY_S,
            default="the window for removals",
        ),
    ] = None
    scale_out_cooldown_s: Annotated[
        float, Setting("Seconds between two additions of workers.", least=0, most=_DAY_S)
    ] = 0.0
    scale_in_cooldown_s: Annotated[
        float, Setting("Seconds between two removals of workers.", least=0, most=_DAY_S)
    ] = 0.0
    scale_out_step: Annotated[
        int | None,
        Setting("Limit of workers that are added in one decision; 0 adds none.", least=0, default="no limit"),
    ] = None
    scale_in_step: Annotated[
        int | None,
        Setting(
            "Limit of workers that are removed in one decision; 0 removes none.", least=0, default="no limit"
        ),
    ] = None
    scale_out_percent: Annotated[
        float | None,
        Setting(
            "Limit of workers that are added in one decision, in percent; the larger limit counts.",
            above=0,
            default="no limit",
        ),
    ] = None
    scale_in_percent: Annotated[
        float | None,
        Setting(
            "Limit of workers that are removed in one decision, in percent; the larger limit counts.",
            above=0,
            default="no limit",
        ),
    ] = None

    def __post_init__(self) -> None:
        """Raise ConfigError for values out of range."""
        check(self)


@dataclass(frozen=True, slots=True)
class PoolSettings(ScalingSettings):
    """The settings of a pool: of the decision, and of its controller. Raises ConfigError."""

    pool: Annotated[
        str,
        Setting(
            "Name of the pool. One controller at a time scales a pool.", metavar="NAME", python_only=True
        ),
    ] = POOL_DEFAULT
    queues: Annotated[
        tuple[str, ...],
        Setting(
            "Queue from which the workers take jobs. Repeatable.",
            option="queue",
            default="default",
            metavar="NAME",
        ),
    ] = (QUEUE_DEFAULT,)
    slots: Annotated[
        int,
        Setting(
            "Number of jobs that a worker runs at once, until a worker reports its own.",
            least=1,
            most=CONCURRENCY_MAX,
        ),
    ] = 8
    interval_s: Annotated[
        float, Setting("Seconds between two decisions; new jobs cause one at once.", above=0, most=60)
    ] = 5.0

    def __post_init__(self) -> None:
        """Raise ConfigError for values out of range."""
        check(self)
        if not _NAME.fullmatch(self.pool):
            raise ConfigError(
                f"{self.pool!r:.80} is no name of a pool: use letters, digits, '.', '-' and '_'"
            )
        if not self.queues or not all(self.queues):
            raise ConfigError("queues must have names")


@dataclass(frozen=True, slots=True)
class InstanceScalingSettings(ScalingSettings):
    """The settings of the decision for a served model. Raises ConfigError for invalid values.

    A job of the inherited settings is a row here, and a worker is an instance. The window for removals
    is that of pools and of the HorizontalPodAutoscaler: an instance may take minutes to load again.
    """

    # Fields without a declaration are no keys: a served model has one range, and keeps an instance.
    workers: WorkerRange = WorkerRange(1, 1)
    schedules: tuple[ScheduledLimits, ...] = ()
    idle_s: float | None = None
    backlog_per_worker: Annotated[
        float | None,
        Setting(
            "Waiting and running rows for each instance.",
            above=0,
            default="max_batch_rows of the model, at most 32",
        ),
    ] = None
    tolerance: Annotated[
        float,
        Setting(
            "Share by which the rows may differ from their target without a change of the instances.",
            least=0,
            most=1,
        ),
    ] = 0.1
    """That of the HorizontalPodAutoscaler: rows that wait for a moment need no instance, unlike jobs."""
    scale_out_window_s: Annotated[
        float,
        Setting("Seconds for which instances must be needed before they are added.", least=0, most=_DAY_S),
    ] = 3.0
    """A shorter burst ends before an instance has loaded."""
