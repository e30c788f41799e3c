"""Where sequences begin: at the place with the fewest, of those that are best off."""

from headrace.batching.places import Places


def test_the_fewest_first():
    places = Places(3)
    assert len(places) == 3
    assert [places.enter() for _ in range(4)] == [0, 1, 2, 0]
    places.leave(2)
    assert places.enter() == 2
    assert [places.living(place) for place in range(3)] == [2, 1, 1]


def test_a_place_that_is_down_is_the_second_best_and_a_vacated_one_the_last():
    places = Places(3)
    places.up(0, up=False)
    places.vacate(1)
    assert [places.enter() for _ in range(3)] == [2, 2, 2]
    places.up(2, up=False)
    assert [places.enter() for _ in range(4)] == [0, 0, 0, 0]
    places.vacate(0)
    places.vacate(2)
    assert places.enter() == 1
    assert [places.living(place) for place in range(3)] == [4, 1, 3]


def test_only_a_place_that_is_up_is_vacant_no_more():
    places = Places(2)
    places.vacate(0)
    places.up(0, up=False)
    places.up(1, up=False)
    assert places.enter() == 1
    places.up(0, up=True)
    assert places.enter() == 0
