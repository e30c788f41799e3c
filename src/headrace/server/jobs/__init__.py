"""The HTTP API of jobs: thin routes over `headrace.jobs.desk`. FastAPI and pydantic are imported in this room alone."""

from importlib.util import find_spec

from headrace.core.errors import MissingExtraError

if find_spec("fastapi") is None:
    raise MissingExtraError("jobs", "the HTTP API of jobs")
