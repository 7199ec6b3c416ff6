import os
import socket

import pytest

from leyden import UserError
from leyden.report.results import curves, where
from leyden.run.run import process_start_time
from synthetic import runs_in, write


def names(runs):
    return [path.name for path in runs.path]


def test_a_sweep_a_run_and_a_folder_of_sweeps_are_read_each_once(tmp_path):
    for name in ("s/10", "s/2", "t/0"):
        write(tmp_path / name)
    assert names(runs_in(tmp_path / "s")) == ["2", "10"]
    assert names(runs_in(tmp_path, tmp_path / "s", tmp_path / "s" / "2")) == ["2", "10", "0"]
    assert names(runs_in(tmp_path / "t" / "0")) == ["0"]


def test_a_row_has_the_config_and_the_metrics(tmp_path):
    write(tmp_path / "0", 0.9, {"seed": 7}, curve=[0.5, 0.9, 0.7])
    row = runs_in(tmp_path).iloc[0]
    assert row["data.seed"] == "${seed}" and row["seed"] == 7 and row["model.hidden"] == [8, 8]
    assert row["val/acc"] == 0.9 and row["test/acc"] == pytest.approx(0.89) and row["train/loss"] == 0.1
    assert row.status == "finished" and row.objective == "val/acc" and row.best_epoch == 2
    assert curves(row.path)["val/acc"].tolist() == [0.5, 0.9, 0.7]


def test_a_running_run_that_is_dead_was_killed(tmp_path):
    mine = {"host": socket.gethostname(), "pid": os.getpid(), "pid_born": process_start_time(os.getpid())}
    write(tmp_path / "0", status="running", **mine)
    write(tmp_path / "1", status="running", **mine | {"pid_born": "1"})
    assert runs_in(tmp_path).status.tolist() == ["running", "killed"]


def test_links_are_followed_and_a_link_to_a_folder_above_ends(tmp_path):
    run = write(tmp_path / "disk" / "a" / "0")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "train").symlink_to(tmp_path / "disk" / "a")
    (run.parent / "loop").symlink_to(tmp_path / "logs")
    (run.parent / "best").symlink_to(run)
    assert runs_in(tmp_path / "logs").path.tolist() == [run]


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
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file.txt").write_text("hello")
    found = runs_in(tmp_path)
    assert names(found) == [str(n) for n in range(10)]
    assert found.damaged.tolist() == ["", "", "metrics.json", "run.json", "config.yaml", "run.json",
                                           "metrics.json", "config.yaml", "metrics.json", "config.yaml"]  # fmt: skip


def test_a_run_that_failed_before_it_was_built_has_the_config_of_hydra(tmp_path):
    run = write(tmp_path / "0", value=None, status="failed")
    (run / "config.yaml").rename(run / ".hydra" / "config.yaml")
    row = runs_in(run).iloc[0]
    assert row["optimizer.lr"] == 0.001 and not row.damaged


def test_evaluations_and_benchmarks_are_no_runs(tmp_path):
    write(tmp_path / "train" / "0")
    write(tmp_path / "eval" / "0", keys={"run": "x.ckpt", "split": "test"})
    write(tmp_path / "benchmark" / "0", keys={"rounds": 3})
    assert [path.parent.name for path in runs_in(tmp_path).path] == ["train"]


def test_where_compares_as_one_types(tmp_path):
    keys = {"optimizer.lr": 1e-3, "model.hidden": [8, 8], "data._target_": "leyden.data.image_folder.ImageFolder"}
    write(tmp_path / "0", keys=keys)
    write(tmp_path / "1", status="failed", keys={"optimizer.lr": 0.01, "model.hidden": [4]})
    found = runs_in(tmp_path)
    for condition in ("optimizer.lr=1e-3", "optimizer.lr=.001", "model.hidden=[8, 8]", "model.hidden=[8,8]",
                      "status=finished", "data=image_folder"):  # fmt: skip
        assert names(where(found, condition)) == ["0"], condition
    for condition in ("model=mlp", "optimizer=AdamW", "data.fold=null", "task.compile=false", "seed=0"):
        assert names(where(found, condition)) == ["0", "1"], condition
    assert where(found, "optimizer.lr=0").empty and where(found, "seed=[").empty
    with pytest.raises(UserError, match=r"as optimizer\.lr=<value>; got `optimizer\.lrr=1`"):
        where(found, "optimizer.lrr=1")
    with pytest.raises(UserError, match="must be a key"):
        where(found, "optimizer.lr")


def test_no_run_is_a_mistake(tmp_path):
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match=r"no run|no folder"):
            runs_in(place)
