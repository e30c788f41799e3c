"""The tables of a job ledger after its migrations, for statements that are composed on demand.

``headrace_job``           a job: its queue entry, its state and its result

``headrace_history``       its failures, retries and manual changes, one row each

``headrace_tag``           its tags

``headrace_queue``         the settings of every queue that ever had a job

``headrace_worker_model``  the models that workers of each queue have reported

``headrace_schema``        the applied migrations
"""

from typing import Final

from headrace.jobs.ledgers.database import sa

_metadata: Final = sa.MetaData()

JOB_TABLE: Final = sa.Table(
    "headrace_job",
    _metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("queue", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("attempts_max", sa.Integer, nullable=False),
    sa.Column("body_digest", sa.Text, nullable=False),
    sa.Column("correlation_id", sa.Text, nullable=False),
    sa.Column("idempotency_key", sa.Text),
    sa.Column("spec", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("lease", sa.BigInteger, nullable=False),
    sa.Column("crashes", sa.Integer, nullable=False),
    sa.Column("worker", sa.Text, nullable=False),
    sa.Column("created_at_ms", sa.BigInteger, nullable=False),
    sa.Column("due_at_ms", sa.BigInteger, nullable=False),
    sa.Column("asleep", sa.Boolean, nullable=False),
    sa.Column("started_at_ms", sa.BigInteger),
    sa.Column("ended_at_ms", sa.BigInteger),
    sa.Column("expires_at_ms", sa.BigInteger),
    sa.Column("deadline_at_ms", sa.BigInteger),
    sa.Column("lease_until_ms", sa.BigInteger),
    sa.Column("cancel_requested", sa.Boolean, nullable=False),
    sa.Column("progress", sa.Text),
    sa.Column("cursor", sa.Text),
    sa.Column("result", sa.Text),
    sa.Column("published_uri", sa.Text, nullable=False),
    sa.Column("unpublished", sa.Boolean, nullable=False),
    sa.Column("failure", sa.Text),
    sa.Column("region", sa.Text, nullable=False),
    sa.Column("worker_region", sa.Text, nullable=False),
)

HISTORY_TABLE: Final = sa.Table(
    "headrace_history",
    _metadata,
    sa.Column("number", sa.BigInteger, primary_key=True),
    sa.Column("job_id", sa.Text, nullable=False),
    sa.Column("at_ms", sa.BigInteger, nullable=False),
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("lease", sa.BigInteger, nullable=False),
    sa.Column("worker", sa.Text, nullable=False),
    sa.Column("cause", sa.Text, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("done_by", sa.Text, nullable=False),
)

TAG_TABLE: Final = sa.Table(
    "headrace_tag",
    _metadata,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)

QUEUE_TABLE: Final = sa.Table(
    "headrace_queue",
    _metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("paused", sa.Boolean, nullable=False),
    sa.Column("draining", sa.Boolean, nullable=False),
    sa.Column("pending_max", sa.BigInteger),
)

TABLES: Final = (JOB_TABLE, HISTORY_TABLE, TAG_TABLE, QUEUE_TABLE)
