UPDATE headrace_notification
SET state = 'waiting', attempts = 0, due_at_ms = (SELECT headrace_now()), ended_at_ms = NULL
WHERE id = :id AND state IN ('waiting', 'delivered', 'dead')
RETURNING receiver_id
