UPDATE headrace_schedule SET next_at_ms = :next_at_ms, claimed_until_ms = 0
WHERE tenant = :tenant AND name = :name
