UPDATE headrace_job SET spec = :spec
WHERE id = :id
