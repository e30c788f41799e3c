-- The ids of jobs to cancel, and an empty id if the worker is to drain: one statement, because workers
-- run it after notifications.
SELECT job.id
FROM headrace_job AS job
WHERE job.worker = :worker AND job.state = 'running' AND job.cancel_requested
UNION ALL
SELECT '' AS id
FROM headrace_worker
WHERE name = :worker AND draining
