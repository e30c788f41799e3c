UPDATE headrace_receiver SET
    failures = :failures,
    failing_since_at_ms = :failing_since_at_ms,
    rests_until_at_ms = :rests_until_at_ms,
    disabled_why = CASE disabled_why WHEN '' THEN :disabled_why ELSE disabled_why END
WHERE id = :id
