-- Return the number of the decision; no row unless its controller holds the lease of its pool.
INSERT INTO headrace_decision (at_ms, pool, controller, workers, wanted, reason, observed)
SELECT
    (SELECT headrace_now()), pool.name, pool.controller, CAST(:workers AS integer),
    CAST(:wanted AS integer), CAST(:reason AS text), CAST(:observed AS text)
FROM headrace_pool AS pool
WHERE pool.name = :pool AND pool.controller = :controller
    AND pool.lease_until_ms > (SELECT headrace_now())
RETURNING number
