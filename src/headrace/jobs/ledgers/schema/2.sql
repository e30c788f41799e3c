-- The regions of data and workers. Older programs submit jobs without a region, and their workers take
-- those of all regions.
-- The index's last condition holds for every row. Only statements that contain it can use the index:
-- for claims of all regions it is useless, and planners might choose it. (A comparison would become a
-- range instead of the region.)
ALTER TABLE headrace_job ADD COLUMN region TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE headrace_job ADD COLUMN worker_region TEXT COLLATE "C" NOT NULL DEFAULT '';
CREATE INDEX headrace_job_region ON headrace_job (queue, region, priority, due_at_ms, id)
    WHERE state = 'pending' AND NOT asleep AND length(region) >= 0;
