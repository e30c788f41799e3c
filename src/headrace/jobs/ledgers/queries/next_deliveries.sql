-- Return, for each endpoint with open deliveries, the times before which none can be claimed.
SELECT
    max(endpoint.rests_until_at_ms),
    coalesce(max(CASE n.state WHEN 'claimed' THEN n.lease_until_ms END), 0),
    min(CASE n.state WHEN 'claimed' THEN n.lease_until_ms ELSE n.due_at_ms END)
FROM headrace_endpoint AS endpoint
JOIN headrace_notification AS n ON n.endpoint_id = endpoint.id
WHERE endpoint.disabled_why = '' AND n.state IN ('waiting', 'claimed')
GROUP BY endpoint.id
