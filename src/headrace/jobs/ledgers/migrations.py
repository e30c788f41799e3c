"""The migrations of the schema, in order. A released migration is never changed: add a new one.

Each migration is one transaction. Any number of processes may start at once: one applies it; the
others wait and find it applied. `min_reader` says which older programs still work on the schema
after it. A migration that adds what older programs never read keeps the number; one that changes
what they rely on raises it to its own. A program refuses to start on a schema with a `min_reader`
greater than the last migration that it knows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from headrace.core.errors import ConfigError
from headrace.jobs.ledgers.database import sa


@dataclass(frozen=True, slots=True)
class MigrationStep:
    """A migration: its number and its statements for SQLite and for PostgreSQL."""

    number: int
    min_reader: int
    sqlite: tuple[str, ...]
    postgres: tuple[str, ...]

    def statements(self, dialect: str) -> tuple[str, ...]:
        """Return the statements for one database, by its name."""
        return self.postgres if dialect == "postgresql" else self.sqlite


class RunExclusively(Protocol):
    """A function that runs transactions one at a time across all processes."""

    def __call__(self, work: Callable[[sa.Connection], bool], /) -> bool:
        """Run `work` in such a transaction, commit it, and return its result."""
        ...


_LEDGER: Final = """
CREATE TABLE headrace_job (
    id {text} NOT NULL PRIMARY KEY,
    state {text} NOT NULL,
    queue {text} NOT NULL,
    model {text} NOT NULL,
    kind {text} NOT NULL,
    tenant {text} NOT NULL,
    priority INTEGER NOT NULL,
    attempts_max INTEGER NOT NULL,
    body_digest {text} NOT NULL,
    correlation_id {text} NOT NULL,
    idempotency_key {text},
    spec {text} NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    lease BIGINT NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    worker {text} NOT NULL DEFAULT '',
    created_at_ms BIGINT NOT NULL,
    due_at_ms BIGINT NOT NULL,
    asleep BOOLEAN NOT NULL,
    started_at_ms BIGINT,
    ended_at_ms BIGINT,
    expires_at_ms BIGINT,
    deadline_at_ms BIGINT,
    lease_until_ms BIGINT,
    cancel_requested BOOLEAN NOT NULL DEFAULT FALSE,
    progress {text},
    cursor {text},
    result {text},
    published_uri {text} NOT NULL DEFAULT '',
    unpublished BOOLEAN NOT NULL DEFAULT FALSE,
    failure {text}
) {job_options};
CREATE INDEX headrace_job_awake ON headrace_job (queue, priority, due_at_ms, id) \
WHERE state = 'pending' AND NOT asleep;
CREATE INDEX headrace_job_asleep ON headrace_job (queue, due_at_ms) WHERE state = 'pending' AND asleep;
CREATE INDEX headrace_job_running ON headrace_job (queue, id) WHERE state = 'running';
CREATE INDEX headrace_job_running_of ON headrace_job (worker) WHERE state = 'running';
CREATE INDEX headrace_job_unpublished ON headrace_job (ended_at_ms, id) WHERE unpublished;
CREATE INDEX headrace_job_waiting_of ON headrace_job (tenant) WHERE state = 'pending';
CREATE INDEX headrace_job_expiring ON headrace_job (expires_at_ms)
    WHERE state = 'pending' AND started_at_ms IS NULL AND expires_at_ms IS NOT NULL;
CREATE INDEX headrace_job_deadline ON headrace_job (deadline_at_ms)
    WHERE state = 'pending' AND deadline_at_ms IS NOT NULL;
CREATE INDEX headrace_job_ended ON headrace_job (ended_at_ms, id) WHERE ended_at_ms IS NOT NULL;
CREATE INDEX headrace_job_created ON headrace_job (created_at_ms, id);
CREATE INDEX headrace_job_failed ON headrace_job (created_at_ms, id) WHERE state = 'failed';
CREATE INDEX headrace_job_correlated ON headrace_job (correlation_id, created_at_ms, id) \
WHERE correlation_id <> '';
CREATE UNIQUE INDEX headrace_job_key ON headrace_job (tenant, idempotency_key) \
WHERE idempotency_key IS NOT NULL;
CREATE TABLE headrace_history (
    number {identity},
    job_id {text} NOT NULL,
    at_ms BIGINT NOT NULL,
    event {text} NOT NULL,
    attempt INTEGER NOT NULL,
    lease BIGINT NOT NULL,
    worker {text} NOT NULL,
    cause {text} NOT NULL,
    message {text} NOT NULL,
    done_by {text} NOT NULL
);
CREATE INDEX headrace_history_of ON headrace_history (job_id, number);
CREATE TABLE headrace_tag (
    job_id {text} NOT NULL,
    name {text} NOT NULL,
    value {text} NOT NULL,
    PRIMARY KEY (job_id, name)
);
CREATE INDEX headrace_tag_value ON headrace_tag (name, value, job_id);
CREATE TABLE headrace_queue (
    name {text} NOT NULL PRIMARY KEY,
    paused BOOLEAN NOT NULL DEFAULT FALSE,
    draining BOOLEAN NOT NULL DEFAULT FALSE,
    pending_max BIGINT
)
"""

_NOTIFICATIONS: Final = """
CREATE TABLE headrace_endpoint (
    id {text} NOT NULL PRIMARY KEY,
    target {text} NOT NULL,
    failures INTEGER NOT NULL DEFAULT 0,
    failing_since_at_ms BIGINT NOT NULL DEFAULT 0,
    rests_until_at_ms BIGINT NOT NULL DEFAULT 0,
    disabled_why {text} NOT NULL DEFAULT ''
);
CREATE TABLE headrace_notification (
    id {text} NOT NULL PRIMARY KEY,
    job_id {text} NOT NULL,
    endpoint_id {text} NOT NULL,
    event_id {text} NOT NULL,
    type {text} NOT NULL,
    at_ms BIGINT NOT NULL,
    data {text} NOT NULL,
    state {text} NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    fence BIGINT NOT NULL DEFAULT 0,
    due_at_ms BIGINT NOT NULL,
    lease_until_ms BIGINT NOT NULL DEFAULT 0,
    ended_at_ms BIGINT,
    why {text} NOT NULL DEFAULT ''
);
CREATE INDEX headrace_notification_open ON headrace_notification (endpoint_id, due_at_ms, id)
    WHERE state IN ('waiting', 'claimed');
CREATE INDEX headrace_notification_dead ON headrace_notification (ended_at_ms) WHERE state = 'dead';
CREATE INDEX headrace_notification_of ON headrace_notification (job_id)
"""

# The index's last condition holds for every row. Only statements that contain it can use the index:
# for claims of all regions it is useless, and planners might choose it. (A comparison would become
# a range instead of the region.)
_REGIONS: Final = """
ALTER TABLE headrace_job ADD COLUMN region {text} NOT NULL DEFAULT '';
ALTER TABLE headrace_job ADD COLUMN worker_region {text} NOT NULL DEFAULT '';
CREATE INDEX headrace_job_region ON headrace_job (queue, region, priority, due_at_ms, id)
    WHERE state = 'pending' AND NOT asleep AND length(region) >= 0
"""

_WORKER_MODELS: Final = """
CREATE TABLE headrace_worker_model (
    queue {text} NOT NULL,
    model {text} NOT NULL,
    reported_at_ms BIGINT NOT NULL,
    PRIMARY KEY (queue, model)
)
"""

# Rows are updated in place a few times, so pages keep room for that. Dead rows must be removed
# soon, because every claim would have to skip them.
_POSTGRES_JOB_OPTIONS: Final = """WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
)"""

# A function, so that all comparisons with the database's time use one place, which tests can move.
_POSTGRES_NOW: Final = """
CREATE FUNCTION headrace_now() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
AS 'SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint'
"""


def _statements(script: str, **words: str) -> tuple[str, ...]:
    return tuple(script.format(**words).strip().split(";\n"))


def _ledger(*, text: str, identity: str, job_options: str = "") -> tuple[str, ...]:
    return _statements(_LEDGER, text=text, identity=identity, job_options=job_options)


STEPS: Final = (
    MigrationStep(
        number=1,
        min_reader=1,
        sqlite=(
            *_ledger(text="TEXT", identity="INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT"),
            *_statements(_NOTIFICATIONS, text="TEXT"),
        ),
        postgres=(
            _POSTGRES_NOW,
            # Ordered by bytes, as Python and SQLite order them.
            *_ledger(
                text='TEXT COLLATE "C"',
                identity="BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
                job_options=_POSTGRES_JOB_OPTIONS,
            ),
            *_statements(_NOTIFICATIONS, text='TEXT COLLATE "C"'),
        ),
    ),
    # Older programs submit jobs without a region, and their workers take those of all regions.
    MigrationStep(
        number=2,
        min_reader=1,
        sqlite=_statements(_REGIONS, text="TEXT"),
        postgres=_statements(_REGIONS, text='TEXT COLLATE "C"'),
    ),
    # Workers of older programs do not report their models.
    MigrationStep(
        number=3,
        min_reader=1,
        sqlite=_statements(_WORKER_MODELS, text="TEXT"),
        postgres=_statements(_WORKER_MODELS, text='TEXT COLLATE "C"'),
    ),
)

_SCHEMA: Final = """
CREATE TABLE headrace_schema (
    number INTEGER NOT NULL PRIMARY KEY,
    min_reader INTEGER NOT NULL,
    applied_at_ms BIGINT NOT NULL
)
"""


def migrate(guarded: RunExclusively, *, where: str, steps: tuple[MigrationStep, ...] = STEPS) -> int:
    """Apply the missing migrations. Return their number.

    Raise ConfigError, and change nothing, for the schema of a newer program that this one cannot
    work on.
    """
    taken = 0
    while guarded(lambda connection: _take_next(connection, where, steps)):
        taken += 1
    return taken


def _take_next(connection: sa.Connection, where: str, steps: tuple[MigrationStep, ...]) -> bool:
    """Apply the first missing migration. Return False if there is none."""
    if not sa.inspect(connection).has_table("headrace_schema"):
        connection.exec_driver_sql(_SCHEMA)
    found = connection.execute(sa.text("SELECT max(number), max(min_reader) FROM headrace_schema")).one()
    done, min_reader = found[0] or 0, found[1] or 0
    known = steps[-1].number
    if min_reader > known:
        raise ConfigError(
            f"the job ledger {where} has schema {done}, which this headrace (schema {known}) is too old for: "
            f"install a newer one"
        )
    missing = [step for step in steps if step.number > done]
    if not missing:
        return False
    step = missing[0]
    for statement in step.statements(connection.dialect.name):
        connection.exec_driver_sql(statement)
    connection.execute(
        sa.text(
            "INSERT INTO headrace_schema (number, min_reader, applied_at_ms) "
            "VALUES (:number, :min_reader, headrace_now())"
        ),
        {"number": step.number, "min_reader": step.min_reader},
    )
    return True
