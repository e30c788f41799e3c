"""The outcome of an attempt that raised. Pure: an error in, an outcome for the ledger out."""

from headrace.core.errors import HeadraceError
from headrace.jobs.attempt import Attempt, StopReason
from headrace.jobs.cause import Cause, cause_of
from headrace.jobs.job import Cancelled, Expired, Failed, JobFailure, Outcome, Released
from headrace.jobs.retry import GiveUp, decide

MESSAGE_CHARS_MAX = 2000
_CRASHES = frozenset({Cause.CRASH, Cause.OOM})


def outcome_of_error(
    attempt: Attempt, error: BaseException, *, share: float, hide: str = ""
) -> Outcome | None:
    """Return the outcome of an attempt that raised; None if its lease is lost.

    Args:
        attempt: The attempt.
        error: The raised error.
        share: The position of a retry's delay in the jitter's range, 0 to 1.
        hide: A URI prefix to hide in messages: the server's own store.
    """
    match attempt.stopped:
        case StopReason.LOST:
            return None
        case StopReason.CANCELLED:
            return Cancelled()
        case StopReason.EXPIRED:
            return Expired()
        case StopReason.DRAIN:
            return Released(attempt.cursor)
        case StopReason.TIME_LIMIT:
            limit_s = attempt.job.spec.time_limit_s
            why = f"the attempt took longer than its time limit of {limit_s:g} s, and was stopped"
            return _failed(attempt, JobFailure(Cause.TIMEOUT, why, "DeadlineError"), share, None)
        case None:
            pass
    cause = cause_of(error)
    if cause is Cause.CANCELLED:
        # A request was abandoned, but the job was not cancelled.
        cause = Cause.DEFECT
    failure = JobFailure(cause, _message(error, hide), type(error).__name__)
    return _failed(attempt, failure, share, getattr(error, "retry_after_s", None))


def _failed(attempt: Attempt, failure: JobFailure, share: float, retry_after_s: float | None) -> Failed:
    job = attempt.job
    crashed = failure.cause in _CRASHES
    decision = decide(failure.cause, job.attempt, job.spec.attempts_max, share, retry_after_s)
    if isinstance(decision, GiveUp):
        return Failed(failure, None, crashed)
    return Failed(failure, decision.delay_ms, crashed, decision.counts)


def _message(error: BaseException, hide: str) -> str:
    """Return a message for the client: headrace's own errors verbatim, others as an internal error."""
    if not isinstance(error, HeadraceError):
        return "headrace itself failed; see its log for this job's id"
    text = str(error)
    if hide:
        text = text.replace(hide, "store:")
    return text if len(text) <= MESSAGE_CHARS_MAX else text[: MESSAGE_CHARS_MAX - 1] + "…"
