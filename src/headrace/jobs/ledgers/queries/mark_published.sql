UPDATE headrace_job SET unpublished = FALSE, published_uri = :published_uri, failure = :failure
WHERE id = :id
