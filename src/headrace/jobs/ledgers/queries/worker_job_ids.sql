-- Ordered by an expression without an index: otherwise planners would scan all jobs for their order.
SELECT job.id
FROM headrace_job AS job
WHERE job.worker = :worker AND job.state = 'running'
ORDER BY job.id || ''
LIMIT :row_limit
