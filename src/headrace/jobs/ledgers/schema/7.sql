-- Blocked jobs: a row for each job that such a job comes after and that has not completed yet.
CREATE TABLE headrace_dependency (
    job_id TEXT COLLATE "C" NOT NULL,
    after_id TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (job_id, after_id)
);
CREATE INDEX headrace_dependency_after ON headrace_dependency (after_id, job_id);
-- The indexes of pending jobs, for the blocked ones: quotas and counts, times to live, deadlines.
-- The condition on the queue holds for every row. Only statements that count one queue contain it, so that
-- planners do not read the blocked jobs of other tenants for those of one.
CREATE INDEX headrace_job_blocked_of ON headrace_job (tenant, queue) WHERE state = 'blocked';
CREATE INDEX headrace_job_blocked_in ON headrace_job (queue) WHERE state = 'blocked' AND length(queue) >= 0;
CREATE INDEX headrace_job_blocked_expiring ON headrace_job (expires_at_ms)
    WHERE state = 'blocked' AND expires_at_ms IS NOT NULL;
CREATE INDEX headrace_job_blocked_deadline ON headrace_job (deadline_at_ms)
    WHERE state = 'blocked' AND deadline_at_ms IS NOT NULL;
-- True for a job that a blocked job comes after. The ends of all others need not look for blocked jobs.
ALTER TABLE headrace_job ADD COLUMN has_dependents BOOLEAN NOT NULL DEFAULT FALSE;
-- Schedules submit jobs at the times of a cron expression. `next_at_ms` is the next such time, NULL while
-- the schedule is paused. `missed` is the number of earlier times that the last run stands for.
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
    missed INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, name)
);
CREATE INDEX headrace_schedule_due ON headrace_schedule (next_at_ms) WHERE next_at_ms IS NOT NULL;
