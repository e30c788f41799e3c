-- Count the later, the running and the blocked jobs of a queue; due_lanes.sql counts the due ones.
SELECT
    (SELECT count(*) FROM headrace_job AS job
        WHERE job.queue = :name AND job.state = 'pending' AND job.asleep
            AND job.due_at_ms > (SELECT headrace_now())) AS later,
    (SELECT count(*) FROM headrace_job AS job
        WHERE job.queue = :name AND job.state = 'running') AS running,
    (SELECT count(*) FROM headrace_job AS job
        WHERE job.queue = :name AND job.state = 'blocked'
            AND length(job.queue) >= 0) AS blocked,
    (SELECT headrace_now()) AS now_ms
