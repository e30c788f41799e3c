"""Who asks for something, and what they may: what a desk wants to know of whoever stands before it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

from headrace.jobs.job import NewJob


class Scope(StrEnum):
    """What a caller may do."""

    SUBMIT = "submit"
    """Submit jobs; also cancel, retry and delete those of the own tenant."""
    READ = "read"
    """See jobs and results of the own tenant."""
    OPERATE = "operate"
    """Queues, and everybody's jobs."""


class Caller(Protocol):
    """One who asks."""

    @property
    def name(self) -> str:
        """For logs and histories; "" where nobody was asked who they are."""
        ...

    @property
    def tenant(self) -> str:
        """Whose their jobs are."""
        ...

    @property
    def sees(self) -> str | None:
        """The tenant whose jobs they see; None for one who sees everybody's."""
        ...

    @property
    def pending_max(self) -> int | None:
        """How many jobs of the tenant may be pending; None for no bound."""
        ...

    def require(self, scope: Scope) -> None:
        """ForbiddenError unless they may."""
        ...

    def admit(self, job: NewJob) -> NewJob:
        """The job, its URIs in the one spelling that is compared.

        ForbiddenError for a queue, a model or a URI that is not theirs to use; ConfigError for one that is nobody's.
        """
        ...


class Access(Protocol):
    """Knows callers."""

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Who has sent these headers (names in lower case). UnauthenticatedError."""
        ...
