"""The load of a target on each part of headrace, and its share of each measured limit: pure arithmetic.

`python benchmarks/jobs/scale_model.py` prints the tables of docs/scale.md. The costs are those that
`python benchmarks/jobs scale` measured; see `MEASURED`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

DAY_S = 86_400
CORES = 2
"""Cores of the measured database. Its clients used them too."""


@dataclass(frozen=True)
class Fleet:
    """The target, and the settings that decide about its load."""

    predictions_per_day: float = 1e9
    peak: float = 3.0
    """The busiest seconds have this many times the mean."""
    workers: int = 1000
    slots: int = 8
    heartbeat_s: float = 15.0
    maintain_s: float = 5.0
    poll_s: float = 4.4
    """The mean of `WorkerSettings.poll_s` with its jitter."""
    orders_s: float = 0.1
    """The shortest time between two reads of orders by a worker with jobs."""
    keep_days: float = 30.0
    together: int = 100
    """Submissions of one commit, if many arrive at once."""
    api_processes: int = 4
    """Processes that watch all changes."""


@dataclass(frozen=True)
class Shape:
    """A way to submit the predictions. Without `rows_per_job` they are served, not submitted.

    A transform job has 100 files.
    """

    name: str
    rows_per_job: int | None
    rows_per_object: int | None
    """Rows of one object of input; each has an object of output."""

    def jobs_per_s(self, fleet: Fleet) -> float:
        """Return the mean rate of jobs."""
        if self.rows_per_job is None:
            return 0.0
        return fleet.predictions_per_day / DAY_S / self.rows_per_job

    def objects_per_day(self, fleet: Fleet) -> float:
        """Return the new objects of a day, of inputs and of outputs."""
        if self.rows_per_object is None:
            return 0.0
        return 2 * fleet.predictions_per_day / self.rows_per_object


SHAPES = (
    Shape("(a) a job each", 1, 1),
    Shape("(b) 1,000 rows a job", 1000, 1000),
    Shape("(c) files of 1,000 rows", 100_000, 1000),
    Shape("(c) files of 100,000 rows", 10_000_000, 100_000),
    Shape("(d) served", None, None),
)


@dataclass(frozen=True)
class Measured:
    """Costs in microseconds of PostgreSQL's processor time, and rates each second, on two shared cores."""

    submit_us: float
    """A job that is submitted alone."""
    submit_together_us: float
    """One of 100 jobs of a commit."""
    claim_us: float
    """A claim and the settlement of one job, alone."""
    claim_slots_us: float
    """The same for one of 8 jobs of a transaction."""
    empty_claim_us: float
    heartbeat_us: float
    """With 8 jobs."""
    orders_us: float
    reaper_us: float
    publisher_us: float
    notice_us: float
    """The sending of a notice."""
    receive_us: float
    """Its receipt by one process."""
    delete_us: float
    sweep_per_s: float
    """Jobs whose objects a process deletes, in a bucket on this machine."""
    webhooks_per_s: float
    """One deliverer of 8 threads, to 16 receivers on this machine."""
    job_bytes: float
    """An ended job with its indexes."""
    wal_bytes: float
    http_per_s: float
    """Submissions of an API process, one by one."""
    list_bucket_per_s: float
    listener_per_s: float
    """Requests of one row to a model, from docs/benchmarks.md."""


MEASURED: Measured = Measured(
    submit_us=1100,
    submit_together_us=33,
    claim_us=830,
    claim_slots_us=160,
    empty_claim_us=140,
    heartbeat_us=550,
    orders_us=99,
    reaper_us=2500,
    publisher_us=200,
    notice_us=27,
    receive_us=15,
    delete_us=20,
    sweep_per_s=490,
    webhooks_per_s=280,
    job_bytes=1600,
    wal_bytes=3200,
    http_per_s=410,
    list_bucket_per_s=30_000,
    listener_per_s=20_000,
)
"""Medians of three runs on 2026-11-29. Requests each second are those of docs/benchmarks.md."""


@dataclass(frozen=True)
class Load:
    """The load of a shape on one part: items each second at the peak, and the share of the limit."""

    per_s: float
    share: float | None
    """1.0 is the measured limit. None if the part has no limit of its own."""


@dataclass(frozen=True)
class Part:
    """A part of headrace, and its load of a shape."""

    name: str
    limit: str
    """The measured cost or limit."""
    load: Callable[["Day"], Load]


@dataclass(frozen=True)
class Day:
    """A shape on a fleet: the rates that decide about the load of the parts."""

    shape: Shape
    fleet: Fleet
    measured: Measured

    @property
    def jobs_per_s(self) -> float:
        """Jobs each second at the peak."""
        return self.shape.jobs_per_s(self.fleet) * self.fleet.peak

    @property
    def workers(self) -> int:
        """Workers of jobs; none if the predictions are served."""
        return 0 if self.shape.rows_per_job is None else self.fleet.workers

    @property
    def submit_commits_per_s(self) -> float:
        """Commits of submissions at the peak. Many submissions share them."""
        return min(self.jobs_per_s, max(self.jobs_per_s / self.fleet.together, COMMITS_PER_S))

    @property
    def jobs_per_claim(self) -> float:
        """Jobs of one claim: one at a time while the database keeps up, then as many as a worker runs."""
        alone = self.jobs_per_s * self.measured.claim_us / 1e6 / CORES
        return 1.0 if alone <= 1 else float(self.fleet.slots)

    def database(self, per_s: float, us: float) -> Load:
        """Return the share of the database's cores that these items need."""
        return Load(per_s, per_s * us / 1e6 / CORES)


COMMITS_PER_S = 350.0
"""Commits of submissions each second above which they share commits, over all API processes."""
S3_WRITES_PER_S = 3500.0
"""The writes each second that S3 documents for one prefix."""


def submissions(day: Day) -> Load:
    """Return the database's load of submissions."""
    shared = day.jobs_per_s > day.submit_commits_per_s
    us = day.measured.submit_together_us if shared else day.measured.submit_us
    return day.database(day.jobs_per_s, us)


def claims(day: Day) -> Load:
    """Return the database's load of claims and settlements."""
    us = day.measured.claim_us if day.jobs_per_claim == 1 else day.measured.claim_slots_us
    return day.database(day.jobs_per_s, us)


def wakeups(day: Day) -> Load:
    """Return the load of the claims of all workers with free slots after each commit of submissions."""
    return day.database(
        day.submit_commits_per_s * day.fleet.workers, day.measured.empty_claim_us + day.measured.receive_us
    )


def orders(day: Day) -> Load:
    """Return the load of workers with jobs, which read their orders after notices."""
    reads = min(day.submit_commits_per_s, 1 / day.fleet.orders_s)
    return day.database(day.fleet.workers * reads, day.measured.orders_us)


def changes(day: Day) -> Load:
    """Return the load of the notices of claims and settlements, which API processes receive."""
    measured, notices = day.measured, day.jobs_per_s / day.jobs_per_claim
    return day.database(notices, measured.notice_us + day.fleet.api_processes * measured.receive_us)


def polls(day: Day) -> Load:
    """Return the load of the claims of workers without a notice."""
    return day.database(day.workers / day.fleet.poll_s, day.measured.empty_claim_us)


def heartbeats(day: Day) -> Load:
    """Return the load of heartbeats."""
    return day.database(day.workers / day.fleet.heartbeat_s, day.measured.heartbeat_us)


def maintenance(day: Day) -> Load:
    """Return the load of the reaper and the publisher of each worker."""
    return day.database(
        day.workers / day.fleet.maintain_s, day.measured.reaper_us + day.measured.publisher_us
    )


def retention(day: Day) -> Load:
    """Return the load of the deletion of ended jobs, all day long."""
    return day.database(day.shape.jobs_per_s(day.fleet), day.measured.delete_us)


def webhooks(day: Day) -> Load:
    """Return the load of one webhook for each job on one deliverer."""
    return Load(day.jobs_per_s, day.jobs_per_s / day.measured.webhooks_per_s)


def sweeping(day: Day) -> Load:
    """Return the load of the deletion of payloads and results by one process, all day long."""
    per_s = day.shape.jobs_per_s(day.fleet) if has_own_objects(day.shape) else 0.0
    return Load(per_s, per_s / day.measured.sweep_per_s)


def has_own_objects(shape: Shape) -> bool:
    """Return True if the objects of the jobs are in headrace's store, and not the client's."""
    return shape.rows_per_job is not None and shape.rows_per_job == shape.rows_per_object


def api(day: Day) -> Load:
    """Return the load of submissions, one by one, on one API process."""
    return Load(day.jobs_per_s, day.jobs_per_s / day.measured.http_per_s)


def writes(day: Day) -> Load:
    """Return the writes of objects, against those of one prefix of S3."""
    per_s = day.shape.objects_per_day(day.fleet) / DAY_S * day.fleet.peak
    return Load(per_s, per_s / S3_WRITES_PER_S)


def listing(day: Day) -> Load:
    """Return the objects that one process lists: for orphans each hour, and the inputs of transforms once."""
    per_day = day.shape.objects_per_day(day.fleet)
    listed = per_day * day.fleet.keep_days * 24 if has_own_objects(day.shape) else per_day / 2
    return Load(listed / DAY_S, listed / DAY_S / day.measured.list_bucket_per_s)


def served(day: Day) -> Load:
    """Return the load of requests on one listener."""
    if day.shape.rows_per_job is not None:
        return Load(0, 0)
    per_s = day.fleet.predictions_per_day / DAY_S * day.fleet.peak
    return Load(per_s, per_s / day.measured.listener_per_s)


def parts(found: Measured) -> tuple[Part, ...]:
    """Return all parts, with their measured costs and limits."""
    return (
        Part("wakeups of idle workers", f"{us(found.empty_claim_us)} each", wakeups),
        Part("claims and settlements", f"{us(found.claim_us)}; {us(found.claim_slots_us)} in eights", claims),
        Part(
            "submissions", f"{us(found.submit_us)}; {us(found.submit_together_us)} in hundreds", submissions
        ),
        Part("notices of changes", f"{us(found.notice_us)} + {us(found.receive_us)} a receiver", changes),
        Part("reads of orders", f"{us(found.orders_us)} each", orders),
        Part("maintenance by workers", f"{us(found.reaper_us + found.publisher_us)} a round", maintenance),
        Part("polls of idle workers", f"{us(found.empty_claim_us)} each", polls),
        Part("heartbeats of 8 jobs", f"{us(found.heartbeat_us)} each", heartbeats),
        Part("retention", f"{us(found.delete_us)} a job", retention),
        Part("deletion of objects, one process", quantity(found.sweep_per_s, "/s"), sweeping),
        Part("one API process, jobs one by one", quantity(found.http_per_s, "/s"), api),
        Part("one deliverer of webhooks", quantity(found.webhooks_per_s, "/s"), webhooks),
        Part("writes of objects", f"{quantity(S3_WRITES_PER_S, '/s')} a prefix (S3)", writes),
        Part("listing of objects, one process", quantity(found.list_bucket_per_s, "/s"), listing),
        Part("one listener, served online", quantity(found.listener_per_s, "/s"), served),
    )


def quantity(value: float, unit: str = "") -> str:
    """Return a number with two digits, the prefix of its unit, and the unit."""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{two_digits(value / size)} {prefix}{unit}"
    return f"{two_digits(value)}{unit if unit.startswith('/') else f' {unit}'}".strip()


def two_digits(value: float) -> str:
    """Return a number with two digits, or all digits before the point."""
    return f"{float(f'{value:.2g}'):,.10g}"


def us(value: float) -> str:
    """Return microseconds, or milliseconds of large ones."""
    return f"{two_digits(value / 1000)} ms" if value >= 1000 else f"{two_digits(value)} µs"


def share(value: float) -> str:
    """Return a share in percent, or as a multiple. Those beyond the limit are bold."""
    if value < 0.01:
        return "< 1 %"
    text = f"{two_digits(value * 100)} %" if value < 2 else f"{two_digits(value)} x"
    return f"**{text}**" if value > 1 else text


def cell(load: Load) -> str:
    """Return the cell of a load."""
    return f"{quantity(load.per_s, '/s')}, {share(load.share or 0)}" if load.per_s else "-"


def loads_table(fleet: Fleet | None = None, found: Measured = MEASURED) -> str:
    """Return the load of each part and its share of the limit, by shape, as a table in Markdown."""
    days = [Day(shape, fleet or Fleet(), found) for shape in SHAPES]
    rows: list[Sequence[str]] = [("part", "measured", *(shape.name for shape in SHAPES))]
    rows.append(("---",) * len(rows[0]))
    rows += [(part.name, part.limit, *(cell(part.load(day)) for day in days)) for part in parts(found)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def storage_table(fleet: Fleet | None = None, found: Measured = MEASURED) -> str:
    """Return the jobs, rows and bytes of a day as a table in Markdown."""
    rows: list[Sequence[str]] = [
        ("shape", "jobs a day", "ledger", "kept", "write-ahead log, peak", "objects a day")
    ]
    rows.append(("---",) * len(rows[0]))
    fleet = fleet or Fleet()
    for shape in SHAPES:
        day = Day(shape, fleet, found)
        jobs = shape.jobs_per_s(fleet) * DAY_S
        nbytes = jobs * found.job_bytes
        rows.append((
            shape.name,
                quantity(jobs), f"{quantity(nbytes, 'B')} a day",
            f"{quantity(nbytes * fleet.keep_days, 'B')} in {fleet.keep_days:g} days",
            quantity(day.jobs_per_s * found.wal_bytes, "B/s"), quantity(shape.objects_per_day(fleet)),
        ))  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def first_limit(shape: Shape, fleet: Fleet | None = None, found: Measured = MEASURED) -> tuple[str, float]:
    """Return the part with the largest share of its limit, and the share."""
    day = Day(shape, fleet or Fleet(), found)
    loads = {part.name: part.load(day).share or 0.0 for part in parts(found)}
    name = max(loads, key=lambda each: loads[each])
    return name, loads[name]


def main() -> None:
    """Print the tables of docs/scale.md."""
    print(loads_table(), storage_table(), sep="\n\n")
    for shape in SHAPES:
        name, load = first_limit(shape)
        print(f"\n{shape.name}: {name}, {share(load)}")


if __name__ == "__main__":
    main()
