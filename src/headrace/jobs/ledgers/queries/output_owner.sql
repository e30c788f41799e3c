SELECT owner_id
FROM headrace_output
WHERE location = :location
