-- Return the time until a job of some queues, of the worker's region or of none, is due.
-- Sleeping jobs of other regions are skipped up to a limit; polling finds the rest.
WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(queue_name text)
)
SELECT min(coalesce(
    (SELECT 0 FROM headrace_job AS job
        WHERE job.queue = queue_name AND job.state = 'pending' AND NOT job.asleep
            AND length(job.region) >= 0 AND job.region = :region
            AND {claimable}
        LIMIT 1),
    (SELECT 0 FROM headrace_job AS job
        WHERE job.queue = queue_name AND job.state = 'pending' AND NOT job.asleep
            AND length(job.region) >= 0 AND job.region = ''
            AND {claimable}
        LIMIT 1),
    (SELECT min(sleeper.due_at_ms) - (SELECT headrace_now()) FROM (
        SELECT job.region, job.due_at_ms FROM headrace_job AS job
        WHERE job.queue = queue_name AND job.state = 'pending' AND job.asleep
            AND {claimable}
        ORDER BY job.due_at_ms
        LIMIT 1000
    ) AS sleeper WHERE sleeper.region IN (:region, ''))
))
FROM given
WHERE NOT EXISTS (SELECT 1 FROM headrace_queue WHERE name = queue_name AND paused)
