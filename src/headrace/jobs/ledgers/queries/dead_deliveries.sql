SELECT id, receiver_id, event_id, state, attempts, due_at_ms, why, job_id, type, at_ms
FROM headrace_notification
WHERE state = 'dead'
ORDER BY ended_at_ms DESC, id
LIMIT :row_limit
