-- Return the lanes of a queue that have claimable jobs, with the rank and id of each first job; the time
-- until the next sleeping job of the claim is due; and all limits and shares.
-- The lanes are read from the partial index headrace_job_awake, one after the other, not job by job.
-- Sleeping jobs of other regions are skipped up to a limit; polling finds the rest.
WITH RECURSIVE head AS (
    SELECT (
        SELECT job.id FROM headrace_job AS job
        WHERE job.queue = :queue
            AND {claimable}
            AND job.state = 'pending' AND NOT job.asleep
            AND NOT EXISTS (SELECT 1 FROM headrace_queue WHERE name = :queue AND paused)
        ORDER BY job.lane, job.rank_ms, job.id
        LIMIT 1
    ) AS job_id
    UNION ALL
    SELECT (
        SELECT job.id FROM headrace_job AS job
        WHERE job.queue = :queue
            AND job.lane > (SELECT last.lane FROM headrace_job AS last WHERE last.id = head.job_id)
            AND {claimable}
            AND job.state = 'pending' AND NOT job.asleep
        ORDER BY job.lane, job.rank_ms, job.id
        LIMIT 1
    ) FROM head WHERE head.job_id IS NOT NULL
)
SELECT
    'lane' AS kind,
    (SELECT found.lane FROM headrace_job AS found WHERE found.id = head.job_id) AS name,
    (SELECT found.rank_ms FROM headrace_job AS found WHERE found.id = head.job_id) AS number,
    1.0 AS weight,
    head.job_id AS first_id
FROM head
WHERE head.job_id IS NOT NULL
UNION ALL
SELECT 'asleep', '', min(sleeper.due_at_ms) - (SELECT headrace_now()), 1.0, ''
FROM (
    SELECT job.region, job.due_at_ms FROM headrace_job AS job
    WHERE job.queue = :queue
        AND {claimable}
        AND job.state = 'pending' AND job.asleep
        AND (:without_models = '' OR strpos(:without_models, ',' || job.model || ',') = 0)
        AND NOT EXISTS (SELECT 1 FROM headrace_queue WHERE name = :queue AND paused)
    ORDER BY job.due_at_ms
    LIMIT :sleeper_limit
) AS sleeper
WHERE :region = '*' OR sleeper.region IN (:region, '')
UNION ALL
SELECT bound.kind, bound.name, bound.running_max, bound.weight, '' FROM headrace_limit AS bound
