-- Lock the receivers that can take a delivery: enabled, not resting, none under way, one due.
-- A claimed delivery is due again when its lease has passed.
-- Tenants take turns: the one with the fewest deliveries under way comes first, so that many receivers of
-- one tenant that do not respond delay no other tenant.
-- The condition of the partial index headrace_notification_open is repeated for SQLite, which would
-- scan the table otherwise.
WITH idle AS MATERIALIZED (
    SELECT
        receiver.id, receiver.tenant,
        (
            SELECT min(n.due_at_ms) FROM headrace_notification AS n
            WHERE n.receiver_id = receiver.id AND n.state IN ('waiting', 'claimed')
                AND CASE n.state WHEN 'claimed' THEN n.lease_until_ms ELSE n.due_at_ms END
                    <= (SELECT headrace_now())
        ) AS first_at_ms
    FROM headrace_receiver AS receiver
    WHERE receiver.disabled_why = '' AND receiver.rests_until_at_ms <= (SELECT headrace_now())
        AND NOT EXISTS (
            SELECT 1 FROM headrace_notification AS n
            WHERE n.receiver_id = receiver.id AND n.state IN ('waiting', 'claimed') AND n.state = 'claimed'
                AND n.lease_until_ms > (SELECT headrace_now())
        )
),
busy AS MATERIALIZED (
    SELECT receiver.tenant, count(*) AS deliveries
    FROM headrace_notification AS n
    JOIN headrace_receiver AS receiver ON receiver.id = n.receiver_id
    WHERE n.state IN ('waiting', 'claimed') AND n.state = 'claimed'
        AND n.lease_until_ms > (SELECT headrace_now())
    GROUP BY receiver.tenant
),
due AS MATERIALIZED (
    SELECT
        idle.id, idle.first_at_ms,
        coalesce(busy.deliveries, 0)
            + row_number() OVER (PARTITION BY idle.tenant ORDER BY idle.first_at_ms, idle.id) AS turn
    FROM idle LEFT JOIN busy ON busy.tenant = idle.tenant
    WHERE idle.first_at_ms IS NOT NULL
)
SELECT receiver.id
FROM due JOIN headrace_receiver AS receiver ON receiver.id = due.id
ORDER BY due.turn, due.first_at_ms, due.id
LIMIT :row_limit
FOR NO KEY UPDATE OF receiver SKIP LOCKED
