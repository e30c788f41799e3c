-- Return TRUE if the first due job of a queue must run alone. The candidates are those of claim.sql.
WITH awake AS (
    SELECT
        job.id AS candidate_id, job.priority AS candidate_priority, job.due_at_ms AS candidate_due,
        job.crashes >= :crashes_together_max AS alone
    FROM headrace_job AS job
    WHERE job.queue = :queue
        AND {claimable}
        AND job.state = 'pending' AND NOT job.asleep
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
    ORDER BY job.priority, job.due_at_ms, job.id
    LIMIT 1
)
SELECT alone
FROM (SELECT * FROM awake UNION ALL SELECT * FROM woken) AS candidate
ORDER BY candidate_priority, candidate_due, candidate_id
LIMIT 1
