import csv
import importlib.util
import json
import socket
import subprocess
import sys
import time
from contextlib import suppress
from urllib.request import Request, urlopen

import pytest
from omegaconf import OmegaConf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import stress_resume
from leyden.run import loggers
from leyden.run.run import Run

SMALL = ["data=fake", "data.num_samples=200", "data.shape=[1,8,8]", "data.batch_size=16", "model=mlp", "threads=1"]
SMALL += ["trainer.log_every_n_steps=3"]


@pytest.fixture(scope="module")
def context():
    return stress_resume.server()


@pytest.fixture
def cli(context, tmp_path):
    """Run train.py in a process that has imported torch already; returns its status and what it printed."""

    def run(*arguments):
        log = tmp_path / "screen.txt"
        log.unlink(missing_ok=True)
        status = stress_resume.attempt(context, [*SMALL * (not any("resume" in a for a in arguments)), *arguments,
                                                 f"log_dir='{tmp_path}'"], log, None)  # fmt: skip
        return status, log.read_text()

    return run


def board(run):
    found = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def rows(run):
    """Of metrics.csv, but for what the clock says."""
    with open(run / "metrics.csv", newline="") as file:
        found = csv.DictReader(file)
        return [{name: row[name] for name in row if row[name] and not name.startswith("time/")} for row in found]


def test_columns_are_what_a_sweep_varies_as_plain_values():
    cfg = OmegaConf.create({"seed": 3, "model": {"_target_": "a.b.CNN", "channels": [8, "${seed}"]}, "x": None,
                            "data": {"_target_": "c.Digits"}, "optimizer": {"lr": 0.1}, "log_dir": "x"})  # fmt: skip
    command = "train.py -m model=cnn,mlp optimizer.lr=1e-1,1 'model.channels=[8,3]' log_dir=x x=null"
    job = ["model=cnn", "optimizer.lr=0.1", "model.channels=[8,3]", "log_dir=x", "x=null"]
    swept = {"overrides": job, "command": command}
    assert loggers.columns(cfg, swept) == {"model": "cnn", "data": "digits", "seed": 3, "optimizer.lr": 0.1}
    more = ["experiment=wide", "task/loss=focal", "+trainer.y=2"]
    found = loggers.columns(cfg, {"overrides": job + more})
    assert found["model.channels"] == "[8,3]" and found["x"] == "null" and found["experiment"] == "wide"
    assert found["task/loss"] == "focal" and found["trainer.y"] == "2" and "log_dir" not in found
    assert {type(value) for value in found.values()} <= {bool, int, float, str}


def test_the_outcome_is_the_best_value_and_its_test():
    best = {"monitor": "val/acc", "value": 0.9}
    assert loggers.outcome({"best": best, "test": {"test/acc": 0.8, "samples": 3}}) == {
        "best/val/acc": 0.9, "best/test/acc": 0.8,
    }  # fmt: skip
    assert loggers.outcome({"best": {}, "train": {"train/loss": 1.0}}) == {"last/train/loss": 1.0}


@pytest.mark.slow
def test_a_run_that_goes_on_tells_nothing_twice(cli, tmp_path):
    for name in ("whole", "cut"):
        assert cli(f"name={name}", "trainer.max_epochs=2")[0] == 0
    whole, cut = (tmp_path / "train" / name for name in ("whole", "cut"))
    Run(cut).update(status="stopped", reason="SIGTERM")
    status, said = cli("resume=cut")
    assert status == 0 and "deleted" not in said, said
    assert rows(cut) == rows(whole)
    found, expected = board(cut), board(whole)
    assert found.Tags() == expected.Tags()
    for tag in (tag for tag in found.Tags()["scalars"] if not tag.startswith("time/")):
        assert [(e.step, e.value) for e in found.Scalars(tag)] == [(e.step, e.value) for e in expected.Scalars(tag)]
    assert all(len(found.Tensors(tag)) == 1 for tag in ("config/text_summary", "command/text_summary"))

    status, said = cli("resume=cut", "trainer.max_epochs=3")
    assert status == 0, said
    longer = board(cut)
    assert len(longer.Scalars("best/val/acc")) == 1 == len(longer.Tensors("config/text_summary"))
    assert len(longer.Scalars("val/acc")) == 3
    assert json.loads((cut / "run.json").read_text())["overrides"][-1].startswith("log_dir")  # of the first start


@pytest.mark.slow
def test_tensorboard_reads_all_of_a_sweep_back(script, tmp_path):
    sweep = ["model=mlp,cnn", "optimizer.lr=1e-3,1e-2", "trainer.max_epochs=2", "model.dropout=0.2"]
    small = [key for key in SMALL if not key.startswith("model")]
    status, _, errors = script("train.py", "-m", *sweep, *small, f"log_dir='{tmp_path / 'logs'}'")
    assert status == 0, errors
    jobs = sorted(tmp_path.glob("logs/sweep/*/*/metrics.json"))
    best = [json.loads(job.read_text())["best"]["value"] for job in jobs]

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = [sys.executable, "-m", "tensorboard.main", "--logdir", tmp_path / "logs", "--port", str(port)]
    server = subprocess.Popen([*line, "--host", "127.0.0.1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ask(path, content=None):
        body = content and json.dumps(content).encode()
        request = Request(f"http://127.0.0.1:{port}/data/plugin/{path}", body, {"Content-Type": "application/json"})
        with urlopen(request, timeout=10) as answer:
            return json.load(answer)

    try:
        tags = {}
        for _ in range(120):
            with suppress(OSError):
                tags = ask("scalars/tags")
            if len(tags) == 4 and all("best/val/acc" in found for found in tags.values()):
                break
            time.sleep(0.5)
        assert len(tags) == 4 and not any("hp_metric" in found for found in tags.values())
        assert len({tuple(sorted(found)) for found in tags.values()}) == 1  # names that one can compare
        names = sorted(tags)
        steps = {tuple(point[1] for point in ask(f"scalars/scalars?run={run}&tag=val/acc")) for run in names}
        assert len(steps) == 1 and len(steps.pop()) == 2
        assert {"lr", "epoch", "train/loss", "val/loss", "test/acc"} <= set(tags[names[0]])
        assert ask(f"scalars/scalars?run={names[0]}&tag=epoch")[0][2] == 0

        asked = {"experimentName": "", "startIndex": 0, "sliceSize": 10, "colParams": [],
                 "allowedStatuses": ["STATUS_SUCCESS", "STATUS_UNKNOWN", "STATUS_RUNNING"]}  # fmt: skip
        groups = sorted(ask("hparams/session_groups", asked)["sessionGroups"], key=lambda group: group["name"])
        assert [group["name"] for group in groups] == names and all(len(group["sessions"]) == 1 for group in groups)
        columns = [(group["hparams"]["model"], group["hparams"]["optimizer.lr"]) for group in groups]
        assert columns == [("mlp", 0.001), ("mlp", 0.01), ("cnn", 0.001), ("cnn", 0.01)]
        assert set(groups[0]["hparams"]) == {"model", "data", "seed", "optimizer.lr"}
        values = [{v["name"]["tag"]: v["value"] for v in group["metricValues"]} for group in groups]
        assert [value["best/val/acc"] for value in values] == pytest.approx(best)

        for name in names:
            (config,) = ask(f"text/text?run={name}&tag=config/text_summary")
            (typed,) = ask(f"text/text?run={name}&tag=command/text_summary")
            assert {"test/confusion", "test/most_wrong"} <= set(ask("images/tags")[name])
            assert "optimizer:" in config["text"] and "train.py -m model=mlp,cnn" in typed["text"]
    finally:
        server.terminate()
        server.wait()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_one_sentence(cli, name):
    if importlib.util.find_spec(name):
        pytest.skip(f"{name} is installed")
    status, said = cli(f"logger={name}")
    assert status == 2 and f"logger.{name} cannot be built" in said.splitlines()[-1] and "pip install" in said, said


@pytest.mark.slow
def test_wandb_works_offline_in_each_job_of_a_sweep(cli, tmp_path):
    pytest.importorskip("wandb", reason="pip install -e '.[wandb]'")
    status, said = cli("-m", "logger=[tensorboard,wandb]", "seed=1,2", "trainer.max_epochs=1")
    assert status == 0, said
    (sweep,) = tmp_path.glob("sweep/*")
    for n in range(2):
        (folder,) = sweep.glob(f"{n}/wandb/offline-run-*")
        assert folder.name.endswith(f"{sweep.name}-{n}")
        (file,) = folder.glob("run-*.wandb")
        content = file.read_bytes()
        for word in ("best_checkpoint", f"{n}/checkpoints/best.ckpt", "best/val/acc", "val/loss", '"lr":0.003'):
            assert word.encode() in content, word


@pytest.mark.slow
def test_mlflow_writes_an_sqlite_file_beside_the_runs(cli, tmp_path):
    pytest.importorskip("mlflow", reason="pip install -e '.[mlflow]'")
    from mlflow.tracking import MlflowClient

    for name in ("a", "b"):
        status, said = cli("logger=mlflow", f"name={name}", "trainer.max_epochs=1")
        assert status == 0, said
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("leyden")
    found = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(found) == {"a", "b"} and not (tmp_path / "mlruns").exists()
    run = found["a"]
    best = json.loads((tmp_path / "train" / "a" / "metrics.json").read_text())["best"]
    assert run.info.status == "FINISHED" and run.data.metrics["best/val/acc"] == pytest.approx(best["value"])
    assert run.data.params["best_checkpoint"].endswith("a/checkpoints/best.ckpt")
    assert run.data.params["optimizer/lr"] == "0.003" and "val/loss" in run.data.metrics
