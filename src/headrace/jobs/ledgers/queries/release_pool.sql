UPDATE headrace_pool SET lease_until_ms = (SELECT headrace_now())
WHERE name = :name AND controller = :controller AND lease_until_ms > (SELECT headrace_now())
