"""Sorting a listing in bounded memory."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.cloud_store import sort_by_uri
from headrace.storage.contract import ObjectInfo

_infos = st.lists(
    st.builds(
        ObjectInfo,
        st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
        st.none() | st.integers(0, 2**50),
        st.text("0123456789abcdef-", max_size=4),
        st.floats(0, 4e9),
    ),
    max_size=60,
    unique_by=lambda info: info.uri,
)


@given(_infos, st.integers(1, 20))
def test_any_order_is_sorted_without_loss_or_duplicates(infos, run_entries_max):
    twice = infos + infos[: len(infos) // 2]
    wanted = sorted(infos, key=lambda info: info.uri)
    assert list(sort_by_uri(twice, run_entries_max=run_entries_max)) == wanted
