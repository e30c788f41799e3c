import pytest

from cases import for_each
from headrace.core.errors import ConfigError, EmptySourceError, NotFoundError
from headrace.formats.read import ReadOptions
from headrace.runs.objects import plan_objects, select_objects, source_covers
from headrace.storage.resolve import Stores

NAMES = ("a.csv", "in/a.csv", "in/b/c.csv", "in/b/d.txt", "in2/e.csv")


@pytest.fixture
def stores() -> Stores:
    made = Stores()
    for name in NAMES:
        made.for_uri("memory://m/").put(f"memory://m/{name}", b"1\n")
    return made


def put(stores: Stores, name: str, data: bytes) -> str:
    stores.for_uri("memory://m/").put(f"memory://m/{name}", data)
    return f"manifest:memory://m/{name}"


def selected(source, stores: Stores) -> list[str]:
    return [i.uri.removeprefix("memory://m/") for i in select_objects(source, stores)]


@for_each(
    ("source", "wanted"),
    [
        ("memory://m/a.csv", ["a.csv"]),
        ("memory://m/in/", ["in/a.csv", "in/b/c.csv", "in/b/d.txt"]),
        ("memory://m/in", ["in/a.csv", "in/b/c.csv", "in/b/d.txt"]),
        ("memory://m/in*/*.csv", ["in/a.csv", "in/b/c.csv", "in2/e.csv"]),
        ("memory://m/in/?/[cd].*", ["in/b/c.csv", "in/b/d.txt"]),
        (["memory://m/in2/", "memory://m/a.csv", "memory://m/in2/e.csv"], ["in2/e.csv", "a.csv"]),
    ],
)
def test_source_selects_each_object_once_in_order(stores, source, wanted):
    assert selected(source, stores) == wanted


@for_each(
    ("manifest", "wanted"),
    [
        (b"\xef\xbb\xbfmemory://m/in2/\r\n# no\n\n  memory://m/a.csv\n", ["in2/e.csv", "a.csv"]),
        (b'  ["memory://m/a.csv"]', ["a.csv"]),
        (b'[{"prefix": "memory://m/in/"}, "b/d.txt", "a.csv"]', ["in/b/d.txt", "in/a.csv"]),
    ],
)
def test_manifest_is_lines_or_sagemakers_array(stores, manifest, wanted):
    assert selected(put(stores, "list", manifest), stores) == wanted


@for_each(
    ("manifest", "error", "why"),
    [
        (b"", EmptySourceError, "names no objects"),
        (b"# none\n", EmptySourceError, "names no objects"),
        (b"[]", EmptySourceError, "names no objects"),
        (b'["a",', ConfigError, "starts like JSON but is invalid"),
        (b'["a", 3]', ConfigError, "entry 1 is neither a string"),
        (b'["a", {"prefix": "b"}]', ConfigError, "entry 1 is neither a string"),
        (b'[{"prefix": 3}]', ConfigError, "entry 0 is neither a string"),
        (b"memory://m/a.csv\n\xff\n", ConfigError, "not UTF-8 text, from byte 17 on"),
        (b"manifest:memory://m/list\n", ConfigError, "names another manifest"),
        (b"memory://m/gone.csv\n", NotFoundError, "gone.csv"),
    ],
)
def test_invalid_manifest_error_names_it(stores, manifest, error, why):
    with pytest.raises(error, match=why):
        select_objects(put(stores, "list", manifest), stores)


@for_each(
    ("source", "error", "why"),
    [
        ("memory://m/gone.csv", NotFoundError, "gone.csv"),
        ("memory://m/gone/", EmptySourceError, "no object has this prefix"),
        ("memory://m/*.gone", EmptySourceError, "no object matches this pattern"),
        ("manifest:memory://m/gone", NotFoundError, "gone"),
        ("nope://m/x", ConfigError, "unknown scheme"),
    ],
)
def test_empty_source_error_names_it(stores, source, error, why):
    with pytest.raises(error, match=why):
        select_objects(source, stores)


def test_local_globs_and_folders_keep_the_names_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d" / "e").mkdir(parents=True)
    for name in ("a.csv", "d/b.csv", "d/e/c.csv"):
        (tmp_path / name).write_bytes(b"1\n")
    stores = Stores()
    assert [i.uri for i in select_objects("*.csv", stores)] == ["./a.csv", "./d/b.csv", "./d/e/c.csv"]
    assert [i.uri for i in select_objects("d/?.csv", stores)] == ["d/b.csv"]
    assert [i.uri for i in select_objects("d", stores)] == ["d/b.csv", "d/e/c.csv"]
    assert [i.uri for i in select_objects(f"{tmp_path}/d/*", stores)] == [
        f"{tmp_path}/d/b.csv",
        f"{tmp_path}/d/e/c.csv",
    ]


def test_plan_with_an_unreadable_object_is_refused(stores):
    put(stores, "in/notes", b"1\n")
    with pytest.raises(
        ConfigError, match=r"memory://m/in/notes: the name does not determine the format.*--format.*exclude"
    ):
        plan_objects("memory://m/in/", stores, ReadOptions())
    assert len(plan_objects("memory://m/in/", stores, ReadOptions(format="csv"))) == 4


@for_each(
    ("source", "uri", "covered"),
    [
        ("s3://b/in/", "s3://b/in/x/y.csv", True),
        ("s3://b/in/", "s3://b/in2/x.csv", False),
        ("s3://b/in", "s3://b/in/x.csv", True),
        ("s3://b/in", "s3://b/in2/x.csv", False),
        ("s3://b/in/x.csv", "s3://b/in/x.csv", True),
        ("s3://b/*.csv", "s3://b/in/x.csv", True),
        ("s3://b/*.csv", "s3://b/in/x.txt", False),
        (["s3://a/", "s3://b/"], "s3://b/x", True),
        ("manifest:s3://b/list", "s3://b/list", False),
    ],
)
def test_source_covers_the_objects_it_selects(source, uri, covered):
    assert source_covers(source, uri) is covered


def test_name_with_wildcards_is_found_if_nothing_matches(stores):
    stores.for_uri("memory://m/").put("memory://m/a[1].csv", b"1\n")
    assert selected("memory://m/a[1].csv", stores) == ["a[1].csv"]


def test_query_of_a_web_address_is_no_wildcard(http_files):
    http_files.objects["/rows.csv"] = b"1\n2\n"
    url = f"{http_files.url}/rows.csv?X-Amz-Signature=abc"
    (found,) = select_objects(url, Stores())
    assert (found.uri, found.size_bytes) == (url, 4)
    assert source_covers(url, url)
