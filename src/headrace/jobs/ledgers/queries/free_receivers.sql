-- Lock the receivers that can take a delivery: enabled, not resting, none under way, one due.
-- A claimed delivery is due again when its lease has passed.
-- The condition of the partial index headrace_notification_open is repeated for SQLite, which would
-- scan the table otherwise.
SELECT receiver.id
FROM headrace_receiver AS receiver
WHERE receiver.disabled_why = '' AND receiver.rests_until_at_ms <= (SELECT headrace_now())
    AND NOT EXISTS (
        SELECT 1 FROM headrace_notification AS n
        WHERE n.receiver_id = receiver.id AND n.state IN ('waiting', 'claimed') AND n.state = 'claimed'
            AND n.lease_until_ms > (SELECT headrace_now())
    )
    AND EXISTS (
        SELECT 1 FROM headrace_notification AS n
        WHERE n.receiver_id = receiver.id AND n.state IN ('waiting', 'claimed')
            AND CASE n.state WHEN 'claimed' THEN n.lease_until_ms ELSE n.due_at_ms END
                <= (SELECT headrace_now())
    )
ORDER BY
    (
        SELECT min(n.due_at_ms) FROM headrace_notification AS n
        WHERE n.receiver_id = receiver.id AND n.state IN ('waiting', 'claimed')
            AND CASE n.state WHEN 'claimed' THEN n.lease_until_ms ELSE n.due_at_ms END
                <= (SELECT headrace_now())
    ),
    receiver.id
LIMIT :row_limit
FOR NO KEY UPDATE OF receiver SKIP LOCKED
