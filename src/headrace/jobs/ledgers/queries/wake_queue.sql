-- Move sleeping jobs of a queue that became due to the index of jobs that are awake; see wake_jobs.sql.
WITH candidate AS MATERIALIZED (
    SELECT job.id AS candidate_id
    FROM headrace_job AS job
    WHERE job.queue = :queue AND job.state = 'pending' AND job.asleep
        AND job.due_at_ms <= (SELECT headrace_now())
    ORDER BY job.due_at_ms
    LIMIT 1000
    FOR NO KEY UPDATE OF job SKIP LOCKED
)
UPDATE headrace_job SET asleep = FALSE
FROM candidate
WHERE headrace_job.id = candidate_id AND headrace_job.state || '' = 'pending'
RETURNING headrace_job.id
