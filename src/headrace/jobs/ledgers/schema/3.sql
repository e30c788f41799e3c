-- The models that workers of each queue have reported. Workers of older programs do not report theirs.
CREATE TABLE headrace_worker_model (
    queue TEXT COLLATE "C" NOT NULL,
    model TEXT COLLATE "C" NOT NULL,
    reported_at_ms BIGINT NOT NULL,
    PRIMARY KEY (queue, model)
);
