SELECT
    event, cause, queue, model, tenant, bucket,
    CAST(sum(jobs) AS bigint) AS jobs, CAST(sum(total_ms) AS bigint) AS total_ms
FROM headrace_counter
GROUP BY event, cause, queue, model, tenant, bucket
ORDER BY event, cause, queue, model, tenant, bucket
