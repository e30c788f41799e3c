UPDATE headrace_receiver
SET disabled_why = '', failures = 0, failing_since_at_ms = 0, rests_until_at_ms = 0
WHERE id = :id
RETURNING id
