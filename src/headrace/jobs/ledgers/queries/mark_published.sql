-- Record that a job's end needs no further publication.
UPDATE headrace_job SET publish_at_ms = NULL, failure = :failure
WHERE id = :id
