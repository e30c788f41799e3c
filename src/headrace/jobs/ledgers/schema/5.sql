-- Targets of notifications are called receivers; endpoints are those of jobs.
ALTER TABLE headrace_endpoint RENAME TO headrace_receiver;
ALTER TABLE headrace_notification RENAME COLUMN endpoint_id TO receiver_id;
-- The due jobs of a queue wait in lanes: those of one tenant, API key, endpoint, model and region, as
-- `lanes.py` writes it, in the order of rank_ms. A claim reads the first jobs of few lanes. Ended jobs
-- get their lane when they are requeued.
ALTER TABLE headrace_queue ADD COLUMN ageing_ms BIGINT NOT NULL DEFAULT 3600000;
ALTER TABLE headrace_job ADD COLUMN lane TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE headrace_job ADD COLUMN rank_ms BIGINT NOT NULL DEFAULT 0;
UPDATE headrace_job
SET lane = tenant || '|||' || model || '|' || region, rank_ms = due_at_ms + 3600000 * priority
WHERE state IN ('pending', 'running', 'publishing');
DROP INDEX headrace_job_awake;
DROP INDEX headrace_job_region;
DROP INDEX headrace_job_running;
CREATE INDEX headrace_job_awake ON headrace_job (queue, lane, rank_ms, id, due_at_ms)
    WHERE state = 'pending' AND NOT asleep;
CREATE INDEX headrace_job_running ON headrace_job (queue, lane, id) WHERE state = 'running';
-- Limits of the running jobs of an API key, an endpoint or a model, and the shares of tenants.
CREATE TABLE headrace_limit (
    kind TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    running_max BIGINT,
    weight DOUBLE PRECISION NOT NULL DEFAULT 1,
    PRIMARY KEY (kind, name)
);
-- The bytes of payloads that were received from an API key with a limit, on its last day (UTC, as days
-- since the epoch). A new day replaces the earlier one.
CREATE TABLE headrace_usage (
    key_name TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    day BIGINT NOT NULL,
    bytes BIGINT NOT NULL
);
-- Endpoints of jobs: each change is a version.
CREATE TABLE headrace_endpoint (
    name TEXT COLLATE "C" NOT NULL,
    version INTEGER NOT NULL,
    settings TEXT COLLATE "C" NOT NULL,
    created_at_ms BIGINT NOT NULL,
    created_by TEXT COLLATE "C" NOT NULL,
    deleted BOOLEAN NOT NULL DEFAULT FALSE,
    PRIMARY KEY (name, version)
);
-- Jobs of endpoints may have a retention of their own.
ALTER TABLE headrace_job ADD COLUMN keep_ms BIGINT;
DROP INDEX headrace_job_ended;
CREATE INDEX headrace_job_ended ON headrace_job (ended_at_ms, id)
    WHERE ended_at_ms IS NOT NULL AND keep_ms IS NULL;
CREATE INDEX headrace_job_kept ON headrace_job ((ended_at_ms + keep_ms), id)
    WHERE ended_at_ms IS NOT NULL AND keep_ms IS NOT NULL;
-- The jobs of a tenant that are being published, which count as unfinished jobs of their queues.
CREATE INDEX headrace_job_publishing_of ON headrace_job (tenant, queue) WHERE state = 'publishing';
