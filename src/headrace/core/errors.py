"""Every error that headrace raises, in one tree, without any transport.

::

    HeadraceError
    ├── ConfigError                 a setting or argument is invalid
    │   ├── MissingExtraError       an optional dependency is not installed
    │   ├── RefusedAddressError     a user's address must not be contacted
    │   └── OutputExistsError       the destination already holds a run
    ├── DataError                   the input data is bad
    │   ├── EmptySourceError        the source has nothing to read
    │   ├── TooManyFailuresError    more records failed than the run allows
    │   └── CorruptError            the rest of an object or member is unreadable
    │       └── TruncatedError      an object or member ends early
    ├── StorageError                an object store refused or failed
    │   ├── NotFoundError           the object or bucket does not exist
    │   ├── AccessDeniedError       credentials are missing, wrong or insufficient
    │   ├── AlreadyExistsError      put-if-absent found an object
    │   ├── ChangedError            the object is not the listed one any more
    │   └── UnavailableError        the store failed until the last retry
    ├── LimitError                  a size or number exceeds a limit
    ├── UnsupportedError            a part of a protocol is not implemented
    ├── AccessError                 a client lacks permission
    │   ├── UnauthenticatedError    the API key is missing or unknown
    │   └── ForbiddenError          the API key lacks a role
    ├── ModelError                  a model failed
    │   ├── ModelNotFoundError      no model has this name or version
    │   ├── ModelNotReadyError      the model is loading, unloading or failed to load
    │   ├── InstanceLostError       the model process died
    │   ├── ModelLoadError          the model did not load or warm up
    │   ├── ModelInputError         the request does not fit the model's inputs
    │   ├── RefusedRowsError        the model refused rows of an all-or-nothing request
    │   ├── ModelContractError      the model's output does not fit its input
    │   └── PredictError            the model raised on a batch
    │       └── BrokenModelError    the model raised the same exception for all rows
    ├── PredictorError              a predictor did not answer a request
    │   ├── DeadlineError           the deadline passed without a response
    │   ├── OverloadedError         the queue is full, or a limit of the key is reached: retry later
    │   ├── CancelledRequestError   the client disconnected or cancelled
    │   ├── StoppedError            the predictor is not running
    │   ├── SequenceError           a sequence of a model failed
    │   │   ├── SequenceGoneError       no sequence has this id any more: start a new one
    │   │   ├── SequenceLostError       the state was lost: start a new one
    │   │   ├── SequenceFullError       too many requests of the sequence wait: retry later
    │   │   └── TooManySequencesError   too many sequences are live: retry later
    │   └── EndpointError           a remote endpoint failed
    │       ├── EndpointRefusedError      the endpoint rejects the request: never retried
    │       └── EndpointUnavailableError  retries are spent, or the circuit is open
    ├── RunnerError                 a runner failed, or lost tasks
    ├── ActuatorError               the workers of a pool could not be counted, started or ended
    ├── LedgerError                 the ledger of a run refuses an operation
    │   ├── ResumeRefusedError      model, source or settings differ from the run's
    │   └── CountMismatchError      in is not out + failed
    └── JobError                    a job or its queue refuses an operation
        ├── JobNotFoundError        no job has this id, or the client may not see it
        ├── EndpointNotFoundError   no endpoint of jobs has this name or version, or the client may not see it
        ├── ResourceNotFoundError   no delivery, receiver, worker or pool has this name
        ├── JobStateError           the job's state does not allow the operation
        ├── OutputTakenError        another job owns the name of the output
        ├── IdempotencyError        the key belongs to another submission
        ├── QueueFullError          too many jobs wait: retry later
        ├── QueueClosedError        the queue is draining and takes no jobs
        ├── QueueInUseError         the queue has unfinished jobs and cannot be removed
        ├── UncontrolledPoolError   no controller decides about the pool of workers
        ├── ResultGoneError         the result of a completed job was moved or deleted
        └── JobLedgerUnavailableError  the job database does not respond

Every message says what happened, where (object, member, line, byte) and what to do. The same facts
are attributes. Only the server maps errors to status codes. `RowError`, which a model raises for
single rows, is in `headrace.core.model`: it becomes a `Failure`, not an error.
"""

from typing import Any, ClassVar, Final, Literal

from headrace.core.model_traceback import ModelTraceback

WINDOWS_REFUSAL: Final = "headrace runs on Linux, and on macOS for development: on Windows, run it in WSL"
"""The message of the ImportError, and of the command line, on Windows."""
LEDGER_UNAVAILABLE: Final = (
    "the job ledger does not respond: retry later; a submission with an idempotency key is queued once, "
    "however often it is sent"
)
"""The message for clients in place of that of a `JobLedgerUnavailableError`, which is in the log."""

DeathCause = Literal["crash", "oom", "killed", "timeout", "exit", "unrecoverable"]
"""How a model process died; see `InstanceLostError`."""


class HeadraceError(Exception):
    """The base class of every error that headrace raises on purpose.

    `detail` is the end of the message after a colon: the text of a store or of its client, which may
    name addresses. It is for the operator, and clients of a server do not receive it.
    """

    detail: str = ""
    public_text: ClassVar[str] = ""
    """The message for clients in place of that of the error; empty for none."""

    @property
    def public_message(self) -> str:
        """The message for clients of a server: without the addresses of its database and its stores."""
        text = self.public_text or str(self)
        return text.removesuffix(f": {self.detail}") if self.detail else text

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what pickle needs: the class, the message and the attributes.

        Calling `__init__` again would pass a finished message where it expects separate arguments.
        """
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(
    kind: type[HeadraceError], arguments: tuple[object, ...], facts: dict[str, object]
) -> HeadraceError:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(facts)
    return error


class ConfigError(HeadraceError):
    """An invalid setting or argument: an unknown scheme, a bad option, contradicting options."""

    def __init__(self, why: str, detail: str = "") -> None:
        super().__init__(f"{why}: {detail}" if detail else why)
        self.detail = detail


class MissingExtraError(ConfigError):
    """An optional dependency is not installed.

    `extra` is the name to install, as in ``pip install 'headrace[extra]'``. The `hint` follows in
    parentheses.
    """

    def __init__(self, extra: str, needed_for: str, *, hint: str = "") -> None:
        ending = f" ({hint})" if hint else ""
        super().__init__(f"{needed_for} needs an extra: pip install 'headrace[{extra}]'{ending}")
        self.extra = extra
        self.needed_for = needed_for


class RefusedAddressError(ConfigError):
    """An address or object that an outside user named must not be contacted on their behalf.

    The message goes back to that user: it never says what a name resolves to.
    """


class OutputExistsError(ConfigError):
    """The destination already holds a run. `uri` is the destination."""

    def __init__(
        self,
        uri: str,
        advice: str = "pass --resume to finish that run, --overwrite to delete it and start anew, or choose "
        "another destination",
    ) -> None:
        super().__init__(f"{uri} already holds the output of a run: {advice}")
        self.uri = uri


class DataError(HeadraceError):
    """The input data is bad."""


class EmptySourceError(DataError):
    """The source has nothing to read. `uri` is the source."""

    def __init__(self, uri: str, why: str) -> None:
        super().__init__(f"{uri}: {why}")
        self.uri = uri


class TooManyFailuresError(DataError):
    """More records failed than the run allows. Finished output stays, and the run can be resumed."""


class CorruptError(DataError):
    """The rest of an object or member cannot be read from `byte`, an offset after decompression.

    Every whole record before that offset has been delivered. A format sees only bytes: the reader
    fills in `object` and `member` by `with_location`.
    """

    def __init__(self, why: str, *, byte: int, object: str | None = None, member: str | None = None) -> None:
        place = " in ".join(p for p in (member, object) if p)
        super().__init__(f"{place}: {why}" if place else why)
        self.why = why
        self.byte = byte
        self.object = object
        self.member = member

    def with_location(self, object: str | None, member: str | None) -> "CorruptError":
        """Return the same error with its object and member. Known values stay."""
        return type(self)(
            self.why,
            byte=self.byte,
            object=self.object or object,
            member=self.member or member,
        )


class TruncatedError(CorruptError):
    """The bytes end early: the rest was never written or never arrived."""


class StorageError(HeadraceError):
    """An object store refused or failed. `uri` is the object, prefix or bucket."""

    def __init__(self, uri: str, why: str, detail: str = "") -> None:
        super().__init__(f"{uri}: {why}: {detail}" if detail else f"{uri}: {why}")
        self.uri = uri
        self.why = why
        # The client chose a web address itself, and the messages of the guarded client suit it.
        self.detail = "" if uri.startswith(("http://", "https://")) else detail


class NotFoundError(StorageError):
    """The object or bucket does not exist."""


class AccessDeniedError(StorageError):
    """Credentials are missing, wrong, or do not allow the operation."""


class AlreadyExistsError(StorageError):
    """Put-if-absent found an object."""


class ChangedError(StorageError):
    """The object is not the listed one any more: its ETag differs."""


class UnavailableError(StorageError):
    """The store failed until the last retry."""


class LimitError(HeadraceError):
    """A size or number exceeds a limit.

    The message names the limit and the setting that changes it.
    """


class UnsupportedError(HeadraceError):
    """A part of a protocol is not implemented. The message names the alternative."""


class AccessError(HeadraceError):
    """A client lacks permission."""


class UnauthenticatedError(AccessError):
    """The request has no API key, or an unknown one."""


class ForbiddenError(AccessError):
    """The API key is known but lacks the required role."""


class ModelError(HeadraceError):
    """A model failed. `model` is its name."""

    def __init__(self, model: str, why: str) -> None:
        super().__init__(f"model {model}: {why}")
        self.model = model
        self.why = why


class ModelNotFoundError(ModelError):
    """No model has this name, or the model has no such version."""


class ModelNotReadyError(ModelError):
    """The model is known but cannot respond: it is loading, unloading, or failed to load."""


class InstanceLostError(ModelError):
    """The model process died during this request, or no instance is left.

    A retry was impossible or unsafe. `cause` says how the process died; None without one particular
    death:

    - "crash": a signal that the process raised itself.
    - "oom": killed for lack of memory. The message says if that is only likely.
    - "killed": killed by somebody, or by headrace because no client wanted its call any more.
    - "timeout": killed after `call_timeout_s`.
    - "exit": the process exited by itself.
    - "unrecoverable": the model raised an error after which its process cannot call it any more
      (`Model.is_unrecoverable`), such as a device-side assertion of CUDA. The message has its text.

    `exit_code` is set for "exit"; for the other causes, `signal` is the name of the signal, if one
    ended the process.
    """

    def __init__(
        self,
        model: str,
        why: str,
        *,
        cause: DeathCause | None = None,
        exit_code: int | None = None,
        signal: str | None = None,
    ) -> None:
        super().__init__(model, why)
        self.cause: DeathCause | None = cause
        self.exit_code = exit_code
        self.signal = signal


class ModelLoadError(ModelError):
    """The model did not load, or its warm-up failed."""


class ModelInputError(ModelError):
    """The request does not fit the names, types or shapes of the model's inputs."""


class RefusedRowsError(ModelError):
    """The model refused rows (`RowError`) of an all-or-nothing request. The message names them."""


class ModelContractError(ModelError):
    """The model's output does not fit its input, such as n-1 rows for n."""


class PredictError(ModelError):
    """The model, or headrace itself, raised on a batch.

    The message says which; the cause is chained. `traceback` is that of the model's code, if an
    unexpected exception of the model is the cause. It is for the owner of the model: clients of a
    server receive the message alone.
    """

    traceback: ModelTraceback | None = None

    def __init__(self, model: str, why: str, *, traceback: ModelTraceback | None = None) -> None:
        super().__init__(model, why)
        self.traceback = traceback


class BrokenModelError(PredictError):
    """The model raised the same unexpected exception for all rows that it was called with.

    Its code is more likely wrong than every row. `traceback` is that of the first exception.
    """


class PredictorError(HeadraceError):
    """A predictor (an engine, an endpoint) did not answer a request."""


class DeadlineError(PredictorError):
    """The deadline of the request passed without a response."""


class OverloadedError(PredictorError):
    """The queue is full, or the API key has reached a limit, and nothing was started.

    Retry after `retry_after_s` seconds.
    """

    def __init__(self, why: str, *, retry_after_s: float) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


class CancelledRequestError(PredictorError):
    """The client disconnected or cancelled the request."""


class StoppedError(PredictorError):
    """The predictor was not started, is draining, or has stopped."""


class SequenceError(PredictorError):
    """A sequence of a model failed. `sequence_id` is its id, or empty for an anonymous sequence.

    `kind` is the error's name in protocols, for remote clients.
    """

    kind: ClassVar[str] = "sequence"

    def __init__(self, sequence_id: str, why: str) -> None:
        named = f"sequence {sequence_id!r}" if sequence_id else "a sequence without an id"
        super().__init__(f"{named}: {why}")
        self.sequence_id = sequence_id
        self.why = why


class SequenceGoneError(SequenceError):
    """No sequence has this id, or it has ended. Start a new one.

    The request was not started. The message says how and when the sequence ended.
    """

    kind = "sequence_gone"


class SequenceLostError(SequenceError):
    """The state of the sequence was lost without a checkpoint. Start a new one.

    The process that held the state died, or a defect corrupted the state.
    """

    kind = "sequence_lost"


class SequenceFullError(SequenceError):
    """Too many requests of this sequence wait, and this one was not started.

    Retry after `retry_after_s` seconds.
    """

    kind = "sequence_full"

    def __init__(self, sequence_id: str, why: str, *, retry_after_s: float) -> None:
        super().__init__(sequence_id, why)
        self.retry_after_s = retry_after_s


class TooManySequencesError(SequenceError):
    """Too many sequences are live, and no new one was started.

    Retry after `retry_after_s` seconds.
    """

    kind = "too_many_sequences"

    def __init__(self, sequence_id: str, why: str, *, retry_after_s: float) -> None:
        super().__init__(sequence_id, why)
        self.retry_after_s = retry_after_s


class EndpointError(PredictorError):
    """A remote endpoint failed. `url` is its address, `status` its response status, if any."""

    def __init__(self, url: str, why: str, *, status: int | None = None) -> None:
        super().__init__(f"{url}: {why}")
        self.url = url
        self.why = why
        self.status = status


class EndpointRefusedError(EndpointError):
    """The endpoint rejects the request (4xx). A retry would not help.

    `may_be_about_rows` is False if it is known that fewer rows would be rejected too.
    """

    may_be_about_rows: bool = True


class EndpointUnavailableError(EndpointError):
    """The endpoint did not respond within the retries, or its circuit is open."""


class RunnerError(HeadraceError):
    """A runner failed as a whole, or reported success for tasks without a result.

    Finished output stays, and the run can be resumed.
    """


class ActuatorError(HeadraceError):
    """The workers of a pool could not be counted, started or ended."""


class LedgerError(HeadraceError):
    """The ledger of a run refuses an operation."""


class ResumeRefusedError(LedgerError):
    """The model, the source or the settings differ from those of the run to resume."""


class CountMismatchError(LedgerError):
    """Records in are not records out + failed: some were lost or duplicated.

    This is a defect of headrace, never of the data. Do not trust the output.
    """

    def __init__(self, where: str, *, records_in: int, out: int, failed: int) -> None:
        super().__init__(
            f"{where}: {records_in} records in, but {out} out + {failed} failed = {out + failed}. "
            "Do not trust this output; please report it"
        )
        self.records_in = records_in
        self.out = out
        self.failed = failed


class JobError(HeadraceError):
    """A job or its queue refuses an operation."""


class JobNotFoundError(JobError):
    """No job has this id, or the client may not see it. `job_id` is the requested id."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"no job {job_id}: it was never submitted here, was deleted, or belongs to another client"
        )
        self.job_id = job_id


class ResourceNotFoundError(JobError):
    """No resource of a kind, such as a delivery or a worker, has this name, or the client may not see it."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"no {kind} {name!r:.80}: check the name; its entry may have been removed")


class EndpointNotFoundError(JobError):
    """No endpoint of jobs has this name or version, or the client may not see it."""

    def __init__(self, name: str, version: int | None = None) -> None:
        which = f"version {version} of endpoint" if version is not None else "endpoint"
        super().__init__(f"no {which} {name!r:.80}, or the API key may not see it: see GET /v1/endpoints")


class JobStateError(JobError):
    """The state of the job does not allow the operation. `state` is the name of the state."""

    def __init__(self, job_id: str, state: str, why: str) -> None:
        super().__init__(f"job {job_id} is {state}: {why}")
        self.job_id = job_id
        self.state = state


class OutputTakenError(JobError):
    """Another job owns the name under which the result is to be published.

    `job_id` is that job, or "" if it belongs to another tenant.
    """

    def __init__(self, key: str, job_id: str, why: str) -> None:
        super().__init__(f"output {key!r}: {why}")
        self.key = key
        self.job_id = job_id


class IdempotencyError(JobError):
    """The idempotency key was used for another submission. `job_id` is the job of that submission."""

    def __init__(self, key: str, job_id: str) -> None:
        super().__init__(
            f"the idempotency key {key!r} was used for job {job_id} with another body: "
            "use a new key for a new job"
        )
        self.key = key
        self.job_id = job_id


class QueueFullError(JobError):
    """The limit of waiting jobs is reached, and nothing was queued.

    Retry after `retry_after_s` seconds.
    """

    def __init__(self, why: str, *, retry_after_s: float) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


class QueueClosedError(JobError):
    """The queue is draining: it finishes its jobs and takes no new ones."""


class QueueInUseError(JobError):
    """The queue cannot be removed, because it has unfinished jobs."""


class UncontrolledPoolError(JobError):
    """No controller decides about the pool of workers, so that its last number may be outdated."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"pool {name!r:.80} has {why}")


class JobLedgerUnavailableError(JobError):
    """The job database does not respond.

    Unless the message says otherwise, it is unknown if the last write was applied.
    """

    public_text = LEDGER_UNAVAILABLE


class ResultGoneError(JobError):
    """The result of a completed job, or the payload of a job, was moved or deleted. `job_id` is the job."""

    def __init__(self, job_id: str, what: str = "result") -> None:
        super().__init__(
            f"the {what} of job {job_id} is gone: it was moved or deleted, or its retention has ended"
        )
        self.job_id = job_id
