-- Return TRUE if the first due job of a queue, of the worker's region or of none, must run alone.
-- The candidates are those of claim_near.sql.
WITH own AS (
    SELECT
        job.id AS candidate_id, job.priority AS candidate_priority, job.due_at_ms AS candidate_due,
        job.crashes >= :crashes_together_max AS alone
    FROM headrace_job AS job
    WHERE job.queue = :queue
        AND {claimable}
        AND job.state = 'pending' AND NOT job.asleep AND length(job.region) >= 0
        AND job.region = :region
    ORDER BY job.priority, job.due_at_ms, job.id
    LIMIT 1
),
nowhere AS (
    SELECT
        job.id AS candidate_id, job.priority AS candidate_priority, job.due_at_ms AS candidate_due,
        job.crashes >= :crashes_together_max AS alone
    FROM headrace_job AS job
    WHERE job.queue = :queue
        AND {claimable}
        AND job.state = 'pending' AND NOT job.asleep AND length(job.region) >= 0
        AND job.region = ''
    ORDER BY job.priority, job.due_at_ms, job.id
    LIMIT 1
),
woken AS (
    SELECT
        job.id AS candidate_id, job.priority AS candidate_priority, job.due_at_ms AS candidate_due,
        job.crashes >= :crashes_together_max AS alone
    FROM headrace_job AS job
    WHERE job.queue = :queue
        AND {claimable}
        AND job.state || '' = 'pending' AND job.asleep
        AND job.id IN (
            SELECT sleeper.id FROM headrace_job AS sleeper
            WHERE sleeper.queue = :queue AND sleeper.state = 'pending' AND sleeper.asleep
                AND sleeper.due_at_ms <= (SELECT headrace_now())
            ORDER BY sleeper.due_at_ms
            LIMIT 1000
        )
        AND job.region IN (:region, '')
    ORDER BY job.priority, job.due_at_ms, job.id
    LIMIT 1
)
SELECT alone
FROM (
    SELECT * FROM own UNION ALL SELECT * FROM nowhere UNION ALL SELECT * FROM woken
) AS candidate
ORDER BY candidate_priority, candidate_due, candidate_id
LIMIT 1
