"""The examples for these clients in docs/clients.md."""


def test_page_examples_run(run_page):
    found = run_page("Open Inference")
    assert found["response"].outputs[0].name == "sum"
    assert list(found["answer"].outputs[0].contents.int_contents) == [2, 4, 6, 8]
    found["client"]._client_wrapper.httpx_client.close()
