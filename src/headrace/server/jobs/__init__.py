"""The HTTP API of jobs: routes over `headrace.jobs.service`.

Only this package imports FastAPI and pydantic.
"""

from importlib.util import find_spec

from headrace.core.errors import MissingExtraError

if find_spec("fastapi") is None:
    raise MissingExtraError("jobs", "the HTTP API of jobs")
