"""The models for tests."""

import threading

import numpy as np
import pytest

from headrace.core import RowError
from headrace.testing import EchoModel, HeldModel, PickyModel
from headrace.testing import doubles as testing_models

X = np.array([[1.0], [2.0], [3.0]], np.float32)


def test_echo_returns_its_input():
    assert EchoModel().predict(X) is X


def test_picky_refuses_guilty_rows():
    model = PickyModel({2.0, 3.0})
    with pytest.raises(ValueError, match=r"value 2\.0 is refused; value 3\.0 is refused"):
        model.predict(X)
    assert model.predict(X[:1]).tolist() == [[1.0]]
    assert model.batch_rows == [3, 1]


def test_picky_names_guilty_rows_on_request():
    with pytest.raises(RowError) as caught:
        PickyModel({3.0}, names_rows=True).predict(X)
    assert list(caught.value.rows) == [2]


def test_held_returns_after_release():
    model, answers = HeldModel(), []
    calls = [threading.Thread(target=lambda: answers.append(model.predict(X)), daemon=True) for _ in range(2)]
    for call in calls:
        call.start()
    model.wait_for_calls(2)
    assert (model.calls, answers) == (2, [])
    model.release(2)
    for call in calls:
        call.join(30)
    assert len(answers) == 2


def test_held_may_be_released_before_the_call():
    model = HeldModel()
    model.release()
    assert model.predict(X) is X


def test_held_call_times_out(monkeypatch):
    monkeypatch.setattr(testing_models, "_WAIT_S", 0.01)
    model = HeldModel()
    with pytest.raises(TimeoutError, match="not released"):
        model.predict(X)
    with pytest.raises(TimeoutError, match="1 calls have begun, expected 2"):
        model.wait_for_calls(2)
