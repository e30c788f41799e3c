"""Steps and ends come out of a message as they went in."""

import orjson
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.sequence import SequenceEnd
from headrace.engine.step_codec import endings_of, joined, orders_of, parted, told_endings, told_orders
from headrace.engine.stepper import Ending, StepOrder

_NUMBERS = st.integers(0, 2**63)
_TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
_BLOBS = st.lists(st.one_of(st.none(), st.binary(max_size=9)), max_size=5)
_PARAMETERS = st.dictionaries(_TEXT, st.one_of(st.booleans(), st.integers(-9, 9), _TEXT), max_size=2)
_ORDERS = st.lists(
    st.builds(
        StepOrder,
        number=_NUMBERS,
        id=_TEXT,
        steps=_NUMBERS,
        again=st.booleans(),
        end=st.booleans(),
        parameters=_PARAMETERS,
        restore=st.one_of(st.none(), st.binary(max_size=9)),
        save=st.booleans(),
        request=_NUMBERS,
    ),
    max_size=4,
)
_ENDINGS = st.lists(st.builds(Ending, _NUMBERS, _TEXT, _NUMBERS, st.sampled_from(SequenceEnd)), max_size=4)


def _through_json(value):
    return orjson.loads(orjson.dumps(value))


@given(_ORDERS)
def test_orders_come_out_as_they_went_in(orders):
    lengths, arrays = joined([order.restore for order in orders])
    restores = parted(_through_json(lengths), arrays, len(orders))
    assert orders_of(_through_json(told_orders(orders)), restores) == orders


@given(_BLOBS)
def test_checkpoints_come_out_as_they_went_in(blobs):
    """An empty one is not none; where there is none, no array is sent."""
    lengths, arrays = joined(blobs)
    assert parted(_through_json(lengths), arrays, len(blobs)) == blobs
    assert bool(arrays) == any(blob is not None for blob in blobs)


@given(_ENDINGS)
def test_endings_come_out_as_they_went_in(endings):
    found = endings_of(_through_json(told_endings(endings)))
    assert found == endings
    assert all(type(ending.why) is SequenceEnd for ending in found)
