-- The registry of workers. `info` is what a worker states about itself when it registers, `report` what its
-- last heartbeat reported; both are JSON. `start_id` differs between two starts under one name.
CREATE TABLE headrace_worker (
    name TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    start_id TEXT COLLATE "C" NOT NULL,
    info TEXT COLLATE "C" NOT NULL,
    report TEXT COLLATE "C" NOT NULL,
    lease_ms BIGINT NOT NULL,
    draining BOOLEAN NOT NULL DEFAULT FALSE,
    draining_by TEXT COLLATE "C" NOT NULL DEFAULT '',
    started_at_ms BIGINT NOT NULL,
    seen_at_ms BIGINT NOT NULL,
    stopped_at_ms BIGINT
);
-- Numbers of job events since the ledger exists. Each transaction adds to the rows of one shard, so that
-- concurrent ones seldom wait for each other; readers add the shards.
CREATE TABLE headrace_counter (
    event TEXT COLLATE "C" NOT NULL,
    cause TEXT COLLATE "C" NOT NULL,
    queue TEXT COLLATE "C" NOT NULL,
    model TEXT COLLATE "C" NOT NULL,
    tenant TEXT COLLATE "C" NOT NULL,
    bucket INTEGER NOT NULL,
    shard INTEGER NOT NULL,
    jobs BIGINT NOT NULL,
    total_ms BIGINT NOT NULL,
    PRIMARY KEY (event, cause, queue, model, tenant, bucket, shard)
) WITH (fillfactor = 50);
-- Actions of operators and changes by API keys, newest last.
CREATE TABLE headrace_audit (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_ms BIGINT NOT NULL,
    done_by TEXT COLLATE "C" NOT NULL,
    tenant TEXT COLLATE "C" NOT NULL,
    action TEXT COLLATE "C" NOT NULL,
    subject TEXT COLLATE "C" NOT NULL,
    details TEXT COLLATE "C" NOT NULL,
    jobs BIGINT
);
CREATE INDEX headrace_audit_at ON headrace_audit (at_ms);
-- The start of the attempt that a history entry ends.
ALTER TABLE headrace_history ADD COLUMN started_at_ms BIGINT;
-- Equal failures of ended jobs have equal fingerprints. Jobs that failed before have none.
ALTER TABLE headrace_job ADD COLUMN fingerprint TEXT COLLATE "C" NOT NULL DEFAULT '';
CREATE INDEX headrace_job_fingerprint ON headrace_job (fingerprint, created_at_ms, id)
    WHERE fingerprint <> '';
CREATE INDEX headrace_job_failures ON headrace_job (ended_at_ms, id) WHERE fingerprint <> '';
CREATE INDEX headrace_job_failures_of ON headrace_job (tenant, ended_at_ms, id) WHERE fingerprint <> '';
-- Lists of jobs walk one of these indexes, newest first; `listing.py` chooses it. The index of states also
-- serves lists of all jobs. Their last columns decide conditions on these without the rows of the table.
-- PostgreSQL writes every index again with each change of a job, except those that do not contain the
-- changed row: a claim writes no more of them than before. SQLite writes changed columns only, and its
-- index of tenants contains the running jobs.
-- The condition on the id holds for every row. Only lists contain it, so that planners cannot choose these
-- indexes for other statements.
DROP INDEX headrace_job_failed;
DROP INDEX headrace_job_created;
CREATE INDEX headrace_job_state ON headrace_job (state, created_at_ms, id, tenant, queue, model, kind)
    WHERE length(id) >= 0;
CREATE INDEX headrace_job_tenant ON headrace_job (tenant, created_at_ms, id, queue, model, kind)
    WHERE state <> 'running' AND length(id) >= 0;
-- Tags repeat the time of creation of their jobs, in whose order they are read. Older programs write 0.
ALTER TABLE headrace_tag ADD COLUMN created_at_ms BIGINT NOT NULL DEFAULT 0;
UPDATE headrace_tag
SET created_at_ms = coalesce((SELECT job.created_at_ms FROM headrace_job AS job WHERE job.id = job_id), 0);
DROP INDEX headrace_tag_value;
CREATE INDEX headrace_tag_value ON headrace_tag (name, value, created_at_ms, job_id);
