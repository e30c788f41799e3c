"""The examples for this client in docs/clients.md."""


def test_page_examples_run(run_page):
    assert [total.tolist() for total in run_page("KServe")["totals"]] == [[[2, 4, 6, 8]]] * 2
