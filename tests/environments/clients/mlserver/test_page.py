"""The examples for this client in docs/clients.md."""


def test_page_examples_run(run_page):
    found = run_page("MLServer")
    assert found["total"].tolist() == [[2, 4, 6, 8]]
    assert found["words"] == ["to", "be", "or", "not"]
    assert found["streamed"] == ["to", "be", "or", "not"]
