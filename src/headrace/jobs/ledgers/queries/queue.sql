SELECT name, paused, draining, pending_max FROM headrace_queue WHERE name = :name
