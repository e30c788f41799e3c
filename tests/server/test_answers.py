from headrace.server.answers import Answers


def test_answers_are_counted_by_action_and_status():
    answers = Answers("rest")
    for status in (200, 200, 404):
        answers.add("infer", status)
    answers.add("infer_stream", 200)
    answers.broke("infer_stream", 500)
    assert answers.door == "rest"
    assert answers.sent() == {("infer", 200): 2, ("infer", 404): 1, ("infer_stream", 200): 1}
    assert answers.broken() == {("infer_stream", 500): 1}


def test_a_snapshot_stays_as_it_was():
    answers = Answers("grpc")
    answers.add("ModelInfer", "OK")
    before = answers.sent()
    answers.add("ModelInfer", "OK")
    assert before == {("ModelInfer", "OK"): 1}
