-- Claim locked jobs under new leases.
-- `state || ''` keeps planners from the partial index of a state, which they may believe to be empty
-- and would scan instead of finding the row by its id.
WITH clock AS MATERIALIZED (SELECT headrace_now() AS now_ms),
given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(claimed_id text)
)
UPDATE headrace_job SET
    {claimed}
FROM given, clock
WHERE headrace_job.id = ANY (ARRAY[claimed_id]) AND headrace_job.state || '' = 'pending'
RETURNING {job_columns}
