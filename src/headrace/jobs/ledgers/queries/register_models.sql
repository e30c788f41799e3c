-- The rows are sorted, so that concurrent reports lock them in one order.
WITH clock AS MATERIALIZED (SELECT headrace_now() AS now_ms),
given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(worker_queue text, worker_model text)
)
INSERT INTO headrace_worker_model (queue, model, reported_at_ms)
SELECT worker_queue, worker_model, now_ms
FROM given CROSS JOIN clock
WHERE TRUE
ORDER BY worker_queue, worker_model
ON CONFLICT (queue, model) DO UPDATE SET reported_at_ms = excluded.reported_at_ms
