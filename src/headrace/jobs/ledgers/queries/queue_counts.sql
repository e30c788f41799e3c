-- Count the due, later and running jobs of a queue.
-- Jobs with a later due time stay asleep until maintenance, even after that time.
WITH clock AS MATERIALIZED (SELECT headrace_now() AS now_ms)
SELECT
    (SELECT count(*) FROM headrace_job AS job
        WHERE job.queue = :name AND job.state = 'pending' AND NOT job.asleep) AS awake,
    (SELECT count(*) FROM headrace_job AS job
        WHERE job.queue = :name AND job.state = 'pending' AND job.asleep
            AND job.due_at_ms <= (SELECT headrace_now())) AS woken,
    (SELECT count(*) FROM headrace_job AS job
        WHERE job.queue = :name AND job.state = 'pending' AND job.asleep
            AND job.due_at_ms > (SELECT headrace_now())) AS later,
    (SELECT count(*) FROM headrace_job AS job
        WHERE job.queue = :name AND job.state = 'running') AS running,
    (SELECT min(job.due_at_ms) FROM headrace_job AS job
        WHERE job.queue = :name AND job.state = 'pending' AND NOT job.asleep) AS first_awake_ms,
    (SELECT min(job.due_at_ms) FROM headrace_job AS job
        WHERE job.queue = :name AND job.state = 'pending' AND job.asleep) AS first_asleep_ms,
    now_ms
FROM clock
