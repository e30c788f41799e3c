SELECT id, receiver_id, event_id, state, attempts, due_at_ms, why
FROM headrace_notification
WHERE id = :id
