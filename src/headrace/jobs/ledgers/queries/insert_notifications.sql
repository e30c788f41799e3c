WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(
        new_id text, job_id text, receiver_id text, event_id text, type text, data text, state text
    )
)
INSERT INTO headrace_notification (
    id, job_id, receiver_id, event_id, type, at_ms, data, state, due_at_ms
)
SELECT
    new_id, job_id, receiver_id, event_id, type, (SELECT headrace_now()), data, state,
    (SELECT headrace_now())
FROM given
