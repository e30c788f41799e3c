"""Lists of jobs: a page reads a bounded number of rows, whatever its filter.

Each list walks an index that begins with the columns of one condition, then has the time of creation and
the id, newest first. A filter with several conditions could walk the index of any of them. `find_page`
first measures where the next rows of each walk end, and takes the walk that gets furthest: the one with
the fewest rows. Its rows up to that place are compared with the other conditions.

The indexes of states and tenants end with further columns, so that conditions on these are decided
without the rows of the table. Such a walk reads `ROWS_READ_MAX` entries for a page, others
`ROWS_FETCHED_MAX`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.core.errors import DataError
from headrace.jobs.ledger import JobFilter, Page
from headrace.jobs.ledgers.database import Statement, Transaction, read_statement
from headrace.jobs.ledgers.rows import clean, job_of
from headrace.jobs.state import JobState

ROWS_READ_MAX: Final = 5_000
"""The number of index entries that are compared with a filter for one page."""
ROWS_FETCHED_MAX: Final = 1_000
"""The number of rows that are fetched and compared with a filter for one page."""

Position = tuple[int, str]
"""The time of creation and the id of a job: its place in all lists."""

_FIRST: Final[Position] = (1 << 62, "")
_LAST: Final[Position] = (1, "")
"""The end of all lists. Tags that older programs wrote have the time 0."""
_MS_DIGITS_MAX: Final = 15
_FIND: Final = read_statement("find_jobs")
_PLACES: Final = read_statement("job_places")
_JOBS: Final = "headrace_job AS job"
_TAGS: Final = "headrace_tag AS tag"
_JOB_OF_TAG: Final = " JOIN headrace_job AS job ON job.id = tag.job_id"
_RARE_COLUMNS: Final = ("correlation_id", "fingerprint")
"""The columns with indexes of their own, which leave out empty values."""
_COLUMNS: Final = (*_RARE_COLUMNS, "tenant", "queue", "model", "kind")
"""The conditions of a filter on one column."""
_COVERED: Final[Mapping[str, frozenset[str]]] = {
    "": frozenset({"tenant", "queue", "model", "kind"}),
    "states": frozenset({"tenant", "queue", "model", "kind"}),
    "tenant": frozenset({"queue", "model", "kind"}),
}
"""The other conditions that the index of a walk decides, by the walk's own condition."""
_LISTED: Final = "length(job.id) >= 0"
"""The condition of the indexes for lists, which holds for every job."""


@dataclass(frozen=True, slots=True)
class Branch:
    """Jobs in the order of one index.

    `condition` has the values of the first columns of the index, and the condition of a partial index;
    `place` are the next two columns. `join` adds the job to the source, for other conditions.
    """

    condition: str
    source: str = _JOBS
    place: tuple[str, str] = ("job.created_at_ms", "job.id")
    join: str = ""


@dataclass(frozen=True, slots=True)
class Walk:
    """A way to read all jobs of one condition: the branches contain each of them once.

    `condition` is the name of the condition, "" for all jobs.
    """

    condition: str
    branches: tuple[Branch, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """The rows between two positions: before `upper`, from `lower` on."""

    upper: Position
    lower: Position

    @property
    def parameters(self) -> dict[str, Any]:
        """The values of the statement's parameters."""
        (upper_ms, upper_id), (lower_ms, lower_id) = self.upper, self.lower
        return {"upper_ms": upper_ms, "upper_id": upper_id, "lower_ms": lower_ms, "lower_id": lower_id}


def find_page(transaction: Transaction, job_filter: JobFilter, after: str, limit: int) -> Page:
    """Return a page of jobs. Raise DataError for an invalid `after`."""
    window = window_of(job_filter, after)
    if limit < 1:
        return Page(())
    conditions, walks, values = conditions_of(job_filter), walks_of(job_filter), values_of(job_filter)
    walk, end = walks[0], None
    if conditions.keys() - {walk.condition}:
        walk, end = _sparsest(transaction, walks, window, conditions, values)
        window = Window(window.upper, end or window.lower)
    others = [sql for name, sql in conditions.items() if name != walk.condition]
    statement = page_statement(walk, others)
    rows = transaction.run(statement, row_limit=limit + 1, **window.parameters, **values)
    jobs = tuple(map(job_of, rows[:limit]))
    if len(rows) > limit:
        return Page(jobs, _text_of((jobs[-1].created_at_ms, jobs[-1].id)))
    return Page(jobs, _text_of(end) if end else "")


def _sparsest(
    transaction: Transaction,
    walks: Sequence[Walk],
    window: Window,
    conditions: Collection[str],
    values: Mapping[str, Any],
) -> tuple[Walk, Position | None]:
    """Return the walk that gets furthest, and the place of its last row; None if it gets to the end."""
    furthest: tuple[Walk, Position] | None = None
    for walk in walks:
        rows_max = rows_read_max(walk, conditions)
        places = transaction.run(
            end_statement(walk), row_limit=rows_max, skipped=rows_max - 1, **window.parameters, **values
        )
        if not places:
            return walk, None
        end = (places[0][0], places[0][1])
        if furthest is None or end < furthest[1]:
            furthest = walk, end
    assert furthest is not None, "each filter has a walk"
    return furthest


def rows_read_max(walk: Walk, conditions: Collection[str]) -> int:
    """Return the number of rows that a walk reads for one page with these conditions."""
    others = set(conditions) - {walk.condition}
    return ROWS_READ_MAX if others <= _COVERED.get(walk.condition, frozenset()) else ROWS_FETCHED_MAX


def window_of(job_filter: JobFilter, after: str) -> Window:
    """Return the window of a filter's time and of the page after a position."""
    upper = _position_of(after) if after else _FIRST
    if job_filter.created_before_ms is not None:
        upper = min(upper, (job_filter.created_before_ms, ""))
    return Window(upper, max(_LAST, (job_filter.created_from_ms or 0, "")))


def values_of(job_filter: JobFilter) -> dict[str, Any]:
    """Return the values of the parameters of a filter's conditions, by name."""
    values: dict[str, Any] = {name: clean(getattr(job_filter, name)) for name in _columns(job_filter)}
    for number, (name, value) in enumerate(job_filter.tags.items()):
        values |= {f"tag{number}": clean(name), f"value{number}": clean(value)}
    return values


def conditions_of(job_filter: JobFilter) -> dict[str, str]:
    """Return the conditions of a filter by name, besides its time, as SQL that no planner uses an index for.

    The tag of a job is a scalar subquery, which planners cannot turn into a join of all jobs with the tag.
    """
    found = {name: f"job.{name} || '' = :{name}" for name in _columns(job_filter)}
    if job_filter.states:
        literals = ", ".join(f"'{state.value}'" for state in sorted(job_filter.states))
        found["states"] = f"job.state || '' IN ({literals})"
    for number in range(len(job_filter.tags)):
        found[f"tag{number}"] = (
            "(SELECT other.value FROM headrace_tag AS other "  # noqa: S608 - no value of a client
            f"WHERE other.job_id = job.id AND other.name = :tag{number}) = :value{number}"
        )
    return found


def walks_of(job_filter: JobFilter) -> list[Walk]:
    """Return the walks that a filter can take, at least one."""
    walks = [
        Walk(name, (Branch(f"job.{name} = :{name} AND job.{name} <> ''"),))
        for name in _RARE_COLUMNS
        if getattr(job_filter, name)
    ]
    walks += [Walk(f"tag{number}", _tag_branches(number)) for number in range(len(job_filter.tags))]
    if job_filter.states:
        walks.append(Walk("states", tuple(map(_state_branch, sorted(job_filter.states)))))
    if job_filter.tenant is not None:
        walks.append(Walk("tenant", _tenant_branches()))
    return walks or [Walk("", tuple(map(_state_branch, sorted(JobState))))]


def page_statement(walk: Walk, others: Sequence[str]) -> Statement:
    """Return the statement of a page: jobs of the walk that match the other conditions."""
    return _FIND.filled("places", f"{_places(walk, others)} LIMIT :row_limit")


def end_statement(walk: Walk) -> Statement:
    """Return the statement of the last of the next rows of a walk; it has none if fewer are left."""
    text = f"{_places(walk, ())} LIMIT 1 OFFSET :skipped"
    return Statement(text, text)


def _columns(job_filter: JobFilter) -> list[str]:
    """Return the conditions of a filter on one column. An empty tenant is one."""
    named = [name for name in _COLUMNS if getattr(job_filter, name)]
    return ["tenant", *named] if job_filter.tenant == "" else named


def _state_branch(state: JobState) -> Branch:
    return Branch(f"job.state = '{state.value}' AND {_LISTED}")


def _tenant_branches() -> tuple[Branch, Branch]:
    """Return the branches of a tenant: its index, and its running jobs, which that does not contain.

    There are as many running jobs as workers have slots.
    """
    running = _state_branch(JobState.RUNNING).condition
    return (
        Branch(f"job.tenant = :tenant AND job.state <> 'running' AND {_LISTED}"),
        Branch(f"{running} AND job.tenant || '' = :tenant"),
    )


def _tag_branches(number: int) -> tuple[Branch, Branch]:
    """Return the branches of a tag: its index, and jobs that an older program has submitted.

    Older programs do not write the time of creation. Their jobs are read whole and sorted.
    """
    equal = f"tag.name = :tag{number} AND tag.value = :value{number}"
    sorted_place = ("job.created_at_ms + 0", "job.id || ''")
    return (
        Branch(equal, _TAGS, ("tag.created_at_ms", "tag.job_id"), _JOB_OF_TAG),
        Branch(f"{equal} AND tag.created_at_ms = 0", _TAGS + _JOB_OF_TAG, sorted_place),
    )


def _places(walk: Walk, others: Sequence[str]) -> str:
    """Return the query of the places of all branches in one order; each has the limit of its own rows."""
    branches = (
        f"SELECT * FROM ({_branch_places(branch, others)}) AS branch_{number}"  # noqa: S608 - our files
        for number, branch in enumerate(walk.branches)
    )
    return f"{' UNION ALL '.join(branches)} ORDER BY place_ms DESC, place_id DESC"


def _branch_places(branch: Branch, others: Sequence[str]) -> str:
    place_ms, place_id = branch.place
    source = branch.source + branch.join if others else branch.source
    conditions = " AND ".join((branch.condition, *others))
    # The text is the same for both databases.
    return _PLACES.postgresql.format(
        place_ms=place_ms, place_id=place_id, source=source, conditions=conditions
    )


def _position_of(after: str) -> Position:
    created, _, job_id = after.partition("/")
    if not created.isdecimal() or len(created) > _MS_DIGITS_MAX or not job_id:
        raise DataError(
            f"after: invalid page position {after!r}: use next_after of the previous page, or begin again"
        )
    return int(created), clean(job_id)


def _text_of(position: Position) -> str:
    return f"{position[0]}/{position[1]}"
