"""Every statement on real databases: it is valid, and it finds jobs by an index."""

import re

import pytest

from headrace.jobs.job import NewJob
from headrace.jobs.ledger import JobFilter
from headrace.jobs.ledgers import listing
from headrace.jobs.ledgers.database import QUERIES, Statement, read_statement, sa
from headrace.jobs.state import JobState
from headrace.testing import ManualWallClock
from jobs.copied_jobs import copy_jobs
from jobs.ledger_fixtures import LEDGERS, SQL_LEDGERS

NAMES = sorted(path.stem for path in QUERIES.glob("*.sql"))
LISTS = ("find_jobs", "job_places")
"""The parts of the statements of lists, which `listing.py` puts together."""
FILTERS = (
    JobFilter(),
    JobFilter(queue="q"),
    JobFilter(model="m", kind="infer"),
    JobFilter(tenant="t"),
    JobFilter(tenant="t", states=frozenset({JobState.FAILED})),
    JobFilter(states=frozenset({JobState.RUNNING})),
    JobFilter(states=frozenset(JobState), queue="q"),
    JobFilter(correlation_id="c", tenant="t"),
    JobFilter(fingerprint="f"),
    JobFilter(tags={"a": "1"}),
    JobFilter(tags={"a": "1", "b": "2"}, states=frozenset({JobState.PENDING})),
)
LARGE_TABLES = (
    "headrace_job|headrace_history|headrace_notification|headrace_tag|headrace_dependency|headrace_decision"
)
ALIASES = "job|tag|dependency|sleeper|found|last|other|schedule|decision|n"
SCAN_SQLITE = re.compile(rf"SCAN (?:{LARGE_TABLES}|{ALIASES})\b(?! USING (?:COVERING )?INDEX)")
SCAN_POSTGRES = re.compile(rf"Seq Scan on (?:{LARGE_TABLES})")


@pytest.fixture(params=SQL_LEDGERS)
def ledger(request):
    ledger = LEDGERS[request.param](ManualWallClock(), request.getfixturevalue)()
    ledger.start()
    yield ledger
    ledger.stop()


def example(parameter: str) -> object:
    """Return a value of the parameter's type, which its name tells."""
    if parameter == "given":
        return "[{}]"
    if parameter in ("paused", "draining", "deleted"):
        return True
    numbers = (
        "version",
        "_number",
        "skipped",
        "jobs",
        "_ms",
        "_max",
        "limit",
        "lease",
        "fence",
        "taken",
        "failures",
        "_bytes",
        "day",
        "shard",
        "workers",
        "wanted",
    )
    return 1 if parameter.endswith(numbers) else "x"


def explain(connection: sa.Connection, statement: Statement) -> str:
    """Return the plan of a statement with example values."""
    dialect = connection.dialect.name
    text = getattr(statement, dialect)
    clause = sa.text(f"{'EXPLAIN QUERY PLAN' if dialect == 'sqlite' else 'EXPLAIN'} {text}")
    values = {parameter: example(parameter) for parameter in clause.compile().params}
    return "\n".join(str(row[-1]) for row in connection.execute(clause, values))


def test_every_statement_finds_its_rows_by_an_index(ledger):
    (first,) = ledger.submit([NewJob(model="m")])
    copy_jobs(ledger, first.job.id, 2_000, id="'copy-' || n")
    plans = ledger._database.run(
        lambda t: {
            name: explain(t.connection, read_statement(name).filled("conditions", "job.tenant = 'x'"))
            for name in NAMES
            if name not in LISTS
        },
        read_only=True,
    )
    scan = SCAN_SQLITE if ledger._database.open().dialect.name == "sqlite" else SCAN_POSTGRES
    assert {name: plan for name, plan in plans.items() if scan.search(plan)} == {}


def test_every_filter_walks_an_index_in_its_order(ledger):
    (first,) = ledger.submit([NewJob(model="m", tenant="t", tags={"a": "1"})])
    copy_jobs(ledger, first.job.id, 2_000, id="'copy-' || n")
    plans = {}
    for wanted in FILTERS:
        conditions = listing.conditions_of(wanted)
        for walk in listing.walks_of(wanted):
            others = [sql for name, sql in conditions.items() if name != walk.condition]
            for statement in (listing.page_statement(walk, others), listing.end_statement(walk)):
                run = lambda t, statement=statement: explain(t.connection, statement)  # noqa: E731
                plans[f"{wanted} by {walk.condition}"] = ledger._database.run(run, read_only=True)
    is_sqlite = ledger._database.open().dialect.name == "sqlite"
    scan = SCAN_SQLITE if is_sqlite else SCAN_POSTGRES
    assert {name: plan for name, plan in plans.items() if scan.search(plan)} == {}
    of_jobs = "job_state|job_tenant|job_correlated|job_fingerprint|job_pkey"
    indexes = rf"headrace_({of_jobs}|tag_value|tag_pkey)|autoindex"
    used = {
        name: [line for line in plan.splitlines() if re.search("USING.* INDEX|Index.* using", line)]
        for name, plan in plans.items()
    }
    assert all(used.values())
    assert {
        name: line for name, lines in used.items() for line in lines if not re.search(indexes, line)
    } == {}


def test_statement_of_postgresql_is_the_file_without_comments():
    source = (QUERIES / "reported_models.sql").read_text()
    assert read_statement("reported_models").postgresql == source


def test_records_are_read_by_each_database_in_its_own_way():
    statement = read_statement("insert_tags")
    assert "jsonb_to_recordset(CAST(:given AS jsonb))" in statement.postgresql
    assert "json_extract(value, '$.tag_name') AS tag_name" in statement.sqlite
    assert "jsonb" not in statement.sqlite


def test_only_postgresql_locks_rows():
    statement = read_statement("jobs_by_id_locked")
    assert statement.postgresql.endswith("FOR NO KEY UPDATE OF job\n")
    assert "FOR NO KEY UPDATE" not in statement.sqlite


def test_every_statement_is_used():
    sources = "".join(path.read_text() for path in QUERIES.parent.glob("*.py"))
    assert [name for name in NAMES if f'"{name}"' not in sources] == []


NOT_OVER = (
    "(job.deadline_at_ms IS NULL OR job.deadline_at_ms > (SELECT headrace_now())) AND "
    "(job.expires_at_ms IS NULL OR job.started_at_ms IS NOT NULL OR "
    "job.expires_at_ms > (SELECT headrace_now()))"
)


@pytest.mark.parametrize("name", ["claimable_lanes", "claim_only_lane", "lane_candidates"])
def test_claims_repeat_their_conditions_without_a_difference(name):
    text = " ".join(read_statement(name).postgresql.split())
    assert text.count(NOT_OVER) == text.count("FROM headrace_job AS job WHERE") > 0
