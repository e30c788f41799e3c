SELECT {job_columns}
FROM headrace_job AS job
WHERE job.worker = :worker AND job.state = 'running'
