DELETE FROM headrace_audit WHERE number IN (
    SELECT entry.number FROM headrace_audit AS entry
    WHERE entry.at_ms < (SELECT headrace_now()) - :kept_ms
    ORDER BY entry.at_ms
    LIMIT :row_limit
)
