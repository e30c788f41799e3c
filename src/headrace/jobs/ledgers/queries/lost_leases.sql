-- Lock running jobs with an expired lease. Concurrent workers divide the rows: each skips the rows
-- that others have locked.
SELECT {job_columns}
FROM headrace_job AS job
WHERE job.state = 'running' AND job.lease_until_ms <= (SELECT headrace_now())
ORDER BY job.queue, job.lane, job.id
LIMIT :row_limit
FOR NO KEY UPDATE OF job SKIP LOCKED
