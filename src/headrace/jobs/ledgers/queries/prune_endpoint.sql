DELETE FROM headrace_endpoint WHERE name = :name AND version <= :version - :versions_max
