UPDATE headrace_job SET failure = :failure
WHERE id = :id
