import json
import os
import socket

import pytest

from leyden import UserError
from leyden.report.results import collect, read, where
from leyden.run.run import process_start_time
from synthetic import write


def paths(found):
    return [run.path.name for run in found]


def test_a_sweep_a_run_and_a_folder_of_sweeps_are_read_each_once(tmp_path):
    for name in ("s/10", "s/2", "t/0"):
        write(tmp_path / name)
    assert paths(collect([tmp_path / "s"])) == ["2", "10"]
    assert paths(collect([tmp_path, tmp_path / "s", tmp_path / "s" / "2"])) == ["2", "10", "0"]
    assert paths(collect([tmp_path / "t" / "0"])) == ["0"]


def test_keys_are_dotted_and_interpolations_are_kept_and_followed(tmp_path):
    run = read(write(tmp_path / "0", keys={"seed": 7}))
    assert run.config["data.seed"] == "${seed}" and run.get("data.seed") == 7
    assert run.get("checkpoint.monitor") == "val/acc" == run.objective
    assert run.config["model.hidden"] == [8, 8] and run.get("nowhere", 1) == 1
    assert read(write(tmp_path / "1", keys={"seed": "${seed}"})).get("seed") == "${seed}"


def test_the_value_comes_with_its_epoch(tmp_path):
    run = read(write(tmp_path / "0", 0.9, curve=[0.5, 0.9, 0.7]))
    assert run.value("val/acc") == (0.9, 2) and run.value("test/acc") == (pytest.approx(0.89), 2)
    assert run.value("train/loss") == (pytest.approx(1 / 3), 3)  # from metrics.csv, where less is better
    assert run.value("val/none") == (None, None)
    assert [epoch for epoch, _ in run.curve("val/acc")] == [1, 2, 3]


def test_where_nobody_knows_which_value_is_better_the_last_is_taken(tmp_path):
    for name, keys in (("0", {"checkpoint.monitor": "val/acc"}), ("1", {"checkpoint.mode": "min"})):
        write(tmp_path / name, 0.9, {"objective": "val/energy", **keys}, curve=[0.5, 0.1, 0.3])
        (tmp_path / name / "metrics.json").unlink()  # so that the curve is looked at
    run = read(tmp_path / "0")
    assert run.mode("val/energy") is None and run.value("val/energy") == (0.3, 3)
    run = read(tmp_path / "1")
    assert run.mode("val/energy") == run.mode("test/energy") == "min" and run.value("val/energy") == (0.1, 2)


def test_a_running_run_that_is_dead_was_killed(tmp_path):
    mine = {"host": socket.gethostname(), "pid": os.getpid(), "pid_born": process_start_time(os.getpid())}
    assert read(write(tmp_path / "0", status="running", **mine)).status == "running"
    assert read(write(tmp_path / "1", status="running", **mine | {"pid_born": "1"})).status == "killed"
    for n, beat in enumerate(("nonsense", 5, "2020-01-01T00:00:00", None), 2):
        assert read(write(tmp_path / str(n), status="running", host="elsewhere", heartbeat=beat)).status == "killed"
    assert read(write(tmp_path / "9", status=7, overrides=[1, "seed=1"])).overrides == {"seed": "1"}


def test_a_link_to_a_folder_above_ends(tmp_path):
    write(tmp_path / "a" / "0")
    (tmp_path / "a" / "-loop").symlink_to(tmp_path)
    (tmp_path / "a" / "-best").symlink_to(tmp_path / "a" / "0")
    assert paths(collect([tmp_path])) == ["0"]


def test_whatever_lies_there_is_survived_and_named(tmp_path):
    write(tmp_path / "0")
    write(tmp_path / "1", value=None, status="failed", reason="ValueError: boom")
    for name, file, text in (
        ("2", "metrics.json", '{"best": {"mon'), ("3", "run.json", ""), ("4", "config.yaml", "a: [1"),
        ("5", "run.json", "[1]"), ("6", "metrics.json", "null"), ("7", "config.yaml", "seed: 1\n"),
    ):  # fmt: skip
        (write(tmp_path / name) / file).write_text(text)
    (write(tmp_path / "8") / "metrics.json").unlink()
    (write(tmp_path / "9") / "config.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("hello")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file.txt").write_text("hello")
    found = collect([tmp_path])
    assert paths(found) == [str(n) for n in range(10)]
    assert {run.path.name: run.flaws for run in found if run.flaws} == {
        "2": ["metrics.json"], "3": ["run.json"], "4": ["config.yaml"], "5": ["run.json"], "6": ["metrics.json"],
        "7": ["config.yaml"], "8": ["metrics.json"], "9": ["config.yaml"],
    }  # fmt: skip


def test_values_of_a_wrong_kind_are_no_values(tmp_path):
    run = read(write(tmp_path / "0"))
    for best in (None, [], {"monitor": "val/acc", "value": "high", "epoch": "x"}, {"monitor": 3}):
        (run.path / "metrics.json").write_text(json.dumps({"best": best, "test": 5, "val": None}))
        again = read(run.path)
        assert again.value("test/acc")[0] is None and "val/acc" in again.names()
    (run.path / "metrics.csv").write_bytes(b"\x00\xff")
    assert read(run.path).curve("val/acc") == []


def test_a_run_that_failed_before_it_was_built_has_the_config_of_hydra(tmp_path):
    run = write(tmp_path / "0", value=None, status="failed")
    (run / "config.yaml").rename(run / ".hydra" / "config.yaml")
    assert read(run).config["optimizer.lr"] == 0.001 and not read(run).flaws


def test_evaluations_and_benchmarks_are_no_runs(tmp_path):
    write(tmp_path / "train" / "0")
    write(tmp_path / "eval" / "0", keys={"run": "x.ckpt", "split": "test"})
    write(tmp_path / "benchmark" / "0", keys={"rounds": 3})
    assert [run.path.parent.name for run in collect([tmp_path])] == ["train"]


def test_where_compares_as_one_types(tmp_path):
    found = [read(write(tmp_path / "0", keys={"optimizer.lr": 1e-3, "model.hidden": [8, 8], "seed": 7}))]
    found.append(read(write(tmp_path / "1", status="failed", keys={"optimizer.lr": 0.01, "model.hidden": [4]})))
    for condition in (
        "optimizer.lr=1e-3",
        "optimizer.lr=.001",
        "model.hidden=[8, 8]",
        "data.seed=7",
        "status=finished",
    ):
        assert paths(where(found, condition)) == ["0"], condition
    for condition in ("model=mlp", "data=digits", "optimizer=AdamW", "data.fold=null", "task.compile=false"):
        assert paths(where(found, condition)) == ["0", "1"], condition
    assert where(found, "optimizer.lr=0") == [] == where(found, "seed=[")
    with pytest.raises(UserError, match=r"did you mean optimizer\.lr"):
        where(found, "optimizer.lrr=1")
    with pytest.raises(UserError, match="no condition"):
        where(found, "optimizer.lr")


def test_no_run_is_a_mistake(tmp_path):
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match=r"no run|no folder"):
            collect([place])
