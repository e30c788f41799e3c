-- The tables of jobs and of notifications. Texts are ordered by bytes (COLLATE "C"), as Python and
-- SQLite order them. Rows are updated in place a few times, so pages keep room for that. Dead rows
-- must be removed soon, because every claim would have to skip them.
-- headrace_now is a function, so that all comparisons with the database's time use one place, which
-- tests can move.
CREATE FUNCTION headrace_now() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
AS 'SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint';

CREATE TABLE headrace_job (
    id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    state TEXT COLLATE "C" NOT NULL,
    queue TEXT COLLATE "C" NOT NULL,
    model TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    tenant TEXT COLLATE "C" NOT NULL,
    priority INTEGER NOT NULL,
    attempts_max INTEGER NOT NULL,
    body_digest TEXT COLLATE "C" NOT NULL,
    correlation_id TEXT COLLATE "C" NOT NULL,
    idempotency_key TEXT COLLATE "C",
    spec TEXT COLLATE "C" NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    lease BIGINT NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    worker TEXT COLLATE "C" NOT NULL DEFAULT '',
    created_at_ms BIGINT NOT NULL,
    due_at_ms BIGINT NOT NULL,
    asleep BOOLEAN NOT NULL,
    started_at_ms BIGINT,
    ended_at_ms BIGINT,
    expires_at_ms BIGINT,
    deadline_at_ms BIGINT,
    lease_until_ms BIGINT,
    cancel_requested BOOLEAN NOT NULL DEFAULT FALSE,
    progress TEXT COLLATE "C",
    cursor TEXT COLLATE "C",
    result TEXT COLLATE "C",
    published_uri TEXT COLLATE "C" NOT NULL DEFAULT '',
    unpublished BOOLEAN NOT NULL DEFAULT FALSE,
    failure TEXT COLLATE "C"
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX headrace_job_awake ON headrace_job (queue, priority, due_at_ms, id)
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
CREATE INDEX headrace_job_correlated ON headrace_job (correlation_id, created_at_ms, id)
    WHERE correlation_id <> '';
CREATE UNIQUE INDEX headrace_job_key ON headrace_job (tenant, idempotency_key)
    WHERE idempotency_key IS NOT NULL;

CREATE TABLE headrace_history (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id TEXT COLLATE "C" NOT NULL,
    at_ms BIGINT NOT NULL,
    event TEXT COLLATE "C" NOT NULL,
    attempt INTEGER NOT NULL,
    lease BIGINT NOT NULL,
    worker TEXT COLLATE "C" NOT NULL,
    cause TEXT COLLATE "C" NOT NULL,
    message TEXT COLLATE "C" NOT NULL,
    done_by TEXT COLLATE "C" NOT NULL
);
CREATE INDEX headrace_history_of ON headrace_history (job_id, number);

CREATE TABLE headrace_tag (
    job_id TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    value TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (job_id, name)
);
CREATE INDEX headrace_tag_value ON headrace_tag (name, value, job_id);

CREATE TABLE headrace_queue (
    name TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    paused BOOLEAN NOT NULL DEFAULT FALSE,
    draining BOOLEAN NOT NULL DEFAULT FALSE,
    pending_max BIGINT
);

CREATE TABLE headrace_endpoint (
    id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    target TEXT COLLATE "C" NOT NULL,
    failures INTEGER NOT NULL DEFAULT 0,
    failing_since_at_ms BIGINT NOT NULL DEFAULT 0,
    rests_until_at_ms BIGINT NOT NULL DEFAULT 0,
    disabled_why TEXT COLLATE "C" NOT NULL DEFAULT ''
);

CREATE TABLE headrace_notification (
    id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    job_id TEXT COLLATE "C" NOT NULL,
    endpoint_id TEXT COLLATE "C" NOT NULL,
    event_id TEXT COLLATE "C" NOT NULL,
    type TEXT COLLATE "C" NOT NULL,
    at_ms BIGINT NOT NULL,
    data TEXT COLLATE "C" NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    fence BIGINT NOT NULL DEFAULT 0,
    due_at_ms BIGINT NOT NULL,
    lease_until_ms BIGINT NOT NULL DEFAULT 0,
    ended_at_ms BIGINT,
    why TEXT COLLATE "C" NOT NULL DEFAULT ''
);
CREATE INDEX headrace_notification_open ON headrace_notification (endpoint_id, due_at_ms, id)
    WHERE state IN ('waiting', 'claimed');
CREATE INDEX headrace_notification_dead ON headrace_notification (ended_at_ms) WHERE state = 'dead';
CREATE INDEX headrace_notification_of ON headrace_notification (job_id);
