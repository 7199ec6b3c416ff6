"""The commands of the README, end to end, as a user types them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

import stress_resume
from leyden.run import paths

FAST = ["debug=fast", "threads=1"]


def only(folder, pattern):
    found = sorted(folder.glob(pattern))
    assert len(found) == 1, found
    return found[0]


def metrics(run):
    return json.loads((run / "metrics.json").read_text())


@pytest.fixture
def here(script, tmp_path):
    """Run a script in this process, which has imported torch."""

    def run(name, *arguments):
        status, out, errors = script(name, *arguments, f"log_dir='{tmp_path / 'logs'}'")
        return subprocess.CompletedProcess(name, status, out, errors)

    return run


def test_train_then_eval_repeats_the_numbers(command, here, tmp_path):
    trained = command("train.py", "data=fake", "data.num_samples=400", "model=cnn", "model.channels=[8]",
                      "trainer.max_epochs=2", "threads=1", 'name="猫"', "callbacks=[ema]",
                      env=os.environ | {"PYTHONIOENCODING": "latin-1"})  # fmt: skip
    assert trained.returncode == 0 and "/train/?\n" in trained.stdout, trained.stderr
    assert "Warning" not in trained.stdout + trained.stderr
    run = only(tmp_path, "logs/train/*")
    for name in (".hydra/config.yaml", "config.yaml", "run.json", "metrics.json", "metrics.csv", "train.log",
                 "checkpoints/best.ckpt", "checkpoints/last.ckpt", "tensorboard"):  # fmt: skip
        assert (run / name).exists(), name
    assert json.loads((run / "run.json").read_text())["status"] == "finished"
    printed = dict(re.findall(r"^(test/\w+) (\d\.\d{4})$", trained.stdout, re.M))
    assert set(printed) == {"test/acc", "test/f1_macro", "test/loss"}
    assert "\r" not in trained.stdout and "curves: tensorboard --logdir" in trained.stdout

    moved = shutil.move(run, tmp_path / "moved run")
    again = here("eval.py", f"run='{moved}'")
    assert again.returncode == 0, again.stderr
    result = metrics(only(tmp_path, "logs/eval/*"))["test"]
    expected = metrics(tmp_path / "moved run")["test"]
    assert {k: v for k, v in result.items() if k != "checkpoint"} == {
        k: v for k, v in expected.items() if k != "checkpoint"
    }
    assert dict(re.findall(r"^(test/\w+) (\d\.\d{4})$", again.stdout, re.M)) == printed

    best = tmp_path / "moved run" / "checkpoints" / "best.ckpt"
    last = here("eval.py", f"run='{moved}/checkpoints/last.ckpt'", "data.batch_size=7", "split=val")
    assert last.returncode == 0, last.stderr
    assert "val/acc" in last.stdout and "last.ckpt" in last.stdout
    best.write_bytes(best.read_bytes()[:2000])
    broken = here("eval.py", f"run='{moved}'")
    assert broken.returncode == 2 and len(broken.stderr.splitlines()) == 1 and "best.ckpt" in broken.stderr
    wrong = here("eval.py", f"run='{moved}'", "model.channles=[8]")
    assert wrong.returncode == 2 and "model.channels" in wrong.stderr


def test_a_run_that_is_killed_goes_on_to_the_same_bits(tmp_path):
    context, (whole, cut) = stress_resume.server(), (tmp_path / "train" / name for name in ("whole", "cut"))
    line = ["data=fake", "data.num_samples=260", "model=mlp", "model.dropout=0.2", "trainer.max_epochs=12",
            "checkpoint.every_n_steps=2", f"log_dir='{tmp_path}'"]  # fmt: skip
    assert stress_resume.attempt(context, [*line, "name=whole"], tmp_path / "screen.txt", None) == 0
    process = stress_resume.begin(context, [*line, "name=cut"], cut)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert json.loads((cut / "run.json").read_text())["status"] == "running"  # what a kill leaves
    resume = ["resume=cut", f"log_dir='{tmp_path}'"]
    assert stress_resume.attempt(context, resume, tmp_path / "screen.txt", None) == 0
    assert not stress_resume.differences(stress_resume.results(cut), stress_resume.results(whole))
    assert len(json.loads((cut / "run.json").read_text())["resumes"]) == 1


@pytest.mark.slow
def test_a_default_run_imports_nothing_heavy_that_it_does_not_use(command):
    done = command("train.py", "debug=fast", env=os.environ | {"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0, done.stderr
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert {"torch", "lightning", "torchmetrics"} <= imported
    assert not imported & {"pandas", "matplotlib", "scipy", "sklearn", "optuna", "onnx", "onnxscript"}


def test_ddp_is_one_run_of_two_processes(command, here, tmp_path):
    trained = command("train.py", "trainer=ddp", "data=fake", "data.num_samples=103", "model.channels=[8]", *FAST,
                      "trainer.limit_test_batches=1.0", "data.batch_size=4")  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    run = only(tmp_path, "logs/train/*")
    record = json.loads((run / "run.json").read_text())
    assert record["world_size"] == 2 and record["effective_batch"] == 8 and record["status"] == "finished"
    assert metrics(run)["test"]["samples"] == 15
    assert not list(run.glob("rank*.log")) and not (run / ".ranks").exists()
    again = here("eval.py", f"run={run}")
    assert again.returncode == 0, again.stderr
    assert metrics(only(tmp_path, "logs/eval/*"))["test"]["test/acc"] == metrics(run)["test"]["test/acc"]


def test_a_sweep_has_a_directory_for_each_job(here, tmp_path):
    swept = here("train.py", "-m", "model=cnn,mlp", "data=fake", *FAST)
    assert swept.returncode == 0, swept.stderr
    sweep = only(tmp_path, "logs/sweep/*")
    assert [(sweep / str(n) / "metrics.json").exists() for n in range(2)] == [True] * 2
    jobs = [json.loads((sweep / str(n) / "run.json").read_text()) for n in range(2)]
    assert len({job["parameters"] for job in jobs}) == 2 and {job["status"] for job in jobs} == {"finished"}


@pytest.mark.stress
def test_a_sweep_whose_reader_has_gone_goes_on_to_its_end(tmp_path):
    line = [sys.executable, str(paths.PROJECT / "src" / "train.py"), "-m", "seed=0,1", "data=fake", "model=mlp", *FAST]
    with subprocess.Popen([*line, f"log_dir='{tmp_path}'"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 0)
    assert len(list(tmp_path.glob("sweep/*/*/metrics.json"))) == 2


@pytest.mark.slow
def test_a_mistake_in_a_sweep_fails_its_job_only(here, tmp_path):
    swept = here("train.py", "-m", "checkpoint.monitor=val/nonsense,val/acc", "data=fake", "model=mlp", *FAST)
    assert swept.returncode == 1 and "Failed jobs: 0;" in swept.stderr
    sweep = only(tmp_path, "logs/sweep/*")
    jobs = [json.loads((sweep / str(n) / "run.json").read_text()) for n in range(2)]
    assert [job["status"] for job in jobs] == ["failed", "finished"]


@pytest.mark.slow
def test_a_clone_with_an_odd_name_works_from_elsewhere(tmp_path):
    clone = tmp_path / "mein Projekt, größer (2)"
    shutil.copytree(paths.PROJECT / "src", clone / "src")
    shutil.copytree(paths.PROJECT / "conf", clone / "conf")
    line = [sys.executable, str(clone / "src" / "train.py"), "-m", "seed=1", "trainer=ddp", "data=fake", *FAST]
    trained = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert len(list(clone.glob("logs/sweep/*/*/metrics.json"))) == 1
    assert [path.name for path in tmp_path.iterdir()] == [clone.name]
    line = [sys.executable, str(clone / "src" / "eval.py"), "run=latest"]
    assert subprocess.run(line, capture_output=True, text=True, cwd=tmp_path).returncode == 0
