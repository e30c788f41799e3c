UPDATE headrace_receiver SET rests_until_at_ms = 0 WHERE id = :id
