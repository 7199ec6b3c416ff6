import json
import re

import pytest


def columns(log, name):
    """The numbers of a column of the table, in order."""
    return [float(value) for value in re.findall(name, log, re.M)]


def test_simple(train):
    log = (train("profiler=simple", "trainer.max_epochs=1") / "train.log").read_text()
    assert "run_training_batch" in log and "train_dataloader_next" in log
    times = columns(log.split("TEST")[0], r"^\|  \S.*?\|\s*[\d.e-]+\s*\|\s*\d+\s*\|\s*([\d.e-]+)")
    assert len(times) > 10 and times == sorted(times, reverse=True)


def test_advanced(train):
    run = train("profiler=advanced", "trainer.max_epochs=1")
    log = (run / "train.log").read_text()
    assert "Ordered by: internal time" in log
    times = columns(log.split("Ordered by")[1], r"^ +\d[\d/]* +(\d+\.\d+) +\d+\.\d+ +\d+\.\d+ +\d+\.\d+ \S")
    assert len(times) > 10 and times == sorted(times, reverse=True)


@pytest.mark.parametrize("keys", [["data.num_samples=400"], ["debug=fast"]])
def test_pytorch_leaves_a_trace_that_a_viewer_loads(train, keys):
    run = train("profiler=pytorch", "trainer.max_epochs=1", *keys)
    log = (run / "train.log").read_text()
    assert "aten::linear" in log or "aten::addmm" in log
    trace = json.loads((run / "train.pt.trace.json").read_text())
    events = trace["traceEvents"]
    assert all("ph" in event and "name" in event for event in events)
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0 and event["ts"] >= 0 and {"pid", "tid"} <= set(event)
    names = {event["name"] for event in events}
    assert any("training_step" in name for name in names)
    if keys[0] != "debug=fast":
        assert any(name.startswith("ProfilerStep#") for name in names)
        assert any("train_dataloader_next" in name for name in names)
