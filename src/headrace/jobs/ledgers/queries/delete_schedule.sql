DELETE FROM headrace_schedule WHERE tenant = :tenant AND name = :name RETURNING name
