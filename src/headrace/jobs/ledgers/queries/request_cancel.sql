UPDATE headrace_job SET cancel_requested = TRUE WHERE id = :id
