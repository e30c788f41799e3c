"""Tracebacks of a model's exceptions: the place in its code, in this process and from others."""

import asyncio
import logging
from pathlib import Path

import orjson
import pytest

from engine import bug_models as models
from engine.support import request, rows, running, submit_and_wait
from headrace.core import Model, RowError
from headrace.core.errors import DeadlineError, ModelContractError, PredictError
from headrace.core.model_traceback import TRACEBACK_CHARS_MAX, TRACEBACKS_MAX, ModelTraceback
from headrace.engine.local_backend import LocalBackend
from headrace.engine.model_methods import RemoteError
from headrace.engine.process.request_codec import error_from_wire, error_to_wire
from headrace.engine.settings import ServeSettings
from headrace.engine.tracebacks import TracebackLog, TracebackMaker, model_files
from headrace.testing import PickyModel


def traceback_of(model: Model, x=None) -> ModelTraceback:
    """Return the traceback of a model's first failed row, from an engine in this process."""
    with running(model) as engine:
        response = submit_and_wait(engine, rows(1) if x is None else x)
    return response.failures[0].traceback


def line_with(text: str) -> int:
    """Return the number of the line of the models' module that ends with this comment."""
    lines = Path(models.__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(text))


def test_traceback_names_file_line_and_source_of_the_model():
    found = traceback_of(models.Bug())
    assert (found.kind, found.message) == ("AttributeError", "'Bug' object has no attribute 'nope'")
    assert (found.file, found.line) == (models.__file__, line_with("# the bug"))
    assert (found.function, found.source) == ("predict", "return self.nope(x)  # the bug")
    assert found.text.startswith('Traceback (most recent call last):\n  File "')
    assert found.text.endswith("AttributeError: 'Bug' object has no attribute 'nope'")
    assert "headrace/engine" not in found.text


def test_failed_row_names_the_place():
    with running(models.Bug()) as engine:
        (failure,) = submit_and_wait(engine, rows(1)).failures
    place = f"(bug_models.py:{line_with('# the bug')} in predict)"
    assert failure.why == f"AttributeError: 'Bug' object has no attribute 'nope' {place}"


def test_place_is_the_last_frame_in_the_models_file():
    """The exception was raised in a module that the model called; the text has both frames."""
    found = traceback_of(models.Helped())
    assert (found.file, found.line) == (models.__file__, line_with("# the call"))
    assert "bug_helper.py" in found.text


def test_decorator_is_not_the_place():
    assert traceback_of(models.Decorated()).line == line_with("# the decorated bug")


def test_cause_is_in_the_text():
    found = traceback_of(models.Chained())
    assert "KeyError: 'weights'" in found.text
    assert "The above exception was the direct cause" in found.text


def test_async_model_has_a_place():
    found = traceback_of(models.AsyncBug())
    assert (found.line, found.function) == (line_with("# the async bug"), "predict")
    assert "asyncio" not in found.text


def test_step_has_a_place():
    with running(models.StepBug()) as engine:
        (failure,) = submit_and_wait(engine, rows(1)).failures
    assert failure.traceback.line == line_with("# the bug of a step")
    assert failure.why.endswith(f"(bug_models.py:{failure.traceback.line} in step)")


def test_ready_made_model_has_the_last_frame():
    assert model_files(PickyModel([1.0])) == frozenset()
    found = traceback_of(PickyModel([1.0]))
    assert (found.kind, found.function) == ("ValueError", "predict")
    assert found.file.endswith("doubles.py")


def test_text_is_bounded():
    class Wordy(Model):
        def predict(self, x):
            raise ValueError("word " * 100_000)

    for model in (Wordy(), models.Deep()):
        found = traceback_of(model)
        assert len(found.text) <= TRACEBACK_CHARS_MAX + len("\n  […]\n")
        assert found.text.startswith("Traceback")


def test_exception_that_cannot_be_printed_has_a_traceback():
    class UnprintableError(Exception):
        def __str__(self):
            raise RuntimeError

    class Unprintable(Model):
        def predict(self, x):
            raise UnprintableError

    found = traceback_of(Unprintable())
    assert (found.kind, found.message) == ("UnprintableError", "")
    assert found.with_place(found.kind).startswith("UnprintableError (test_tracebacks.py:")


@pytest.mark.parametrize(
    "error", [RowError(0, "bad"), ModelContractError("m", "rows"), DeadlineError("late"), RemoteError("x: y")]
)
def test_expected_errors_have_none(error):
    assert TracebackMaker()(error) is None


def test_equal_exceptions_have_one_traceback():
    """Formatting is slow, and a failed row needs its place only."""
    backend = LocalBackend(models.Bug, "m")
    made = []
    for _ in range(2):
        try:
            backend.resolve(backend.predict(rows(1)))
        except AttributeError as error:
            made.append(backend.traceback_of(error))
    assert made[0] is made[1]
    backend.close()


def test_place_follows_the_first_line_of_a_message():
    found = ModelTraceback("ValueError", file="/a/m.py", line=3, function="f")
    assert found.with_place("ValueError: a\nb") == "ValueError: a (m.py:3 in f)\nb"
    assert ModelTraceback("ValueError").with_place("ValueError: a") == "ValueError: a"


def test_traceback_crosses_processes():
    sent = ModelTraceback("ValueError", "no", "/a/m.py", 3, "f", "x", "text")
    back = error_from_wire(orjson.loads(orjson.dumps(error_to_wire(ValueError("no"), sent))))
    assert isinstance(back, RemoteError)
    assert back.traceback == sent
    assert TracebackMaker()(back) is back.traceback


def test_texts_are_utf8():
    """The report is JSON."""

    class Odd(Model):
        def predict(self, x):
            raise ValueError("lone \ud800")

    found = traceback_of(Odd())
    assert found.message == "lone ?"
    assert orjson.dumps(found.to_json())


@pytest.mark.slow
def test_model_in_a_process_has_the_same_traceback(caplog):
    settings = ServeSettings(isolation="process")
    with running(models.Bug, serving=settings) as engine, caplog.at_level(logging.WARNING, "headrace"):
        (failure,) = engine.submit(request(rows(1))).result(30).failures
        for _ in range(3):
            with pytest.raises(PredictError) as caught:
                asyncio.run(engine.infer(request(rows(1))))
    assert failure.traceback == traceback_of(models.Bug())
    assert caught.value.traceback.key == failure.traceback.key
    assert len([r for r in caplog.records if "traceback" in vars(r)]) == 1


@pytest.mark.parametrize("isolation", ["inline", "thread"])
def test_served_exception_is_logged_once_and_hidden_from_clients(isolation, caplog):
    settings = ServeSettings(isolation=isolation)
    with running(models.Bug, serving=settings) as engine, caplog.at_level(logging.WARNING, "headrace"):
        for _ in range(3):
            with pytest.raises(PredictError) as caught:
                asyncio.run(engine.infer(request(rows(1))))
    assert str(caught.value) == "model m: AttributeError: 'Bug' object has no attribute 'nope'"
    (record,) = [r for r in caplog.records if "traceback" in vars(r)]
    assert record.levelno == logging.WARNING
    assert f"line {line_with('# the bug')}, in predict" in record.traceback


def test_exception_of_a_stream_is_logged(caplog):
    async def main(engine):
        with pytest.raises(PredictError, match="LookupError: the stream ends here"):
            async for _ in engine.stream(request(rows(1))):
                pass

    with running(models.StreamBug) as engine, caplog.at_level(logging.WARNING, "headrace"):
        asyncio.run(main(engine))
        asyncio.run(main(engine))
    (record,) = [r for r in caplog.records if "traceback" in vars(r)]
    assert "the stream ends here" in record.traceback


def test_run_logs_no_traceback(caplog):
    """A run reports it in another way."""
    with running(models.Bug()) as engine, caplog.at_level(logging.WARNING, "headrace"):
        submit_and_wait(engine, rows(1))
    assert caplog.records == []


def test_log_is_bounded(caplog):
    log = TracebackLog("m")
    with caplog.at_level(logging.WARNING, "headrace"):
        for line in range(2 * TRACEBACKS_MAX):
            log.add(ModelTraceback("ValueError", file="m.py", line=line))
        log.add(None)
    assert len(caplog.records) == TRACEBACKS_MAX
