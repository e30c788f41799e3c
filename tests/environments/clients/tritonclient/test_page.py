"""The examples for this client in docs/clients.md."""


def test_page_examples_run(run_page):
    found = run_page("tritonclient")
    assert found["total"].tolist() == [[11, 22, 33, 44]]
    assert {entry["name"] for entry in found["statistics"]} == {"sum"}
    assert found["words"] == ["to", "be", "or", "not"]
    assert found["more_words"] == ["or", "not", "to", "be"]
