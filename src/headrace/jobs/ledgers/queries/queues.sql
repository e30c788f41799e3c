SELECT name, paused, draining, pending_max FROM headrace_queue ORDER BY name
