-- Blocked jobs: a row for each job that such a job comes after and that has not completed yet.
CREATE TABLE headrace_dependency (
    job_id TEXT COLLATE "C" NOT NULL,
    after_id TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (job_id, after_id)
);
CREATE INDEX headrace_dependency_after ON headrace_dependency (after_id);
-- True for a job that a blocked job comes after. The ends of all others need not look for blocked jobs.
ALTER TABLE headrace_job ADD COLUMN has_dependents BOOLEAN NOT NULL DEFAULT FALSE;
-- Schedules submit jobs at the times of a cron expression. `next_at_ms` is the next such time, NULL while
-- the schedule is paused.
CREATE TABLE headrace_schedule (
    tenant TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    settings TEXT COLLATE "C" NOT NULL,
    version INTEGER NOT NULL,
    changed_at_ms BIGINT NOT NULL,
    changed_by TEXT COLLATE "C" NOT NULL,
    next_at_ms BIGINT,
    claimed_until_ms BIGINT NOT NULL DEFAULT 0,
    last_at_ms BIGINT,
    last_job_id TEXT COLLATE "C" NOT NULL DEFAULT '',
    last_error TEXT COLLATE "C" NOT NULL DEFAULT '',
    PRIMARY KEY (tenant, name)
);
CREATE INDEX headrace_schedule_due ON headrace_schedule (next_at_ms) WHERE next_at_ms IS NOT NULL;
