"""The models that tests are built on do what they say."""

import threading

import numpy as np
import pytest

from headrace.core import RowError
from headrace.testing import EchoModel, HeldModel, PickyModel
from headrace.testing import models as testing_models

X = np.array([[1.0], [2.0], [3.0]], np.float32)


def test_echo_returns_what_it_is_given():
    assert EchoModel().predict(X) is X


def test_picky_refuses_its_guilty_rows():
    model = PickyModel({2.0, 3.0})
    with pytest.raises(ValueError, match=r"value 2\.0 is not taken; value 3\.0 is not taken"):
        model.predict(X)
    assert model.predict(X[:1]).tolist() == [[1.0]]
    assert model.batch_rows == [3, 1]


def test_picky_names_its_guilty_rows_when_told_to():
    with pytest.raises(RowError) as caught:
        PickyModel({3.0}, names_rows=True).predict(X)
    assert list(caught.value.rows) == [2]


def test_held_answers_when_released():
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


def test_held_may_be_released_beforehand():
    model = HeldModel()
    model.release()
    assert model.predict(X) is X


def test_held_does_not_hang_for_ever(monkeypatch):
    monkeypatch.setattr(testing_models, "_WAIT_S", 0.01)
    model = HeldModel()
    with pytest.raises(TimeoutError, match="nobody released"):
        model.predict(X)
    with pytest.raises(TimeoutError, match="1 calls have entered, not 2"):
        model.wait_for_calls(2)
