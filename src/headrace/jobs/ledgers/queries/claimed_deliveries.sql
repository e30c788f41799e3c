WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(claimed_id text)
)
SELECT
    n.id, n.fence, n.attempts, n.event_id, n.type, n.job_id, n.at_ms, n.data, receiver.id,
    receiver.target, receiver.failures, receiver.failing_since_at_ms, receiver.rests_until_at_ms
FROM given
JOIN headrace_notification AS n ON n.id = claimed_id
JOIN headrace_receiver AS receiver ON receiver.id = n.receiver_id
ORDER BY n.due_at_ms, n.id
