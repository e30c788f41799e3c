-- All pools, each with its last decision if that is kept; the table of pools is small.
-- The pool of a decision is a range, not a value: for one value, planners walk the numbers of all pools.
SELECT
    pool.name, pool.controller, pool.lease_until_ms, (SELECT headrace_now()) AS read_at_ms,
    last.pool, last.controller, last.workers, last.wanted, last.reason, last.observed, last.number, last.at_ms
FROM headrace_pool AS pool
LEFT JOIN headrace_decision AS last
    ON last.number = (
        SELECT other.number
        FROM headrace_decision AS other
        WHERE other.pool >= pool.name AND other.pool <= pool.name
        ORDER BY other.pool DESC, other.number DESC
        LIMIT 1
    )
    AND last.at_ms >= (SELECT headrace_now()) - :kept_ms
WHERE pool.lease_until_ms >= (SELECT headrace_now()) - :kept_ms
ORDER BY pool.name
