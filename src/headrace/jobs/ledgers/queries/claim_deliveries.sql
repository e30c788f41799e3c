-- Claim the first due delivery of each locked receiver.
-- A step after free_receivers.sql, so that it sees what the previous holders of the receivers wrote.
-- The condition of the partial index headrace_notification_open is repeated for SQLite, which would
-- scan the table otherwise.
WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(free_id text)
),
first AS MATERIALIZED (
    SELECT (
        SELECT n.id FROM headrace_notification AS n
        WHERE n.receiver_id = free_id AND n.state IN ('waiting', 'claimed')
            AND CASE n.state WHEN 'claimed' THEN n.lease_until_ms ELSE n.due_at_ms END
                <= (SELECT headrace_now())
        ORDER BY n.due_at_ms, n.id
        LIMIT 1
    ) AS first_id
    FROM given
    WHERE NOT EXISTS (
        SELECT 1 FROM headrace_notification AS n
        WHERE n.receiver_id = free_id AND n.state IN ('waiting', 'claimed') AND n.state = 'claimed'
            AND n.lease_until_ms > (SELECT headrace_now())
    )
)
UPDATE headrace_notification SET
    state = 'claimed',
    attempts = headrace_notification.attempts + 1,
    fence = headrace_notification.fence + 1,
    lease_until_ms = (SELECT headrace_now()) + :lease_ms
FROM first
WHERE headrace_notification.id = first_id
RETURNING headrace_notification.id
