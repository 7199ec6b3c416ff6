import json
import os
import socket
import subprocess
import sys

import pytest

import leyden
from leyden import UserError
from leyden.report import results
from leyden.report.results import where
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
    assert "data.seed" not in row and row["seed"] == 7 and row["model.hidden"] == [8, 8]
    assert row["val/acc"] == 0.9 and row["test/acc"] == pytest.approx(0.89) and row["train/loss"] == 0.1
    assert row.status == "finished" and row.objective == "val/acc" and row.best_epoch == 2
    assert leyden.curves(row.path)["val/acc"].tolist() == [0.5, 0.9, 0.7]


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
    assert found.status.tolist() == ["finished", "failed", "finished", "unknown", "unknown", "unknown", "finished",
                                     "finished", "finished", "unknown"]  # fmt: skip


def test_a_run_that_failed_before_it_was_built_has_the_config_of_hydra(tmp_path):
    run = write(tmp_path / "0", value=None, status="failed")
    (run / "config.yaml").rename(run / ".hydra" / "config.yaml")
    row = runs_in(run).iloc[0]
    assert row["optimizer.lr"] == 0.001 and row.status == "failed"


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
    choices = {"hydra": {"runtime": {"choices": {"trainer": "ddp", "model": "cnn"}}}}
    (tmp_path / "1" / ".hydra" / "hydra.yaml").write_text(json.dumps(choices))
    assert names(where(found, "trainer=ddp")) == names(where(found, "model=cnn")) == ["1"]
    assert names(where(found, "model=mlp")) == ["0"]
    with pytest.raises(UserError, match=r"as optimizer\.lr=<value>; got `optimizer\.lrr=1`"):
        where(found, "optimizer.lrr=1")
    with pytest.raises(UserError, match="must be a key"):
        where(found, "optimizer.lr")


def test_no_run_is_a_mistake(tmp_path):
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match=r"no run|no folder"):
            runs_in(place)


# in Python


def test_a_frame_of_numbers_the_best_first(tmp_path):
    for n, curve in enumerate(([0.5, 0.9, 0.7], [0.2, 0.4], [0.6, 0.8])):
        write(tmp_path / str(n), max(curve), {"optimizer.lr": 10.0**-n, "seed": n}, curve=curve)
    runs = leyden.results(tmp_path)
    assert runs["optimizer.lr"].tolist() == [1.0, 0.1, 0.01] and runs["val/acc"].dtype == float
    best = leyden.results(str(tmp_path), "val/acc")
    assert best["val/acc"].tolist() == [0.9, 0.8, 0.4] and best.seed.tolist() == [0, 2, 1]
    with pytest.raises(UserError, match="No run has the metric val/f1"):
        leyden.results(tmp_path, "val/f1")
    with pytest.raises(UserError, match="no run directory"):
        leyden.curves(tmp_path / "9")


def test_a_folder_is_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(results.paths, "PROJECT", tmp_path / "project")
    monkeypatch.setattr(results.paths, "logs_folder", lambda: tmp_path / "project" / "logs")
    write(tmp_path / "project" / "logs" / "train" / "exp1")
    for typed in ("logs/train", "logs", "exp1", tmp_path / "project" / "logs"):
        assert names(leyden.results(typed)) == ["exp1"]
    assert len(leyden.curves("exp1")) == 2


def test_leyden_loads_neither_torch_nor_pandas(tmp_path):
    write(tmp_path / "0")
    code = f"""
import sys, leyden
assert not {{"torch", "pandas", "hydra"}} & sys.modules.keys() and {{"load", "results"}} <= set(dir(leyden))
leyden.results({str(tmp_path)!r})
assert "pandas" in sys.modules and "torch" not in sys.modules
leyden.nothing
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stderr.splitlines()[-1] == "AttributeError: leyden has no nothing", ended.stderr


def test_what_many_runs_share_is_read_once_and_each_keeps_its_own(tmp_path):
    for n in range(3):
        write(tmp_path / str(n), keys={"seed": n, "optimizer.lr": 0.1 * n, "note": "a\n\nb: c"})
    results.section.cache_clear()
    found = runs_in(tmp_path)
    assert found.seed.tolist() == [0, 1, 2] and found["optimizer.lr"].tolist() == [0.0, 0.1, 0.2]
    assert found.note.tolist() == ["a\n\nb: c"] * 3 and results.section.cache_info().hits > 10


@pytest.mark.slow
def test_a_long_reading_is_announced(tmp_path, capsys):
    for number in range(1001):
        write(tmp_path / str(number))
    assert len(runs_in(tmp_path)) == 1001 and "reading 1,001 runs" in capsys.readouterr().err
