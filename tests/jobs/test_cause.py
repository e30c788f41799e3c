"""Causes of failed attempts: every headrace error has a cause, and foreign errors are defects."""

import inspect

import pytest

from headrace.core import errors as e
from headrace.core.model import RowError
from headrace.jobs.state import _CAUSES, Cause, cause_of

TREE = [cls for _, cls in inspect.getmembers(e, inspect.isclass) if issubclass(cls, e.HeadraceError)]


def _bare(cls: type[BaseException]) -> BaseException:
    """Return an error of the class without calling its `__init__`."""
    return cls.__new__(cls)


def test_every_error_class_has_a_cause():
    """A new error class fails this test until `_CAUSES` lists it."""
    assert [cls.__name__ for cls in TREE if cls not in _CAUSES] == []
    assert set(_CAUSES) - set(TREE) == {MemoryError}


@pytest.mark.parametrize("cls", TREE, ids=lambda cls: cls.__name__)
def test_every_error_has_the_cause_of_its_class(cls):
    assert cause_of(_bare(cls)) is _CAUSES[cls]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (e.NotFoundError("s3://b/k", "not there"), Cause.INPUT),
        (e.AccessDeniedError("s3://b/k", "no"), Cause.INPUT),
        (e.ModelInputError("m", "shape"), Cause.INPUT),
        (e.ChangedError("s3://b/k", "changed"), Cause.STORAGE),
        (e.UnavailableError("s3://b/k", "away"), Cause.UNAVAILABLE),
        (e.OverloadedError("full", retry_after_s=1), Cause.OVERLOADED),
        (e.InstanceLostError("m", "killed"), Cause.CRASH),
        (e.InstanceLostError("m", "no memory", cause="oom"), Cause.OOM),
        (e.InstanceLostError("m", "too long", cause="timeout"), Cause.TIMEOUT),
        (e.PredictError("m", "raised"), Cause.MODEL),
        (e.DeadlineError("late"), Cause.TIMEOUT),
        (e.StoppedError("draining"), Cause.DRAINED),
        (MemoryError(), Cause.OOM),
        (ValueError("ours"), Cause.DEFECT),
        (RowError(1, "alone"), Cause.DEFECT),
        (KeyboardInterrupt(), Cause.DEFECT),
    ],
    ids=lambda value: value.value if isinstance(value, Cause) else type(value).__name__,
)
def test_error_has_its_cause(error, cause):
    assert cause_of(error) is cause


def test_derived_error_has_the_cause_of_its_base():
    class PlugInError(e.TruncatedError):
        pass

    assert cause_of(PlugInError("short", byte=1)) is Cause.INPUT


def _raised_from(error: BaseException, *causes: BaseException) -> BaseException:
    link = error
    for cause in causes:
        link.__cause__ = cause
        link = cause
    return error


def test_model_error_chained_to_memory_error_is_oom():
    error = _raised_from(e.PredictError("m", "raised"), RuntimeError("wrapped"), MemoryError())
    assert cause_of(error) is Cause.OOM
    assert cause_of(_raised_from(e.PredictError("m", "raised"), ValueError())) is Cause.MODEL
    assert cause_of(_raised_from(e.NotFoundError("s3://b/k", "x"), MemoryError())) is Cause.INPUT


def test_circular_chain_ends():
    first, second = ValueError(), ValueError()
    first.__cause__, second.__cause__ = second, first
    assert cause_of(_raised_from(e.PredictError("m", "raised"), first)) is Cause.MODEL
