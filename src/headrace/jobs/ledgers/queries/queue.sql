SELECT name, paused, draining, pending_max, ageing_ms FROM headrace_queue WHERE name = :name
