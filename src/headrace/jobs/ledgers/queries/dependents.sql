-- Return the first pairs of a job that comes after ended ones, and the ended one.
WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(ended_id text)
)
SELECT dependency.job_id, dependency.after_id
FROM given JOIN headrace_dependency AS dependency ON dependency.after_id = ended_id
ORDER BY dependency.job_id, dependency.after_id
LIMIT :row_limit
