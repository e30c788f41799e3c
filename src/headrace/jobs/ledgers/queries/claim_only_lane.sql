-- Claim the first jobs of a queue with one lane, if nothing else decides about the claim: no other lane has
-- due jobs, no sleeping job became due, there are no limits, and none of the jobs must run alone.
-- `ORDER BY … LIMIT 1` makes planners use the index in whose order the row would be found; with EXISTS
-- they may expect to meet a row soon on any way, and there is none.
WITH clock AS MATERIALIZED (SELECT headrace_now() AS now_ms),
first AS MATERIALIZED (
    SELECT job.lane AS name FROM headrace_job AS job
    WHERE job.queue = :queue
        AND {claimable}
        AND job.state = 'pending' AND NOT job.asleep
        AND NOT EXISTS (SELECT 1 FROM headrace_queue WHERE name = :queue AND paused)
        AND NOT EXISTS (SELECT 1 FROM headrace_limit)
        AND (
            SELECT sleeper.due_at_ms FROM headrace_job AS sleeper
            WHERE sleeper.queue = :queue AND sleeper.state = 'pending' AND sleeper.asleep
                AND sleeper.due_at_ms <= (SELECT headrace_now())
            ORDER BY sleeper.due_at_ms
            LIMIT 1
        ) IS NULL
    ORDER BY job.lane, job.rank_ms, job.id
    LIMIT 1
),
candidate AS MATERIALIZED (
    SELECT job.id AS candidate_id, job.crashes >= :crashes_together_max AS alone
    FROM headrace_job AS job
    WHERE job.queue = :queue AND job.lane = (SELECT name FROM first)
        AND {claimable}
        AND job.state = 'pending' AND NOT job.asleep
        AND (
            SELECT other.lane FROM headrace_job AS other
            WHERE other.queue = :queue AND other.lane > (SELECT name FROM first)
                AND other.state = 'pending' AND NOT other.asleep
            ORDER BY other.lane
            LIMIT 1
        ) IS NULL
    ORDER BY job.rank_ms, job.id
    LIMIT :row_limit
    FOR NO KEY UPDATE OF job SKIP LOCKED
)
UPDATE headrace_job SET
    {claimed}
FROM candidate, clock
WHERE headrace_job.id = ANY (ARRAY[candidate_id]) AND headrace_job.state || '' = 'pending'
    AND NOT EXISTS (SELECT 1 FROM candidate WHERE alone)
RETURNING {job_columns}, rank_ms
