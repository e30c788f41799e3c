-- Count the due jobs of each region: by the index of regions, sleeping jobs by theirs.
SELECT job.region, count(*)
FROM headrace_job AS job
WHERE job.queue = :name AND job.state = 'pending' AND NOT job.asleep
    AND length(job.region) >= 0 AND job.region > ''
GROUP BY job.region
UNION ALL
SELECT job.region, count(*)
FROM headrace_job AS job
WHERE job.queue = :name AND job.state = 'pending' AND job.asleep
    AND job.due_at_ms <= (SELECT headrace_now()) AND job.region || '' <> ''
GROUP BY job.region
