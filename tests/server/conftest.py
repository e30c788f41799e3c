"""Fixtures of several listeners' tests."""

import levels

# schemathesis comes with `make setup-all` only.
collect_ignore = ["test_openapi_fuzz.py"] if levels.level() == "test" else []
