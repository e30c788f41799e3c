"""Every error that headrace raises, in one tree, free of transport.

::

    HeadraceError
    ├── ConfigError                 what was asked for cannot be
    │   ├── MissingExtraError       an optional dependency is not installed
    │   ├── RefusedAddressError     an address that somebody outside named may not be reached
    │   └── OutputExistsError       the destination holds a run already
    ├── DataError                   the bytes that came in
    │   ├── EmptySourceError        nothing to read
    │   ├── TooManyFailuresError    more records failed than the run allows
    │   └── CorruptError            an object or archive member that cannot be read on
    │       └── TruncatedError      it ends early
    ├── StorageError                an object store
    │   ├── NotFoundError           no such object or bucket
    │   ├── AccessDeniedError       credentials missing, wrong or not enough
    │   ├── AlreadyExistsError      put-if-absent found something there
    │   ├── ChangedError            the object is no longer the one that was listed
    │   └── UnavailableError        still failing after every retry
    ├── LimitError                  a bound on size or number, named in the message
    ├── UnsupportedError            a part of a protocol that is not offered here
    ├── AccessError                 who is asking
    │   ├── UnauthenticatedError    no key, or an unknown one
    │   └── ForbiddenError          a known key without the role that this needs
    ├── ModelError                  the model
    │   ├── ModelNotFoundError      no model of that name, or no such version
    │   ├── ModelNotReadyError      it is loading, unloading, or failed to load
    │   ├── InstanceLostError       the process that ran it died
    │   ├── ModelLoadError          it did not load or warm up
    │   ├── ModelInputError         what it was given does not fit its inputs
    │   ├── RefusedRowsError        it refused rows of a request that takes all or nothing
    │   ├── ModelContractError      what it returned does not fit its inputs
    │   └── PredictError            it raised on a batch
    ├── PredictorError              whatever answers requests
    │   ├── DeadlineError           no answer in time
    │   ├── OverloadedError         its queue is full: ask again later
    │   ├── CancelledRequestError   whoever asked has gone, or cancelled it
    │   ├── StoppedError            not started, draining or stopped
    │   ├── SequenceError           one sequence of a model
    │   │   ├── SequenceGoneError       there is none of that id, or none any more: start it anew
    │   │   ├── SequenceLostError       its state died with a process: start it anew
    │   │   ├── SequenceFullError       too many of its requests wait: ask again later
    │   │   └── TooManySequencesError   too many live: ask again later
    │   └── EndpointError           an endpoint elsewhere
    │       ├── EndpointRefusedError      it says that the request is wrong: never retried
    │       └── EndpointUnavailableError  retries spent, or the circuit is open
    ├── RunnerError                 what spreads tasks over machines failed, or lost some of them
    ├── LedgerError                 the record of what a run has done
    │   ├── ResumeRefusedError      model, source or settings differ from the run's
    │   └── CountMismatchError      in is not out + failed
    └── JobError                    a job, or the queue that holds it
        ├── JobNotFoundError        no job of that id that the caller may see
        ├── JobStateError           its state does not allow what was asked
        ├── IdempotencyError        the key was used before, for something else
        ├── QueueFullError          too many wait already: submit again later
        ├── QueueClosedError        the queue is being drained and takes no jobs
        ├── ResultGoneError         the job is completed, and its result is no longer there
        └── JobLedgerUnavailableError  its database does not answer

Every message says what happened, where (object, member, line, byte) and what to do about it; the facts
are attributes too. Which status code an error becomes is the server's business alone. `RowError`, which a
model raises for one row, is in `headrace.core.model`: it is a value on its way to a `Failure`.
"""

from typing import Any, ClassVar, Literal

DeathCause = Literal["crash", "oom", "killed", "timeout", "exit"]
"""How a process of a model died; see `InstanceLostError`."""


class HeadraceError(Exception):
    """The root of the tree: catch this to catch all that headrace raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as it is: to make it anew would hand a finished message to an `__init__` that wants its parts."""
        return _unpickled, (type(self), self.args, self.__dict__)


def _unpickled(
    kind: type[HeadraceError], arguments: tuple[object, ...], facts: dict[str, object]
) -> HeadraceError:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(facts)
    return error


class ConfigError(HeadraceError):
    """What was asked for cannot be: an unknown scheme, a bad option, options that contradict."""


class MissingExtraError(ConfigError):
    """An optional dependency is not installed.

    `extra` is the name to install, as in ``pip install 'headrace[extra]'``.
    """

    def __init__(self, extra: str, needed_for: str) -> None:
        super().__init__(f"{needed_for} needs an extra: pip install 'headrace[{extra}]'")
        self.extra = extra
        self.needed_for = needed_for


class RefusedAddressError(ConfigError):
    """An address or object that somebody outside named is not one that may be reached on their behalf.

    The message goes back to them: it never says what a name was resolved to.
    """


class OutputExistsError(ConfigError):
    """The destination holds a run already; `uri` is where."""

    def __init__(self, uri: str) -> None:
        super().__init__(
            f"{uri} already holds the output of a run: pass --resume to finish that run, "
            "--overwrite to delete it and start anew, or choose another destination"
        )
        self.uri = uri


class DataError(HeadraceError):
    """The bytes that came in are not what they should be."""


class EmptySourceError(DataError):
    """There is nothing to read; `uri` is the source."""

    def __init__(self, uri: str, why: str) -> None:
        super().__init__(f"{uri}: {why}")
        self.uri = uri


class TooManyFailuresError(DataError):
    """More records failed than the run was told to bear; what is finished stays, and can be resumed."""


class CorruptError(DataError):
    """An object or member cannot be read on from `byte` (an offset after decompression).

    Every whole record before that offset has been delivered. `object` and `member` are filled in by the
    reader that knows them (`at`), since a format sees only bytes.
    """

    def __init__(self, why: str, *, byte: int, object: str | None = None, member: str | None = None) -> None:
        place = " in ".join(p for p in (member, object) if p)
        super().__init__(f"{place}: {why}" if place else why)
        self.why = why
        self.byte = byte
        self.object = object
        self.member = member

    def at(self, object: str | None, member: str | None) -> "CorruptError":
        """The same error with its place; what is known already is kept."""
        return type(self)(
            self.why,
            byte=self.byte,
            object=self.object or object,
            member=self.member or member,
        )


class TruncatedError(CorruptError):
    """The bytes end early: the rest was never written or never arrived."""


class StorageError(HeadraceError):
    """An object store refused or failed; `uri` is the object, prefix or bucket."""

    def __init__(self, uri: str, why: str) -> None:
        super().__init__(f"{uri}: {why}")
        self.uri = uri
        self.why = why


class NotFoundError(StorageError):
    """No such object or bucket."""


class AccessDeniedError(StorageError):
    """Credentials are missing, wrong, or do not allow this."""


class AlreadyExistsError(StorageError):
    """Put-if-absent found an object there."""


class ChangedError(StorageError):
    """The object is no longer the one that was listed: its ETag differs."""


class UnavailableError(StorageError):
    """The store still failed after every retry."""


class LimitError(HeadraceError):
    """Something is larger, or more, than is taken here; the message names the bound and how to move it."""


class UnsupportedError(HeadraceError):
    """A part of a protocol that is not offered here; the message says what is instead."""


class AccessError(HeadraceError):
    """Who is asking, and what they may."""


class UnauthenticatedError(AccessError):
    """No API key came with the request, or one that is not known."""


class ForbiddenError(AccessError):
    """The API key is known, but lacks the role that this needs."""


class ModelError(HeadraceError):
    """The model; `model` is its name."""

    def __init__(self, model: str, why: str) -> None:
        super().__init__(f"model {model}: {why}")
        self.model = model
        self.why = why


class ModelNotFoundError(ModelError):
    """There is no model of that name, or no such version of it."""


class ModelNotReadyError(ModelError):
    """The model is known, but cannot answer now: it is loading, unloading, or failed to load."""


class InstanceLostError(ModelError):
    """The process that ran the model died while it had this request, and asking it again was no use or not safe; or no instance is left.

    `cause` says how it died: "crash" (by a signal of its own making), "oom" (killed for want of memory; the message says
    where that is likely only), "killed" (by somebody, or since nobody wanted its call any more), "timeout" (killed after
    `call_timeout_s`) or "exit" (by itself); None where no one death is meant. With "exit" there is an `exit_code`, else
    the name of a `signal`.
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
    """The model did not load, or failed its warm-up."""


class ModelInputError(ModelError):
    """What the model was given does not fit its inputs' names, types or shapes."""


class RefusedRowsError(ModelError):
    """The model refused rows (`RowError`) of a request that can only be answered as a whole; the message names them."""


class ModelContractError(ModelError):
    """What the model returned does not fit what it was given, such as n-1 rows for n."""


class PredictError(ModelError):
    """The model raised on a batch, or headrace itself did, as the message says then; the cause is chained."""


class PredictorError(HeadraceError):
    """Whatever answers requests (an engine, an endpoint) did not answer this one."""


class DeadlineError(PredictorError):
    """No answer before the request's deadline."""


class OverloadedError(PredictorError):
    """The queue is full. Nothing was begun: ask again in `retry_after_s` seconds."""

    def __init__(self, why: str, *, retry_after_s: float) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


class CancelledRequestError(PredictorError):
    """Whoever asked has gone or cancelled; nobody reads the answer."""


class StoppedError(PredictorError):
    """The predictor was not started, is draining, or has stopped."""


class SequenceError(PredictorError):
    """One sequence of a model; `sequence_id` is its id, empty for a request that is a sequence by itself.

    `kind` is the word by which callers elsewhere tell these errors apart.
    """

    kind: ClassVar[str] = "sequence"

    def __init__(self, sequence_id: str, why: str) -> None:
        named = f"sequence {sequence_id!r}" if sequence_id else "a sequence of one request"
        super().__init__(f"{named}: {why}")
        self.sequence_id = sequence_id
        self.why = why


class SequenceGoneError(SequenceError):
    """There is no such sequence, or none any more: the message says how and when it ended. Nothing was begun: start it anew."""

    kind = "sequence_gone"


class SequenceLostError(SequenceError):
    """The process that held the sequence's state died, or a defect spoiled it, and there was no checkpoint of it: start it anew."""

    kind = "sequence_lost"


class SequenceFullError(SequenceError):
    """As many requests of this sequence wait as may. Nothing was begun: ask again in `retry_after_s` seconds."""

    kind = "sequence_full"

    def __init__(self, sequence_id: str, why: str, *, retry_after_s: float) -> None:
        super().__init__(sequence_id, why)
        self.retry_after_s = retry_after_s


class TooManySequencesError(SequenceError):
    """As many sequences live as may. None was begun: ask again in `retry_after_s` seconds."""

    kind = "too_many_sequences"

    def __init__(self, sequence_id: str, why: str, *, retry_after_s: float) -> None:
        super().__init__(sequence_id, why)
        self.retry_after_s = retry_after_s


class EndpointError(PredictorError):
    """An endpoint elsewhere; `url` is its address and `status` what it answered, if it did."""

    def __init__(self, url: str, why: str, *, status: int | None = None) -> None:
        super().__init__(f"{url}: {why}")
        self.url = url
        self.why = why
        self.status = status


class EndpointRefusedError(EndpointError):
    """The endpoint says that the request is wrong (4xx): sending it again would not help.

    `may_be_about_rows`: whether the same question with fewer rows may be answered, as far as is known.
    """

    may_be_about_rows: bool = True


class EndpointUnavailableError(EndpointError):
    """The endpoint did not answer within the retries, or its circuit is open."""


class RunnerError(HeadraceError):
    """What spreads tasks over machines failed as a whole, or said that it was done and was not.

    What is finished stays, and can be resumed.
    """


class LedgerError(HeadraceError):
    """The record of what a run has done says no."""


class ResumeRefusedError(LedgerError):
    """The model, the source or the settings differ from those of the run to be resumed."""


class CountMismatchError(LedgerError):
    """Records in are not records out + failed: something was lost or doubled.

    This is a defect of headrace, never of the data; the output must not be trusted.
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
    """A job, or the queue that holds it."""


class JobNotFoundError(JobError):
    """There is no job of that id, or none that the caller may see; `job_id` is what was asked for."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"there is no job {job_id}: it was never submitted here, was deleted, or is not yours"
        )
        self.job_id = job_id


class JobStateError(JobError):
    """The job's state does not allow what was asked; `state` is the state, by its name."""

    def __init__(self, job_id: str, state: str, why: str) -> None:
        super().__init__(f"job {job_id} is {state}: {why}")
        self.job_id = job_id
        self.state = state


class IdempotencyError(JobError):
    """An idempotency key was used before, with another body; `job_id` is the job that it stands for."""

    def __init__(self, key: str, job_id: str) -> None:
        super().__init__(
            f"the idempotency key {key!r} stands for job {job_id}, which was submitted with another body: "
            "use a new key for a new job"
        )
        self.key = key
        self.job_id = job_id


class QueueFullError(JobError):
    """As many jobs wait as may. Nothing was queued: submit again in `retry_after_s` seconds."""

    def __init__(self, why: str, *, retry_after_s: float) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


class QueueClosedError(JobError):
    """The queue is being drained: what it holds is worked on, and it takes nothing new."""


class JobLedgerUnavailableError(JobError):
    """The ledger's database does not answer. Whether the last write was taken is not known, unless said otherwise."""


class ResultGoneError(JobError):
    """The job is completed, but nothing stands any more where its result was written; `job_id` is the job."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"the result of job {job_id} is no longer there: it was moved or deleted, or its retention is over"
        )
        self.job_id = job_id
