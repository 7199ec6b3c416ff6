import csv
import importlib.util
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
import venv
from contextlib import suppress
from types import SimpleNamespace
from urllib.request import Request, urlopen

import pytest
from lightning.pytorch.loggers import CSVLogger
from omegaconf import OmegaConf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import stress_resume
from leyden import UserError
from leyden.run import loggers, paths
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
    assert run.data.params["trainer.max_epochs"] == "1" and run.data.params["model"] == "mlp"
    assert "optimizer.lr" not in run.data.params and len(run.data.params) < 20 and "val/loss" in run.data.metrics
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["config.yaml"]


def test_mlflow_compares_by_what_is_typed_and_by_what_is_not_the_default(configure):
    cfg = configure("data=fake", "model=mlp", "task/loss=focal", "callbacks=[ema]", "optimizer.lr=0.003", "seed=7")
    found = loggers.parameters(cfg, {"overrides": ["optimizer.lr=0.003", "seed=7", "log_dir=x"]})
    assert found["optimizer.lr"] == 0.003 and found["seed"] == 7  # typed, though it is the default
    assert found["model.hidden"] == [256, 128] and found["task.loss._target_"] == "lab.tasks.losses.FocalLoss"
    assert any(key.startswith("callbacks.ema") for key in found)
    assert not any(key.startswith(("trainer.", "logger", "scheduler", "log_dir")) for key in found)


def test_loaders_are_no_classes(tmp_path):
    test = {"test/acc/dataloader_idx_0": 0.5, "test/acc/a": 0.25, "samples": 8, "checkpoint": None}
    shown = loggers.in_lines({"test": test}, tmp_path).splitlines()
    assert shown[:2] == ["test/acc/dataloader_idx_0 0.5000", "by class, lowest first: a 0.250"]


def test_each_number_of_the_test_is_shown_whatever_it_is_called(tmp_path):
    test = {"test_acc": 0.5, "hits": 3, "test/acc": 0.25, "confusion": [[1]], "classes": ["a"]}
    shown = loggers.in_lines({"test": test | {"samples": 8, "checkpoint": None}}, tmp_path).splitlines()
    assert shown[:3] == ["test_acc 0.5000", "hits 3.0000", "test/acc 0.2500"] and shown[3].startswith("tested")


class Flaky(CSVLogger):
    """A logger whose server ends after the start, and comes back."""

    gone = False

    def log_metrics(self, metrics, step=None):
        if self.gone:
            raise ConnectionError("the server is gone")
        super().log_metrics(metrics, step)


def test_what_a_logger_raises_is_said_once_and_ends_nothing(tmp_path, caplog):
    logger, trainer = Flaky(tmp_path), SimpleNamespace(is_global_zero=True)
    trainer.loggers, cfg = [logger], OmegaConf.create({"run_dir": str(tmp_path)})
    loggers.begin(trainer, cfg, resumed=False)
    logger.log_metrics({"a": 1.0}, 1)
    logger.gone = True
    for step in (2, 3):
        assert logger.log_metrics({"a": 2.0}, step) is None
        time.sleep(0.01)
    assert Run(tmp_path).record["failed_loggers"] == {"Flaky": "the server is gone"}
    assert caplog.text.count("Flaky failed") == 1
    logger.gone = False
    time.sleep(0.05)
    logger.log_metrics({"a": 4.0}, 4)
    assert [row["step"] for row in logger.experiment.metrics] == [1, 4]
    logger.experiment.metrics_file_path = str(tmp_path / "none" / "x.csv")  # what its experiment raises, too
    logger.experiment.save()
    with pytest.raises(AttributeError):
        logger.log_metrix()


def test_a_logger_that_cannot_start_is_a_sentence(tmp_path, monkeypatch):
    logger = Flaky(tmp_path)
    monkeypatch.setattr(logger, "log_hyperparams", lambda _: 1 / 0)
    trainer = SimpleNamespace(is_global_zero=True, loggers=[logger])
    with pytest.raises(UserError, match="Flaky cannot start: division by zero; see conf/logger"):
        loggers.begin(trainer, OmegaConf.create({"run_dir": str(tmp_path)}), resumed=False)


@pytest.mark.stress
def test_a_full_disk_stops_tensorboard_alone(cli, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        keys = [f"logger.tensorboard.save_dir='{small}'", "callbacks=[gradients]", "trainer.max_epochs=30"]
        status, said = cli("name=full", *keys, "callbacks.gradients.histograms_every=1")
        assert status == 0 and said.count("No space left") == 1 and "Traceback" not in said, said
        record = Run(tmp_path / "train" / "full").record
        assert "No space left" in record["failed_loggers"]["TensorBoardLogger"] and record["status"] == "finished"
        status, said = cli("name=refused", *keys)
        assert status == 2 and "TensorBoardLogger cannot start" in said, said
    finally:
        subprocess.run(["umount", small], check=True)


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory):
    """A Python that has MLflow besides what is installed here."""
    folder = tmp_path_factory.mktemp("mlflow")
    venv.create(folder / "venv", with_pip=True, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    (site,) = folder.glob("venv/lib/python*/site-packages")
    (site / "outer.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    done = subprocess.run([python, "-m", "pip", "install", "-q", "mlflow"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"mlflow cannot be installed: {done.stderr[-300:]}")
    return python


@pytest.mark.stress
def test_a_server_that_ends_hangs_and_comes_back_costs_no_run(mlflow, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"

    def serve():
        line = [mlflow, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
        line += [
            "--backend-store-uri",
            f"sqlite:///{tmp_path}/store.db",
            "--artifacts-destination",
            tmp_path / "artifacts",
        ]
        server = subprocess.Popen(line, cwd=tmp_path, start_new_session=True, stdout=subprocess.DEVNULL, stderr=-3)
        for _ in range(240):
            with suppress(OSError):
                return server, urlopen(f"{address}/health", timeout=5).read()
            time.sleep(0.5)
        raise TimeoutError("mlflow server")

    def begin(name, epochs):
        line = [mlflow, paths.PROJECT / "src" / "train.py", "logger=[tensorboard,mlflow]", f"name={name}", *SMALL]
        line += [f"logger.mlflow.tracking_uri={address}", "logger.mlflow.artifact_location=null"]
        line += [f"trainer.max_epochs={epochs}", f"log_dir='{tmp_path}'"]
        return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def until(run, word):
        return "".join(itertools.takewhile(lambda line: word not in line, run.stdout))

    servers = []
    try:
        servers.append(serve()[0])
        run = begin("back", 100_000)
        until(run, "epoch 5/")
        os.killpg(servers[-1].pid, signal.SIGKILL)
        servers.append(serve()[0])
        end = time.monotonic() + 60
        said = "".join(itertools.takewhile(lambda _: time.monotonic() < end, run.stdout))
        run.send_signal(signal.SIGTERM)
        said += run.communicate(timeout=60)[0]
        assert run.returncode == 143 and said.count("MLFlowLogger failed") == 1 and "Traceback" not in said, said
        ask = f"""
from mlflow.tracking import MlflowClient
client = MlflowClient("{address}")
(run,) = client.search_runs([client.get_experiment_by_name("leyden").experiment_id])
print([m.step for m in client.get_metric_history(run.info.run_id, "val/acc")])
print([file.path for file in client.list_artifacts(run.info.run_id)])"""
        steps, files = subprocess.check_output([mlflow, "-c", ask], text=True).splitlines()
        gaps = [b - a for a, b in itertools.pairwise(json.loads(steps))]
        assert max(gaps) > min(gaps) == gaps[-1] and files == "['config.yaml']"

        run = begin("hangs", 20)
        until(run, "epoch 3/")
        os.killpg(servers[-1].pid, signal.SIGSTOP)
        said = run.communicate(timeout=90)[0]  # MLflow's own time-outs would be minutes
        record = Run(tmp_path / "train" / "hangs").record
        assert run.returncode == 0 and record["status"] == "finished" and "MLFlowLogger" in record["failed_loggers"]
        assert "val/loss" in board(tmp_path / "train" / "hangs").Tags()["scalars"]

        run = begin("refused", 20)
        said = run.communicate(timeout=60)[0]
        assert run.returncode == 2 and "MLFlowLogger cannot start" in said.splitlines()[-1], said
    finally:
        for server in servers:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
