SELECT id, target, failures, failing_since_at_ms, rests_until_at_ms, disabled_why
FROM headrace_receiver
WHERE id = :id
