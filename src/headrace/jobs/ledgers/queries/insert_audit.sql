INSERT INTO headrace_audit (at_ms, done_by, tenant, action, subject, details, jobs)
VALUES ((SELECT headrace_now()), :done_by, :tenant, :action, :subject, :details, :jobs)
