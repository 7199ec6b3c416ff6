"""What a user types, and what comes of it before anything is trained."""

import contextlib
import json
import signal
import subprocess
import sys
import time

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl

import stress_resume
from leyden import UserError
from leyden.files import write_json
from leyden.launch import command
from leyden.run import paths
from leyden.run.run import Run

FAKE = ["data=fake", "data.num_samples=100", "data.shape=[1,8,8]", "model=mlp", "debug=fast"]


@pytest.fixture
def said(script, tmp_path):
    """Run a script in this process: its status, and what it printed on stdout and on stderr."""
    return lambda name, *arguments: script(name, *arguments, f"log_dir='{tmp_path / 'logs'}'")


def test_cfg_job_shows_the_tree_and_makes_nothing(said, tmp_path):
    status, shown, _ = said("train.py", "--cfg", "job", "model=mlp")
    assert status == 0 and "num_classes: ${facts.outputs}" in shown
    assert not (tmp_path / "logs").exists()


def test_resolve_says_that_facts_need_the_data(said):
    status, _, sentence = said("train.py", "--cfg", "job", "--resolve")
    assert status == 2 and "facts" in sentence and len(sentence.splitlines()) == 1


def test_all_mistakes_at_once_in_a_line_each(request):
    shown = request.getfixturevalue("command")(
        "train.py", "optimzer.lr=1", "model=cn", "data.batch_size=x", "trainer.max_epochs=abc"
    )
    assert shown.returncode == 2 and len(shown.stderr.splitlines()) == 4
    for word in ("optimizer.lr", "cnn", "`data.batch_size` must be a whole number", "got `abc`"):
        assert word in shown.stderr


@pytest.mark.slow
def test_launches_at_once_have_a_directory_each(tmp_path):
    context, line = stress_resume.server(), [*FAKE, f"log_dir='{tmp_path}'", "+facts.outputs=3"]
    started = [context.Process(target=stress_resume.child, args=(line, tmp_path / "screen.txt")) for _ in range(4)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [2] * 4
    records = [json.loads(path.read_text()) for path in tmp_path.glob("train/*/run.json")]
    assert len(records) == 4 and {record["status"] for record in records} == {"failed"}
    assert len({record["pid"] for record in records}) == 4


def test_a_folder_that_cannot_be_written(said, tmp_path):
    (tmp_path / "logs").write_text("")
    status, _, sentence = said("train.py", *FAKE)
    assert status == 2 and "log_dir" in sentence and len(sentence.splitlines()) == 1


def test_a_mistake_in_the_run_is_a_sentence(said, tmp_path):
    status, shown, sentence = said("train.py", *FAKE, "checkpoint.monitor=val/nonsense_acc")
    assert status == 2 and "Traceback" not in shown + sentence
    assert "val/nonsense_acc" in sentence and "val/acc" in sentence and len(sentence.splitlines()) == 1
    log = next(tmp_path.glob("logs/train/*/train.log")).read_text()
    assert "Traceback" in log


def test_eval_needs_a_run(said):
    for arguments, word in (
        ([], "run="),
        (["run=latest"], "no run"),
        (["run=nosuch"], "nosuch"),
        (["ckpt_path=x"], "run=<run>"),
    ):
        status, _, sentence = said("eval.py", *arguments)
        assert status == 2 and word in sentence and len(sentence.splitlines()) == 1


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        (["hydra.run.dir=/tmp/x"], "log_dir"),
        (["run_dir=/tmp/x"], "log_dir"),
        (["-m", "name=a", "seed=1,2"], "name"),
        (["name=latest"], "name"),
        (["model=null"], "cnn"),
    ],
)
def test_what_cannot_be_is_a_sentence(said, tmp_path, keys, word):
    status, _, sentence = said("train.py", *keys)
    assert status == 2 and word in sentence and len(sentence.splitlines()) == 1
    assert not list(tmp_path.glob("logs/*/*"))


def test_a_run_is_composed_once_and_each_job_that_is_left_once(monkeypatch, tmp_path, capsys):
    composed, jobs, load = [], [], ConfigLoaderImpl._load_configuration_impl
    monkeypatch.setattr(
        ConfigLoaderImpl, "_load_configuration_impl", lambda *args, **words: composed.append(1) or load(*args, **words)
    )

    def typed(*argv):
        composed.clear(), jobs.clear()
        monkeypatch.setattr(sys, "argv", ["src/train.py", *argv, f"log_dir='{tmp_path}'"])
        with contextlib.suppress(SystemExit):
            command.launch(train, "train")
        return len(composed)

    def train(cfg):
        jobs.append(cfg.seed)
        assert cfg.note in (None, cfg.seed)  # as it is resolved in each job
        Run(cfg.run_dir).update(status="finished")

    assert typed("seed=7") == 1 and jobs == [7]
    assert typed("-m", "seed=range(3)", "model=cnn,mlp", "note=${seed}") == 1 + 6 and jobs == [0, 0, 1, 1, 2, 2]
    (sweep,) = tmp_path.glob("sweep/*")
    for number, status in enumerate(["finished", "failed", "pruned", "stopped", "finished"]):
        write_json(sweep / str(number) / "run.json", {"status": status})
    assert typed("sweep=latest", "max_failures=2") == 1 + 1 and jobs == [1]
    assert "5 of 6 jobs are done already" in capsys.readouterr().out
    assert typed("sweep=latest", "retry_failed=true", "max_failures=2") == 1 + 1 and jobs == [0]
    assert typed("search=grid") == 1 + 4


def test_the_test_may_be_left_out(train):
    assert Run(train("test=false", folder="a")).metrics["test"] == {}
    assert Run(train(folder="b")).metrics["test"]["test/acc"] >= 0


@pytest.mark.parametrize("key", ["trainer.precision=17", "trainer.accelerator=foo", "checkpoint.mode=foo", "facts=3"])
def test_a_value_that_does_not_fit_is_a_sentence(train, key):
    with pytest.raises(UserError):
        train(key)


@pytest.mark.parametrize("key", ["trainer.limit_train_batches=0", "trainer.max_epochs=0"])
def test_a_run_without_a_step_says_so(train, key):
    with pytest.raises(UserError, match="Nothing was trained"):
        train(key)


@pytest.mark.parametrize("key", ["callbacks=[early_stopping]", "scheduler=plateau"])
def test_nothing_watches_validation_that_is_not_there(train, key):
    with pytest.raises(UserError, match="no validation"):
        train(key, "data.val_fraction=0")


@pytest.mark.parametrize("precision", ["bf16-true", "16-true", "64-true", "bf16-mixed"])
def test_each_precision_trains(train, precision):
    assert (train(f"trainer.precision={precision}", "model=cnn", "model.channels=[8]") / "metrics.json").exists()


@pytest.mark.slow
def test_the_number_of_workers_changes_no_weight(train):
    runs_of = [train(f"data.num_workers={n}", "model.dropout=0.5", folder=str(n)) for n in (0, 2)]
    first, second = (json.loads((run / "metrics.json").read_text())["weights_sha256"] for run in runs_of)
    assert first == second


def test_a_signal_before_the_run_leaves_nothing(tmp_path):
    line = [sys.executable, str(paths.PROJECT / "src" / "train.py"), *FAKE, f"log_dir='{tmp_path}'", "name=x"]
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "train" / "x").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM and "Traceback" not in said
    record = tmp_path / "train" / "x" / "run.json"
    assert not record.parent.exists() or json.loads(record.read_text())["status"] == "stopped"
