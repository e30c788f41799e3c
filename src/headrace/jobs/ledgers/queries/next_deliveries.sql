-- Return, for each receiver with open deliveries, the times before which none can be claimed.
SELECT
    max(receiver.rests_until_at_ms),
    coalesce(max(CASE n.state WHEN 'claimed' THEN n.lease_until_ms END), 0),
    min(CASE n.state WHEN 'claimed' THEN n.lease_until_ms ELSE n.due_at_ms END)
FROM headrace_receiver AS receiver
JOIN headrace_notification AS n ON n.receiver_id = receiver.id
WHERE receiver.disabled_why = '' AND n.state IN ('waiting', 'claimed')
GROUP BY receiver.id
