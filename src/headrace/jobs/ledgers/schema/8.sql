-- Deliveries of tenants take turns: a receiver belongs to the tenant whose jobs brought it, or to nobody.
ALTER TABLE headrace_receiver ADD COLUMN tenant TEXT COLLATE "C" NOT NULL DEFAULT '';
