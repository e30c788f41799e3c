SELECT at_ms, event, attempt, lease, worker, cause, message, done_by, started_at_ms
FROM headrace_history
WHERE job_id = :job_id
ORDER BY number DESC
LIMIT :row_limit
