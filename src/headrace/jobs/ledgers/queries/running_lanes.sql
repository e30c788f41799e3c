-- Count the running jobs of each queue and lane.
SELECT job.queue, job.lane, count(*)
FROM headrace_job AS job
WHERE job.state = 'running'
GROUP BY job.queue, job.lane
