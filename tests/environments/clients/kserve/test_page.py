"""What docs/clients.md says of this client."""


def test_the_page_s_examples_run(run_page):
    assert [total.tolist() for total in run_page("KServe")["totals"]] == [[[2, 4, 6, 8]]] * 2
