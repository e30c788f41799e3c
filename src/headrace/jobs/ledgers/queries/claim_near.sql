-- Claim the first due jobs of a queue that belong to the worker's region or to none. See claim.sql.
-- `length(job.region) >= 0` holds for every row, and makes the partial index headrace_job_region
-- usable: the jobs of each of the two regions are there in order.
WITH clock AS MATERIALIZED (SELECT headrace_now() AS now_ms),
own AS MATERIALIZED (
    SELECT
        job.id AS candidate_id, job.priority AS candidate_priority, job.due_at_ms AS candidate_due,
        job.crashes >= :crashes_together_max AS alone
    FROM headrace_job AS job
    WHERE job.queue = :queue
        AND {claimable}
        AND job.state = 'pending' AND NOT job.asleep AND length(job.region) >= 0
        AND job.region = :region
        AND NOT EXISTS (SELECT 1 FROM headrace_queue WHERE name = :queue AND paused)
    ORDER BY job.priority, job.due_at_ms, job.id
    LIMIT :row_limit
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
nowhere AS MATERIALIZED (
    SELECT
        job.id AS candidate_id, job.priority AS candidate_priority, job.due_at_ms AS candidate_due,
        job.crashes >= :crashes_together_max AS alone
    FROM headrace_job AS job
    WHERE job.queue = :queue
        AND {claimable}
        AND job.state = 'pending' AND NOT job.asleep AND length(job.region) >= 0
        AND job.region = ''
        AND NOT EXISTS (SELECT 1 FROM headrace_queue WHERE name = :queue AND paused)
    ORDER BY job.priority, job.due_at_ms, job.id
    LIMIT :row_limit
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
woken AS MATERIALIZED (
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
        AND NOT EXISTS (SELECT 1 FROM headrace_queue WHERE name = :queue AND paused)
    ORDER BY job.priority, job.due_at_ms, job.id
    LIMIT :row_limit
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
numbered AS MATERIALIZED (
    SELECT
        candidate_id, alone,
        row_number() OVER (ORDER BY candidate_priority, candidate_due, candidate_id) AS place
    FROM (
        SELECT * FROM own UNION ALL SELECT * FROM nowhere UNION ALL SELECT * FROM woken
    ) AS candidate
)
UPDATE headrace_job SET
    state = 'running',
    asleep = FALSE,
    attempt = headrace_job.attempt + 1,
    lease = headrace_job.lease + 1,
    worker = :worker,
    worker_region = :region,
    started_at_ms = now_ms,
    lease_until_ms = now_ms + :lease_ms,
    progress = NULL
FROM numbered, clock
WHERE headrace_job.id = candidate_id AND headrace_job.state || '' = 'pending'
    AND place <= :row_limit
    AND (place < coalesce((SELECT min(place) FROM numbered WHERE alone), :row_limit + 1)
        OR (place = 1 AND :taken = 0))
RETURNING {job_columns}
