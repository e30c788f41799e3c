-- Move pending jobs that became due to the index of jobs that are awake.
-- SQLite reads a CROSS JOIN as: queues first.
WITH candidate AS MATERIALIZED (
    SELECT job.id AS candidate_id
    FROM headrace_queue CROSS JOIN headrace_job AS job
    WHERE job.queue = headrace_queue.name AND job.state = 'pending' AND job.asleep
        AND job.due_at_ms <= (SELECT headrace_now())
    LIMIT :row_limit
    FOR NO KEY UPDATE OF job SKIP LOCKED
)
UPDATE headrace_job SET asleep = FALSE
FROM candidate
WHERE headrace_job.id = candidate_id AND headrace_job.state || '' = 'pending'
RETURNING headrace_job.queue
