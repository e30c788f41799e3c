"""The outputs that several tenants may write, where no tenant may damage the objects of another one.

The ledger has the owners of the names of single results. A run names its objects after those of its
source, so these names have no owners. In a file system, a folder with the name of a result prevents
that result.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.core.errors import ForbiddenError
from headrace.jobs.access import Access, ApiKey
from headrace.jobs.current_endpoints import CurrentEndpoints
from headrace.jobs.job import NewJob
from headrace.jobs.paths import ERROR_SUFFIX, FAILED_SUFFIX, RESULT_SUFFIX, is_below
from headrace.storage.uri import parse


@dataclass(frozen=True, slots=True)
class SharedOutputs:
    """The check of outputs. `of_all` are prefixes at which jobs of every tenant write."""

    access: Access
    endpoints: CurrentEndpoints
    of_all: Sequence[str] = ()

    def check(self, job: NewJob) -> None:
        """Raise ForbiddenError for an output at which the job could damage objects of another tenant.

        That is the output of a transform or a stream, and a folder with the name of a result, if a key
        of another tenant may write there, too.
        """
        if not job.output_uri:
            return
        output = _location(job.output_uri)
        if job.kind == "infer" and not _is_named_as_result(output):
            return
        for key in self.access.other_submitters(job.tenant):
            for shared in map(_location, (*self.of_all, *self._written(key))):
                if is_below(output, shared) or is_below(shared, output):
                    raise _refusal(job)

    def _written(self, key: ApiKey) -> Iterable[str]:
        if key.endpoints is None:
            return (*key.outputs.prefixes, *key.outputs.local_roots)
        found = map(self.endpoints.find, key.endpoints)
        return [each.settings.output_uri for each in found if each and each.settings.output_uri]


def _refusal(job: NewJob) -> ForbiddenError:
    shared = f"output_uri: other tenants may write at {job.output_uri}, too"
    if job.kind == "infer":
        return ForbiddenError(
            f"{shared}, and a folder that ends with {RESULT_SUFFIX}, {FAILED_SUFFIX} or {ERROR_SUFFIX} could "
            "have the name of a result: choose another name"
        )
    return ForbiddenError(
        f"{shared}, and a {job.kind} could replace their objects: name an output that only keys of one "
        "tenant may write"
    )


def _is_named_as_result(output: str) -> bool:
    return any(part.endswith((RESULT_SUFFIX, FAILED_SUFFIX, ERROR_SUFFIX)) for part in output.split("/"))


def _location(uri: str) -> str:
    """Return a normalized URI as `is_below` compares it: a path for a file, without a final slash."""
    location = parse(uri)
    return (uri if location.bucket else location.key).rstrip("/")
