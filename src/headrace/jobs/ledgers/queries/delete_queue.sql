DELETE FROM headrace_queue WHERE name = :name RETURNING name
