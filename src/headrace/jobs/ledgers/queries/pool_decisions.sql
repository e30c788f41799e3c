-- Return the next decisions of a pool before a number, newest first. Those that are too old are not kept.
-- The pool is a range, not a value: for one value, planners walk the numbers of all pools.
SELECT
    pool, controller, workers, wanted, reason, observed, number, at_ms,
    at_ms >= (SELECT headrace_now()) - :kept_ms AS kept
FROM headrace_decision
WHERE pool >= :pool AND (pool, number) < (:pool, :before_number)
ORDER BY pool DESC, number DESC
LIMIT :row_limit
