-- Pools of workers, each with its controller: the holder of the lease, the last one after its end.
CREATE TABLE headrace_pool (
    name TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    controller TEXT COLLATE "C" NOT NULL,
    lease_until_ms BIGINT NOT NULL
);
-- Decisions of controllers about the number of workers, newest last. `observed` is JSON.
CREATE TABLE headrace_decision (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_ms BIGINT NOT NULL,
    pool TEXT COLLATE "C" NOT NULL,
    controller TEXT COLLATE "C" NOT NULL,
    workers INTEGER NOT NULL,
    wanted INTEGER NOT NULL,
    reason TEXT COLLATE "C" NOT NULL,
    observed TEXT COLLATE "C" NOT NULL
);
CREATE INDEX headrace_decision_pool ON headrace_decision (pool, number);
CREATE INDEX headrace_decision_at ON headrace_decision (at_ms);
