-- Find out whether a queue has a job that has not ended.
-- On PostgreSQL a job that is submitted at the same time is not seen. It stays in a queue without a
-- row, is worked on by default settings, and the next job of that name creates the row.
SELECT
    EXISTS (SELECT 1 FROM headrace_job AS job
        WHERE job.queue = :name AND job.state = 'pending' AND NOT job.asleep)
    OR EXISTS (SELECT 1 FROM headrace_job AS job
        WHERE job.queue = :name AND job.state = 'pending' AND job.asleep)
    OR EXISTS (SELECT 1 FROM headrace_job AS job
        WHERE job.queue = :name AND job.state = 'running')
    OR EXISTS (SELECT 1 FROM headrace_job AS job
        WHERE job.queue = :name AND job.state = 'publishing')
    OR EXISTS (SELECT 1 FROM headrace_job AS job
        WHERE job.queue = :name AND job.state = 'blocked'
            AND length(job.queue) >= 0)
