UPDATE headrace_worker SET draining = :draining, draining_by = :done_by WHERE name = :name
