UPDATE headrace_notification SET
    state = :state,
    why = :why,
    due_at_ms = coalesce(CAST(:due_at_ms AS BIGINT), due_at_ms),
    ended_at_ms = CASE WHEN :state = 'waiting' THEN NULL ELSE (SELECT headrace_now()) END
WHERE id = :id AND fence = :fence AND state = 'claimed'
RETURNING receiver_id
