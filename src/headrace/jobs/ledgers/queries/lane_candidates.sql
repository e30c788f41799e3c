-- Lock the first claimable jobs of a lane. Jobs that another claim has locked are skipped.
SELECT job.id, job.rank_ms, job.crashes >= :crashes_together_max AS alone
FROM headrace_job AS job
WHERE job.queue = :queue AND job.lane = :lane
    AND {claimable}
    AND job.state = 'pending' AND NOT job.asleep
ORDER BY job.rank_ms, job.id
LIMIT :row_limit
FOR NO KEY UPDATE OF job SKIP LOCKED
