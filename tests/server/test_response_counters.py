from headrace.server.observation import ResponseCounters


def test_responses_are_counted_by_action_and_status():
    counters = ResponseCounters("rest")
    for status in (200, 200, 404):
        counters.add("infer", status)
    counters.add("infer_stream", 200)
    counters.add_broken("infer_stream", 500)
    assert counters.protocol == "rest"
    assert counters.responses() == {("infer", 200): 2, ("infer", 404): 1, ("infer_stream", 200): 1}
    assert counters.broken_streams() == {("infer_stream", 500): 1}


def test_snapshot_does_not_change():
    counters = ResponseCounters("grpc")
    counters.add("ModelInfer", "OK")
    before = counters.responses()
    counters.add("ModelInfer", "OK")
    assert before == {("ModelInfer", "OK"): 1}
