-- Count the unfinished jobs of one tenant, by queue and region.
-- Pending, publishing and blocked jobs are found by the index of the tenant's ones. Running jobs
-- of all tenants are read, of which there are as many as workers have slots.
WITH clock AS MATERIALIZED (SELECT headrace_now() AS now_ms),
pending AS MATERIALIZED (
    SELECT
        job.queue, job.region, job.due_at_ms,
        NOT job.asleep OR job.due_at_ms <= (SELECT now_ms FROM clock) AS is_due
    FROM headrace_job AS job
    WHERE job.tenant = :tenant AND job.state = 'pending'
)
SELECT
    queue, region, sum(CASE WHEN is_due THEN 1 ELSE 0 END) AS due,
    sum(CASE WHEN is_due THEN 0 ELSE 1 END) AS later, 0 AS running,
    0 AS blocked,
    (SELECT now_ms FROM clock) - min(due_at_ms) AS oldest_ms
FROM pending
GROUP BY queue, region
UNION ALL
SELECT job.queue, '', 0, 0, count(*), 0, NULL
FROM headrace_job AS job
WHERE job.tenant = :tenant AND job.state = 'running'
GROUP BY job.queue
UNION ALL
SELECT job.queue, '', 0, 0, 0, 0, NULL
FROM headrace_job AS job
WHERE job.tenant = :tenant AND job.state = 'publishing'
GROUP BY job.queue
UNION ALL
SELECT job.queue, '', 0, 0, 0, count(*), NULL
FROM headrace_job AS job
WHERE job.tenant = :tenant AND job.state = 'blocked'
GROUP BY job.queue
