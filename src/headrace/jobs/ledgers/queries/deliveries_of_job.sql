SELECT id, receiver_id, event_id, state, attempts, due_at_ms, why, job_id, type, at_ms
FROM headrace_notification
WHERE job_id = :job_id
ORDER BY id
