"""Loads for simulations: generated from a few numbers, read from a trace, or taken from a job server."""

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import exp, isfinite, log, nan, sqrt
from statistics import NormalDist
from typing import Annotated, Final, Literal, TextIO

import numpy as np

from headrace.core.errors import ConfigError, DataError
from headrace.core.settings import Setting, check
from headrace.jobs.job import Job
from headrace.jobs.state import JobState
from headrace.scaling.planner.load import DAY_S, MONDAY_MS, Load, Seconds
from headrace.scaling.planner.traces import read_trace

Pattern = Literal["even", "random", "office", "burst"]

JOBS_MAX: Final = 10_000_000
DAYS_MAX: Final = 1000
RUN_S_MIN: Final = 0.001
"""The run time of a job that took less: records and traces have milliseconds or whole seconds."""
_P95_DEVIATIONS: Final = NormalDist().inv_cdf(0.95)
P95_RATIO_MAX: Final = exp(_P95_DEVIATIONS**2 / 2)
"""The largest 95th percentile of a log-normal law with the mean 1: 3.868."""
_OPENS_S: Final = 9 * 3600.0
_OPEN_S: Final = 8 * 3600.0


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The numbers from which loads are generated. Raises ConfigError for values out of range."""

    jobs_per_day: Annotated[float, Setting("Mean number of jobs in a day.", above=0)] = 100.0
    arrivals: Annotated[
        Pattern,
        Setting(
            "Pattern of arrivals: at equal intervals (even), at random over 24 hours (random) or from 09:00 "
            "to 17:00 UTC (office) of each day, or all at 09:00 UTC (burst)."
        ),
    ] = "random"
    days: Annotated[int, Setting("Number of days, from a Monday on.", least=1, most=DAYS_MAX)] = 7
    run_s: Annotated[
        float | None,
        Setting(
            "Mean seconds that a job takes alone in a worker.",
            above=0,
            default="those of the trace or of the job server",
        ),
    ] = None
    run_p95_s: Annotated[
        float | None,
        Setting(
            "95th percentile of the seconds that jobs take alone; their law is log-normal.",
            above=0,
            default="all jobs take equally long",
        ),
    ] = None
    seed: Annotated[int, Setting("Seed of random arrivals and run times.", least=0)] = 0

    def __post_init__(self) -> None:
        """Raise ConfigError for values out of range, or that contradict each other."""
        check(self)
        if self.run_p95_s is None:
            return
        if self.run_s is None:
            raise ConfigError("run_p95_s needs run_s: give the mean seconds of a job, too")
        most_s = P95_RATIO_MAX * self.run_s
        if not self.run_s <= self.run_p95_s <= most_s:
            raise ConfigError(
                f"run_p95_s must be from {self.run_s:g} to {most_s:.4g} seconds, not {self.run_p95_s:g}: the "
                f"95th percentile of a log-normal law is at most {P95_RATIO_MAX:.3f} times the mean, run_s"
            )


def generated_load(options: LoadOptions) -> Load:
    """Return jobs that arrive by a pattern. Equal options give equal jobs.

    The number of jobs is the rounded product of jobs a day and days, for each pattern. Random arrivals are
    those of a Poisson process, given this number.

    Raises:
        ConfigError: The run time is missing, or there are no jobs or too many.
    """
    wanted = options.jobs_per_day * options.days
    if wanted > JOBS_MAX:
        raise ConfigError(
            f"{wanted:,.0f} jobs are more than {JOBS_MAX:,}: reduce jobs_per_day ({options.jobs_per_day:g}) "
            f"or days ({options.days})"
        )
    count = round(wanted)
    if not count:
        raise ConfigError(
            f"jobs_per_day ({options.jobs_per_day:g}) and days ({options.days}) make no job: increase one"
        )
    arrived_s = _PATTERNS[options.arrivals](count, options.days, _generator(options, 0))
    run_s = _complete(np.full(count, nan), options, "run_s is missing: give the mean seconds of a job")
    return Load(arrived_s, run_s, options.days * DAY_S, began_at_ms=MONDAY_MS)


def traced_load(file: TextIO, name: str, options: LoadOptions) -> Load:
    """Return the jobs of a CSV file, as `read_trace` reads it, in the order of their arrivals.

    The options' run times replace missing ones; their other numbers do not count. The load begins at the
    midnight (UTC) before the first arrival and ends at the one after the last.

    Args:
        file: The file, open as text.
        name: The name of the file, for messages.
        options: The run times of jobs without one, and their seed.

    Raises:
        DataError: A line is invalid, or the arrivals are too far apart.
        ConfigError: Run times are missing, in the file and in the options.
    """
    trace = read_trace(file, name)
    advice = (
        f"{name}, line {trace.missing_line}: has no run time: add a second column or a column run_seconds, "
        "or set run_s"
    )
    return _whole_days(trace.arrived_s, _complete(trace.run_s, options, advice), name)


def load_of_jobs(jobs: Iterable[Job], options: LoadOptions) -> Load:
    """Return the load of a job server's records, in the order in which the jobs were due.

    A job arrives when it is due for the first time. The record of a job with several attempts has only its
    creation, which counts then. The run time is that of the last attempt, with the publication of its
    result. The options' run times replace those of jobs that have not ended or ended between two attempts;
    without them, such jobs are left out. Jobs that ended before they began are always left out, and so are
    blocked jobs. The load begins at the midnight (UTC) before the first arrival and ends at the one after
    the last.

    Raises:
        ConfigError: There are no such jobs, or too many.
        DataError: The arrivals are too far apart.
    """
    arrived, run, seen = array("d"), array("d"), 0
    for job in jobs:
        seen += 1
        took_s = _attempt_s(job)
        if took_s is None or (options.run_s is None and not isfinite(took_s)):
            continue
        if len(arrived) == JOBS_MAX:
            raise ConfigError(f"the jobs are more than {JOBS_MAX:,}: take those of fewer days")
        arrived.append(_arrival_ms(job) / 1000)
        run.append(took_s)
    if not arrived:
        raise ConfigError(
            f"none of {seen:,} jobs has a run time: take jobs that have ended, or set run_s"
            if seen
            else "the job server has no such jobs: take those of more days or queues, or generate a load"
        )
    return _whole_days(np.array(arrived), _complete(np.array(run), options, ""), "the jobs")


def _attempt_s(job: Job) -> float | None:
    """Return the seconds of the last attempt: NaN if they are unknown, None for a job without any work."""
    if job.state is JobState.BLOCKED or (job.state.ended and job.started_at_ms is None):
        return None
    if job.started_at_ms is None or job.ended_at_ms is None or _is_returned(job):
        return nan
    return max(0, job.ended_at_ms - job.started_at_ms) / 1000


def _arrival_ms(job: Job) -> int:
    """Return the first due time. A later attempt has replaced it in the record: then, the creation."""
    return job.created_at_ms if job.lease > 1 or _is_returned(job) else job.due_at_ms


def _is_returned(job: Job) -> bool:
    """Return True if the last attempt ended before the job did: the job became due again."""
    return job.started_at_ms is not None and job.due_at_ms > job.started_at_ms


def _whole_days(arrived_s: Seconds, run_s: Seconds, name: str) -> Load:
    """Return the load of jobs at times since 1970 in any order, over the days in which they arrived."""
    order = np.argsort(arrived_s, kind="stable")
    arrived_s, run_s = arrived_s[order], run_s[order]
    first_day, last_day = int(arrived_s[0] // DAY_S), int(arrived_s[-1] // DAY_S)
    days = last_day - first_day + 1
    if days > DAYS_MAX:
        raise DataError(
            f"{name}: the arrivals from {_date(first_day)} to {_date(last_day)} span more than {DAYS_MAX:,} "
            "days: take fewer days, or correct wrong times"
        )
    began_s = first_day * DAY_S
    return Load(arrived_s - began_s, run_s, days * DAY_S, began_at_ms=round(began_s * 1000))


def _date(day: int) -> str:
    return str(np.datetime64(day, "D"))


def _complete(run_s: Seconds, options: LoadOptions, advice: str) -> Seconds:
    """Return run times with drawn ones in the place of NaN. Raise ConfigError if none can be drawn."""
    missing = np.isnan(run_s)
    if missing.any():
        if options.run_s is None:
            raise ConfigError(advice)
        run_s = run_s.copy()
        run_s[missing] = _drawn(options, options.run_s, int(missing.sum()))
    return np.maximum(run_s, RUN_S_MIN)


def _drawn(options: LoadOptions, mean_s: float, count: int) -> Seconds:
    """Return run times of the log-normal law with a mean and a 95th percentile."""
    if options.run_p95_s in (None, mean_s):
        return np.full(count, mean_s)
    # p95 / mean = exp(z·sigma - sigma²/2). Of two solutions, the smaller sigma is the less extreme law.
    sigma = _P95_DEVIATIONS - sqrt(max(0.0, _P95_DEVIATIONS**2 - 2 * log(options.run_p95_s / mean_s)))
    return _generator(options, 1).lognormal(log(mean_s) - sigma**2 / 2, sigma, count)


def _generator(options: LoadOptions, stream: int) -> np.random.Generator:
    """Return independent random numbers for each stream, so that run times do not change the arrivals."""
    return np.random.default_rng((options.seed, stream))


def _even(count: int, days: int, _: np.random.Generator) -> Seconds:
    return np.arange(count, dtype=np.float64) * (days * DAY_S / count)


def _random(count: int, days: int, draw: np.random.Generator) -> Seconds:
    return np.sort(draw.random(count) * (days * DAY_S))


def _office(count: int, days: int, draw: np.random.Generator) -> Seconds:
    day, since_s = np.divmod(np.sort(draw.random(count) * (days * _OPEN_S)), _OPEN_S)
    return day * DAY_S + _OPENS_S + since_s


def _burst(count: int, days: int, _: np.random.Generator) -> Seconds:
    day = np.arange(count) * days // count
    return day.astype(np.float64) * DAY_S + _OPENS_S


_PATTERNS: Final[Mapping[Pattern, Callable[[int, int, np.random.Generator], Seconds]]] = {
    "even": _even,
    "random": _random,
    "office": _office,
    "burst": _burst,
}
