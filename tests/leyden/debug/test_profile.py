"""Lightning's profilers in a run: the table in a file that is named, and a trace for a viewer."""

import json

import pytest


@pytest.mark.parametrize(
    ("profiler", "word"), [("simple", "run_training_batch"), ("advanced", "cumtime"), ("pytorch", "aten::")]
)
def test_the_table_is_in_a_file_that_the_log_names(train, profiler, word):
    run = train(f"profiler={profiler}", "trainer.max_epochs=1", "data.num_samples=400")
    table, log = (run / "fit-profile.txt").read_text(), (run / "train.log").read_text()
    assert word in table and "profile: fit-profile.txt" in log
    if profiler == "pytorch":
        traces = [json.loads(path.read_text()) for path in run.glob("fit-profile*.pt.trace.json")]
        events = [event for trace in traces for event in trace["traceEvents"]]
        assert any("training_step" in event["name"] for event in events)
