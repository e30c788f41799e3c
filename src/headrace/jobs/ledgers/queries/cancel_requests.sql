SELECT job.id
FROM headrace_job AS job
WHERE job.worker = :worker AND job.state = 'running' AND job.cancel_requested
