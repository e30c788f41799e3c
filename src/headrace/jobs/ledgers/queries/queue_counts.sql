-- Count the later and the running jobs of a queue; due_lanes.sql counts the due ones.
SELECT
    (SELECT count(*) FROM headrace_job AS job
        WHERE job.queue = :name AND job.state = 'pending' AND job.asleep
            AND job.due_at_ms > (SELECT headrace_now())) AS later,
    (SELECT count(*) FROM headrace_job AS job
        WHERE job.queue = :name AND job.state = 'running') AS running,
    (SELECT headrace_now()) AS now_ms
