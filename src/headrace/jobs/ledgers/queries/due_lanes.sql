-- Count the due jobs of each lane of a queue, with the first due time, by the index of lanes.
-- Jobs with a later due time stay asleep until a claim or maintenance, even after that time.
SELECT job.lane, count(*), min(job.due_at_ms)
FROM headrace_job AS job
WHERE job.queue = :name AND job.state = 'pending' AND NOT job.asleep
GROUP BY job.lane
UNION ALL
SELECT job.lane, count(*), min(job.due_at_ms)
FROM headrace_job AS job
WHERE job.queue = :name AND job.state = 'pending' AND job.asleep
    AND job.due_at_ms <= (SELECT headrace_now())
GROUP BY job.lane
