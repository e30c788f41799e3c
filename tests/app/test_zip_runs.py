"""Runs over zip archives: streams, transforms, samples, retries and resumption."""

import io
import zipfile

from cases import for_each
from headrace.app.runs import retry_failed, run_sync, transform_sync
from headrace.core.model import Model, RowError
from headrace.runs.output_settings import OutputSettings
from headrace.runs.settings import StreamSettings, SubsetSettings, TransformSettings
from headrace.storage.resolve import Stores

IN, OUT = "memory://b/in/", "memory://b/out/"


class Sum(Model):
    refuses = False

    def predict(self, x):
        if Sum.refuses and 4 in x:
            raise RowError({i: "refused" for i in range(len(x)) if 4 in x[i]})
        return x.sum(axis=1)


def stores_of(**members: bytes) -> Stores:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.csv", content)
    stores = Stores()
    stores.for_uri(IN).put(f"{IN}day.zip", file.getvalue())
    return stores


def parts(stores: Stores) -> bytes:
    store = stores.for_uri(OUT)
    names = [info.uri for info in store.list(OUT)]
    return b"".join(store.get(name) for name in names if name.endswith(".csv"))


KEYED = OutputSettings(join="key", format="csv")


def test_streams_and_transforms_read_members():
    stores = stores_of(a=b"1,2\n3,4\n", b=b"5,6\n")
    expected = b"".join(
        b"memory://b/in/day.zip!%s.csv,%d.0\n" % row for row in ((b"a", 3), (b"a", 7), (b"b", 11))
    )
    run_sync(IN, output=OUT, model=Sum, stores=stores, settings=StreamSettings(output=KEYED))
    assert parts(stores) == expected
    settings = TransformSettings(output=KEYED)
    transform_sync(IN, "memory://b/t/", model=Sum, stores=stores, settings=settings)
    assert stores.for_uri(OUT).get("memory://b/t/day.zip.out") == expected


@for_each(
    ("subset", "expected"),
    [({"limit": 3}, b"3.0\n7.0\n11.0\n"), ({"sample": 0.999999}, b"3.0\n7.0\n11.0\n15.0\n")],
)
def test_parts_of_archives_are_scored(subset, expected):
    stores = stores_of(a=b"1,2\n3,4\n", b=b"5,6\n7,8\n")
    settings = StreamSettings(subset=SubsetSettings(**subset), output=OutputSettings(format="csv"))
    run_sync(IN, output=OUT, model=Sum, stores=stores, settings=settings)
    assert parts(stores) == expected


def test_failed_records_are_retried_from_the_archive():
    stores = stores_of(a=b"1,2\n", b=b"4,4\n5,6\n")
    settings = TransformSettings(output=KEYED)
    Sum.refuses = True
    try:
        report = transform_sync(IN, OUT, model=Sum, stores=stores, settings=settings)
    finally:
        Sum.refuses = False
    assert report.rows_failed == 1
    retry_failed(OUT, model=Sum, stores=stores)
    assert stores.for_uri(OUT).get(f"{OUT}day.zip.out") == (
        b"memory://b/in/day.zip!a.csv,3.0\n"
        b"memory://b/in/day.zip!b.csv,8.0\n"
        b"memory://b/in/day.zip!b.csv,11.0\n"
    )


def test_archive_without_its_end_is_a_broken_object():
    stores = stores_of(a=b"1,2\n")
    data = stores.for_uri(IN).get(f"{IN}day.zip")
    stores.for_uri(IN).put(f"{IN}cut.zip", data[:-1])
    report = run_sync(IN, output=OUT, model=Sum, stores=stores, settings=StreamSettings(output=KEYED))
    assert (report.objects_broken, report.rows_out) == (1, 1)
