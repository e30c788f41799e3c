"""Sources of many pages: listed while they are scored, resumed, and checked, with little memory."""

import threading
from collections.abc import Iterator

import pytest

from cases import for_each
from headrace.core.errors import ConfigError, ResumeRefusedError, UnavailableError
from headrace.runs import run as run_module
from headrace.runs import run_plan
from headrace.runs.ledger import Ledger
from headrace.runs.run import Run
from headrace.runs.settings import StreamSettings, SubsetSettings, TransformSettings
from headrace.runs.tasks import InProcessRunner
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores
from runs.support import IN, OUT, Doubler, engine, make_settings, outputs, put, rows

OBJECTS = 23
# A transform, a stream in the order of its source, and a stream by tasks.
MODES = ((TransformSettings, True), (StreamSettings, False), (StreamSettings, True))


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch):
    monkeypatch.setattr(run_module, "PAGE_OBJECTS", 5)
    monkeypatch.setattr(run_plan, "PAGE_OBJECTS", 5)


def source() -> Stores:
    found = Stores()
    put(found, {f"{number:02d}.csv": rows(3, number) for number in range(OBJECTS)})
    return found


class ListedStores(Stores):
    """Stores whose listing of the source calls `before` with the number of each object."""

    def __init__(self, inner: Stores, before) -> None:
        super().__init__()
        self._inner = inner
        self._before = before

    def for_uri(self, uri):
        store = self._inner.for_uri(uri)
        return _ListedStore(store, self._before) if uri == IN else store


class _ListedStore:
    def __init__(self, store, before) -> None:
        self._store = store
        self._before = before

    def __getattr__(self, name):
        return getattr(self._store, name)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        for number, info in enumerate(self._store.list(prefix)):
            self._before(number)
            yield info


def run_over(stores, predictor, *, preset=TransformSettings, by_tasks=True, settings=None, **more) -> Run:
    way = {"runner": InProcessRunner(predictor)} if by_tasks else {"predictor": predictor}
    chosen = settings or make_settings(preset=preset)
    return Run(IN, OUT, stores=stores, settings=chosen, model_identity="m", **way, **more)


def score(stores, **options):
    with engine(Doubler()) as started:
        return run_over(stores, started, **options).execute()


def ledger(stores) -> Ledger:
    return Ledger(stores.for_uri(OUT), OUT)


def expected(**options) -> dict[str, bytes]:
    """Return the outputs of a run that plans all objects at once."""
    stores = source()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "PAGE_OBJECTS", 1000)
        patch.setattr(run_plan, "PAGE_OBJECTS", 1000)
        score(stores, **options)
    return outputs(stores)


@for_each(("preset", "by_tasks"), MODES)
def test_pages_change_no_output(preset, by_tasks):
    stores = source()
    report = score(stores, preset=preset, by_tasks=by_tasks)
    assert (report.objects, report.objects_done, report.records_in) == (OBJECTS, OBJECTS, 3 * OBJECTS)
    if not by_tasks or preset is TransformSettings:  # other parts are those of tasks, which end with pages
        assert outputs(stores) == expected(preset=preset, by_tasks=by_tasks)
    assert [head.objects for head in ledger(stores).plan_heads()] == [5, 5, 5, 5, 3]
    assert ledger(stores).has_complete_plan()


@for_each(("preset", "by_tasks"), MODES)
def test_first_objects_are_scored_before_the_listing_ends(preset, by_tasks):
    scored = threading.Event()

    def before(number: int) -> None:
        if number >= 10:
            assert scored.wait(20), "the listing ended first"

    class Scoring(Doubler):
        def predict(self, x):
            scored.set()
            return super().predict(x)

    with engine(Scoring()) as started:
        run = run_over(ListedStores(source(), before), started, preset=preset, by_tasks=by_tasks)
        assert run.execute().objects_done == OBJECTS
    assert not run.progress.is_listing


@for_each(("preset", "by_tasks"), MODES)
@for_each("failing_at", [3, 5, 12, 22])
def test_run_whose_listing_broke_is_resumed(preset, by_tasks, failing_at):
    stores, mode = source(), {"preset": preset, "by_tasks": by_tasks}

    def before(number: int) -> None:
        if number == failing_at:
            raise UnavailableError(IN, "gone")

    with pytest.raises(UnavailableError):
        score(ListedStores(stores, before), **mode)
    assert not ledger(stores).has_complete_plan()
    report = score(stores, **mode, if_exists="resume")
    assert (report.objects, report.objects_done, report.records_in) == (OBJECTS, OBJECTS, 3 * OBJECTS)
    whole = source()
    score(whole, **mode)
    assert outputs(stores) == outputs(whole)


def test_unreadable_object_of_a_later_page_stops_the_run():
    stores = source()
    put(stores, {"zz.what": b"1"})
    with pytest.raises(ConfigError, match="does not determine the format"):
        score(stores)
    stores.for_uri(IN).delete(IN + "zz.what")
    assert score(stores, if_exists="resume").objects_done == OBJECTS


@for_each(
    ("change", "why"),
    [
        (lambda store: store.put(IN + "17.csv", b"9,9\n"), r"17\.csv has changed"),
        (lambda store: store.delete(IN + "17.csv"), r"17\.csv is missing"),
        (lambda store: store.put(IN + "16b.csv", b"9,9\n"), r"16b\.csv is new\. "),
        (lambda store: store.put(IN + "99.csv", b"9,9\n"), r"99\.csv is new\. "),
    ],
)
def test_changed_source_is_refused_in_any_page(change, why):
    stores = source()
    score(stores)
    place = ledger(stores)
    place.reopen()
    place.store.delete(place.uri("task-00000.json"))
    change(stores.for_uri(IN))
    with pytest.raises(ResumeRefusedError, match=why):
        score(stores, if_exists="resume")


@for_each(("preset", "by_tasks"), MODES)
def test_limit_ends_the_plan(preset, by_tasks):
    stores, settings = source(), make_settings(preset=preset, subset=SubsetSettings(limit=20))
    report = score(stores, settings=settings, by_tasks=by_tasks)
    assert (report.records_in, report.objects) == (20, 7)
    assert [head.objects for head in ledger(stores).plan_heads()] == [5, 2]
    assert ledger(stores).has_complete_plan()


def test_limited_run_that_ends_while_it_is_planned_has_not_begun(monkeypatch):
    stores, settings = source(), make_settings(subset=SubsetSettings(limit=40))
    begin = Ledger.begin

    def fails(self, identity, kind):
        assert self.has_complete_plan()
        assert len(self.plan_heads()) == 3
        raise UnavailableError(OUT, "gone")

    monkeypatch.setattr(Ledger, "begin", fails)
    with pytest.raises(UnavailableError):
        score(stores, settings=settings)
    monkeypatch.setattr(Ledger, "begin", begin)
    report = score(stores, settings=settings)
    assert (report.records_in, report.objects) == (40, 14)
