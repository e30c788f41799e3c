-- Return the jobs at {places}, which `listing.py` writes, in their order.
WITH place AS MATERIALIZED (
    {places}
)
SELECT {job_columns}
FROM place JOIN headrace_job AS job ON job.id = place_id
ORDER BY place_ms DESC, place_id DESC
