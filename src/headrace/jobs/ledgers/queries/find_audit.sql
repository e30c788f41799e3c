-- Return entries before a number, newest first, from the next entries up to a limit.
SELECT number, at_ms, done_by, tenant, action, subject, details, jobs
FROM (
    SELECT * FROM headrace_audit AS entry
    WHERE entry.number < :before_number
    ORDER BY entry.number DESC
    LIMIT :read_limit
) AS entry
WHERE entry.at_ms >= (SELECT headrace_now()) - :kept_ms
    AND (:done_by = '' OR entry.done_by = :done_by) AND (:action = '' OR entry.action = :action)
ORDER BY entry.number DESC
LIMIT :row_limit
