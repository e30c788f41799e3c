-- Return the name if the controller has taken or extended the lease.
INSERT INTO headrace_pool (name, controller, lease_until_ms)
VALUES (:name, :controller, (SELECT headrace_now()) + :lease_ms)
ON CONFLICT (name) DO UPDATE SET
    controller = excluded.controller,
    lease_until_ms = excluded.lease_until_ms
WHERE headrace_pool.controller = excluded.controller
    OR headrace_pool.lease_until_ms <= (SELECT headrace_now())
RETURNING name
