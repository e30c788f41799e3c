-- Return the next decisions of a pool before a number, newest first. Those that are too old are not kept.
SELECT
    pool, controller, workers, wanted, reason, observed, number, at_ms,
    at_ms >= (SELECT headrace_now()) - :kept_ms AS kept
FROM headrace_decision
WHERE pool = :pool AND number < :before_number
ORDER BY number DESC
LIMIT :row_limit
