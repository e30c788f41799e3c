-- Add to counters. It is the last statement of its transaction, so that the locks are held for a moment
-- only. The rows are sorted, so that concurrent transactions lock them in one order.
WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(
        counted_event text, counted_cause text, counted_queue text, counted_model text, counted_tenant text,
        counted_bucket integer, more_jobs bigint, more_ms bigint
    )
)
INSERT INTO headrace_counter AS counter (event, cause, queue, model, tenant, bucket, shard, jobs, total_ms)
SELECT
    counted_event, counted_cause, counted_queue, counted_model, counted_tenant, counted_bucket,
    CAST(:shard AS integer), more_jobs, more_ms
FROM given
WHERE TRUE
ORDER BY counted_event, counted_cause, counted_queue, counted_model, counted_tenant, counted_bucket
ON CONFLICT (event, cause, queue, model, tenant, bucket, shard) DO UPDATE SET
    jobs = counter.jobs + excluded.jobs,
    total_ms = counter.total_ms + excluded.total_ms
