SELECT id, target, failures, failing_since_at_ms, rests_until_at_ms, disabled_why
FROM headrace_receiver
WHERE failures > 0 OR disabled_why <> ''
ORDER BY id
LIMIT :row_limit
