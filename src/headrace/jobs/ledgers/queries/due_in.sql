-- Return the time until a job of some queues is due: 0 if one is, NULL if there is none.
WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(queue_name text)
)
SELECT min(coalesce(
    (SELECT 0 FROM headrace_job AS job
        WHERE job.queue = queue_name AND job.state = 'pending' AND NOT job.asleep
            AND {claimable}
        LIMIT 1),
    (SELECT job.due_at_ms - (SELECT headrace_now()) FROM headrace_job AS job
        WHERE job.queue = queue_name AND job.state = 'pending' AND job.asleep
            AND {claimable}
        ORDER BY job.due_at_ms
        LIMIT 1)
))
FROM given
WHERE NOT EXISTS (SELECT 1 FROM headrace_queue WHERE name = queue_name AND paused)
