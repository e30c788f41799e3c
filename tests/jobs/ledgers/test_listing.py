"""Pages of lists: which index a filter walks, and that pages of few rows make the whole list."""

import itertools

import pytest

from cases import for_each
from headrace.core.errors import DataError
from headrace.jobs.job import NewJob
from headrace.jobs.ledger import JobFilter
from headrace.jobs.ledgers import listing
from headrace.jobs.ledgers.database import sa
from headrace.jobs.state import JobState
from headrace.testing import ManualWallClock
from headrace.testing.job_rules import matches_filter
from jobs.ledger_fixtures import LEDGERS, SQL_LEDGERS

PAGES_MAX = 200
STATES = (
    frozenset({JobState.PENDING}),
    frozenset({JobState.RUNNING, JobState.CANCELLED}),
    frozenset(JobState),
)
VALUES = {
    "queue": ("a", "none"),
    "model": ("m", "n"),
    "kind": ("infer", "stream"),
    "tenant": ("", "t"),
    "correlation_id": ("c",),
    "tags": ({"team": "blue"}, {"team": "blue", "run": "1"}),
    "states": STATES,
}
FILTERS = [JobFilter()] + [
    JobFilter(**dict(pairs))
    for count in (1, 2)
    for names in itertools.combinations(VALUES, count)
    for pairs in itertools.product(*([(name, value) for value in VALUES[name]] for name in names))
]


@pytest.fixture(params=SQL_LEDGERS)
def ledger(request):
    clock = ManualWallClock()
    ledger = LEDGERS[request.param](clock, request.getfixturevalue)()
    ledger.start()
    ledger.clock = clock
    yield ledger
    ledger.stop()


def fill(ledger) -> None:
    """Submit jobs with all combinations of a few values, some of them in the same millisecond."""
    for number, (queue, model, kind, tenant, tags) in enumerate(
        itertools.product(
            "ab", "mn", ("infer", "stream"), ("", "t"), ({}, {"team": "blue"}, {"team": "blue", "run": "1"})
        )
    ):
        correlation_id = "c" if number % 5 == 0 else ""
        new = NewJob(
            queue=queue, model=model, kind=kind, tenant=tenant, tags=tags, correlation_id=correlation_id
        )
        (reply,) = ledger.submit([new])
        if number % 3 == 0:
            ledger.cancel(reply.job.id)
        ledger.clock.advance(number % 2)
    ledger._database.run(
        lambda t: t.connection.execute(
            sa.text("UPDATE headrace_job SET state = 'running' WHERE state = 'pending' AND queue = 'b'")
        )
    )


def listed(ledger, wanted: JobFilter, limit: int) -> list[str]:
    found, after = [], ""
    for _ in range(PAGES_MAX):
        page = ledger.find(wanted, after=after, limit=limit)
        assert len(page.jobs) <= limit
        found += [job.id for job in page.jobs]
        after = page.next_after
        if not after:
            return found
    raise AssertionError(f"the pages of {wanted} do not end")


def test_pages_of_few_rows_make_the_whole_list(ledger, monkeypatch):
    fill(ledger)
    everything = ledger.find(JobFilter(), limit=1000).jobs
    assert len(everything) == 48
    monkeypatch.setattr(listing, "ROWS_READ_MAX", 5)
    monkeypatch.setattr(listing, "ROWS_FETCHED_MAX", 3)
    middle_ms = everything[20].created_at_ms
    times = ({}, {"created_from_ms": middle_ms}, {"created_before_ms": middle_ms})
    for wanted in FILTERS[:: 1 if ledger._database.open().dialect.name == "sqlite" else 7]:
        expected = [job.id for job in everything if matches_filter(job, wanted)]
        assert listed(ledger, wanted, 4) == expected, wanted
    for wanted in (JobFilter(queue="a", **time) for time in times):
        expected = [job.id for job in everything if matches_filter(job, wanted)]
        assert listed(ledger, wanted, 2) == expected, wanted


def test_jobs_of_older_programs_are_found_by_their_tags(ledger, monkeypatch):
    fill(ledger)
    wanted = JobFilter(tags={"team": "blue"})
    expected = [job.id for job in ledger.find(wanted, limit=1000).jobs]
    half = "UPDATE headrace_tag SET created_at_ms = 0 WHERE job_id IN (:one, :two, :three)"
    ids = dict(zip(("one", "two", "three"), expected[::7], strict=False))
    ledger._database.run(lambda t: t.connection.execute(sa.text(half), ids))
    monkeypatch.setattr(listing, "ROWS_FETCHED_MAX", 3)
    assert listed(ledger, wanted, 2) == expected
    tenant = JobFilter(tags={"team": "blue"}, tenant="t")
    jobs = ledger.get_many(expected)
    assert listed(ledger, tenant, 2) == [i for i in expected if jobs[i].spec.tenant == "t"]


def test_page_takes_the_walk_with_the_fewest_rows(ledger, monkeypatch):
    ledger.submit([NewJob(tenant="many", queue="q")] * 20)
    (reply,) = ledger.submit([NewJob(tenant="many", queue="q")])
    ledger.cancel(reply.job.id)
    monkeypatch.setattr(listing, "ROWS_READ_MAX", 5)
    monkeypatch.setattr(listing, "ROWS_FETCHED_MAX", 5)
    by_state = ledger.find(JobFilter(tenant="many", states=frozenset({JobState.CANCELLED})))
    assert ([job.id for job in by_state.jobs], by_state.next_after) == ([reply.job.id], "")
    ledger.submit([NewJob(tenant="few", queue="q")])
    by_tenant = ledger.find(JobFilter(tenant="few", states=frozenset({JobState.PENDING})))
    assert (len(by_tenant.jobs), by_tenant.next_after) == (1, "")


def test_page_takes_the_walk_that_gets_furthest(ledger, monkeypatch):
    for number in range(60):
        ledger.submit([NewJob(tenant="a" if number % 5 == 0 else "b")])
        ledger.clock.advance(1)
    monkeypatch.setattr(listing, "ROWS_READ_MAX", 6)
    monkeypatch.setattr(listing, "ROWS_FETCHED_MAX", 6)
    page = ledger.find(JobFilter(tenant="a", states=frozenset({JobState.PENDING})))
    assert len(page.jobs) == 6, "the tenant's jobs, not those in the state"
    assert page.next_after


def test_page_without_matching_rows_continues(ledger, monkeypatch):
    monkeypatch.setattr(listing, "ROWS_READ_MAX", 3)
    ledger.submit([NewJob(queue="old")])
    ledger.clock.advance(1)
    ledger.submit([NewJob(queue="new")] * 7)
    page = ledger.find(JobFilter(queue="old"))
    assert page.jobs == ()
    assert page.next_after
    assert len(listed(ledger, JobFilter(queue="old"), 10)) == 1


@for_each("after", ["x", "1", "1/", "/id", "-1/id", "1" * 16 + "/id"])
def test_invalid_position_is_refused(after):
    with pytest.raises(DataError, match="use next_after of the previous page"):
        listing.window_of(JobFilter(), after)


def test_window_is_the_narrower_of_time_and_page():
    assert listing.window_of(JobFilter(created_before_ms=5), "7/id").upper == (5, "")
    assert listing.window_of(JobFilter(created_before_ms=9), "7/id").upper == (7, "id")
    assert listing.window_of(JobFilter(created_from_ms=3), "").lower == (3, "")


def test_each_filter_has_its_walks():
    for wanted, names in (
        (JobFilter(), [""]),
        (JobFilter(queue="q", model="m"), [""]),
        (JobFilter(tenant=""), ["tenant"]),
        (JobFilter(tenant="t", states=STATES[0], kind="infer"), ["states", "tenant"]),
        (JobFilter(correlation_id="c", queue="q"), ["correlation_id"]),
    ):
        assert [walk.condition for walk in listing.walks_of(wanted)] == names
    tagged = listing.walks_of(JobFilter(tags={"a": "1", "b": "2"}, tenant="t"))
    assert [walk.condition for walk in tagged] == ["tag0", "tag1", "tenant"]


def test_walks_that_fetch_rows_read_fewer():
    (by_state, by_tenant) = listing.walks_of(JobFilter(states=STATES[0], tenant="t"))
    assert listing.rows_read_max(by_state, ["states", "tenant"]) == listing.ROWS_READ_MAX
    assert listing.rows_read_max(by_tenant, ["states", "tenant"]) == listing.ROWS_FETCHED_MAX
    assert listing.rows_read_max(by_state, ["states", "tag0"]) == listing.ROWS_FETCHED_MAX
