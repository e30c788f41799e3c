-- Lock the jobs in the order of their ids, to avoid deadlocks.
-- Ordered by an expression without an index: otherwise planners would scan all jobs for their order.
WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(wanted_id text)
)
SELECT {job_columns}
FROM given JOIN headrace_job AS job ON job.id = ANY (ARRAY[wanted_id])
ORDER BY wanted_id || ''
FOR NO KEY UPDATE OF job
