"""Sweeps that fail, are stopped, go on, and end in an answer."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from hydra_plugins.search import conclude
from leyden import Failed, UserError
from leyden.files import read_json, write_json
from leyden.launch import sweeps
from leyden.launch.line import split
from leyden.run import paths
from leyden.run.run import Run

FAST = ["data=fake", "data.num_samples=200", "data.shape=[1,8,8]", "model=mlp", "trainer.max_epochs=2", "threads=1",
        "logger=[]"]  # fmt: skip
HALVING = ["hydra.sweeper.pruner._target_=optuna.pruners.SuccessiveHalvingPruner",
           "+hydra.sweeper.pruner.min_resource=1"]  # fmt: skip
SCORE = [
    "objective=val/score",
    "checkpoint.mode=max",
    "+callbacks.trouble._target_=trouble.Trouble",
    "+callbacks.trouble.lr=${optimizer.lr}",
]


def only(folder: Path) -> Path:
    (found,) = (folder / "logs" / "sweep").iterdir()
    return found


def jobs(sweep: Path) -> dict[int, dict]:
    return {int(path.parent.name): read_json(path) for path in sweep.glob("*/run.json")}


def weights(sweep: Path) -> dict[int, str]:
    return {int(path.parent.name): read_json(path)["weights_sha256"] for path in sweep.glob("*/metrics.json")}


@pytest.fixture
def cli(script, tmp_path):
    """A command in this process; its status and all that it printed."""

    def run(*keys):
        status, out, errors = script("train.py", *keys, f"log_dir='{tmp_path / 'logs'}'")
        return status, out + errors

    return run


@pytest.fixture
def typed(command):
    """A command in a process that finds `trouble`."""
    path = os.pathsep.join([str(paths.PROJECT / "tests"), os.environ.get("PYTHONPATH", "")])
    return lambda *keys: command("train.py", *keys, env=os.environ | {"PYTHONPATH": path})


# which jobs


def test_a_job_keeps_its_number(tmp_path):
    first = [["a=1", "b=1"], ["a=1", "b=2"]]
    assert sweeps.numbered(tmp_path, first) == {0: first[0], 1: first[1]}
    more = [["a=1", "b=2"], ["a=1", "b=3", "retry_failed=true", "hydra.sweep.subdir=9"], ["a=1", "b=1"]]
    assert list(sweeps.numbered(tmp_path, more)) == [1, 2, 0]
    assert list(sweeps.numbered(tmp_path, [["b=3", "a=1"], ["threads=1"], ["threads=2"]])) == [2, 3, 4]


def test_what_is_typed_wins_over_what_a_sweep_was_started_with(tmp_path):
    sweep, keys = tmp_path / "sweep" / "x", ["a=1", "+b=2", "retry_failed=true"]
    sweep.mkdir(parents=True)
    with sweeps.kept(sweep, split(["-m", "-cn", "mine", *keys], "train")):
        pass
    (tmp_path / "sweep" / "y").mkdir()
    write_json(tmp_path / "sweep" / "y" / "sweep.json", {"jobs": []})  # of eval.py
    line = split(["b=3", "c=4", "stop_on_failure=true"], "train")
    assert sweeps.go_on(line, "latest", tmp_path) == sweep
    assert line.keys == ["a=1", "b=3", "c=4", "stop_on_failure=true"] and line.multirun
    assert line.config == "mine"
    assert sweeps.go_on(split([], "train"), str(sweep), tmp_path) == sweep
    for asked in ("z", str(tmp_path)):
        with pytest.raises(UserError, match=r"sweep=latest"):
            sweeps.go_on(line, asked, tmp_path)
    with pytest.raises(UserError, match=r"train.py -m"):
        sweeps.go_on(line, "latest", tmp_path / "empty")


@pytest.mark.parametrize(
    "wrong",
    ["+callbacks.x._target_=subprocess.Popen", "+callbacks.x={_target_:subprocess.Popen}", "trusted=[x]", "+own.0=x",
     "hydra.sweeper.storage=sqlite:////tmp/x.db", "hydra.sweeper.storage=postgresql://a/b",
     "hydra.callbacks.x=1", "+hydra={}", "hydra/callbacks=x", "hydra.searchpath=[/x]", "hydra.sweep.dir=/x",
     "hydra.sweeper._target_=x.X", "hydra.sweeper.sampler._target_=subprocess.Popen", "hydra.sweeper.sampler={a:1}",
     "hydra.sweeper.pruner=${model}", "+hydra.sweeper.params.trusted=[x]", "+hydra.sweeper.params.hydra/callbacks=x",
     "hydra.launcher._target_=x.X", "hydra.launcher.setup=[x]", "hydra.launcher.partition='x\nrm'",
     "+hydra.launcher.additional_parameters.prolog=x", "model=../../x", "model=${x}", "+callbacks=[../x]",
     "model/../../x=y", "hydra/launcher=../x", "model@hydra.callbacks=cnn", "--config-dir=/x", "-cd"],
)  # fmt: skip
def test_what_could_run_anything_is_not_taken_from_a_sweep(tmp_path, wrong):
    write_json(tmp_path / "sweep.json", {"keys": ["a=1", wrong]})
    line = split(["b=1"], "train")
    with pytest.raises(UserError, match=r"sweep.json has .*type it again"):
        sweeps.go_on(line, str(tmp_path), tmp_path)
    assert line.keys == ["b=1"]


@pytest.mark.parametrize("config", ["../x", "/x", "a/../../x", "a b"])
def test_a_config_from_elsewhere_is_not_taken_from_a_sweep(tmp_path, config):
    write_json(tmp_path / "sweep.json", {"keys": ["a=1"], "config": config})
    with pytest.raises(UserError, match=r"sweep.json has .*type it again"):
        sweeps.go_on(split([], "train"), str(tmp_path), tmp_path)
    line = split(["-cn", "mine", "--config-dir", "/y"], "train")
    sweeps.go_on(line, str(tmp_path), tmp_path)
    assert line.config == "mine" and line.flags["--config-dir"] == "/y"


def test_what_a_sweep_may_have_stored_and_what_is_typed_again_counts(tmp_path):
    kept = ["model=cnn,mlp", "+data.x=[1,2]", "~logger", "+a.b=${c}", "search=optuna", "hydra/launcher=joblib",
            "hydra.launcher.n_jobs=-1", "hydra.sweeper.storage='sqlite:///x.db'", "+hydra.launcher.partition=x",
            "hydra.sweeper.sampler._target_=optuna.samplers.RandomSampler"]  # fmt: skip
    write_json(tmp_path / "sweep.json", {"keys": [*kept, "trusted=[x]", "model._target_=x.X"]})
    line = split(["trusted=[mine]", "model._target_=y.Y"], "train")
    sweeps.go_on(line, str(tmp_path), tmp_path)
    assert line.keys == [*kept, "trusted=[mine]", "model._target_=y.Y"]


# one job


@pytest.mark.parametrize(
    ("status", "retry", "tried"),
    [("finished", True, False), ("pruned", True, False), ("failed", False, False), ("failed", True, True),
     ("stopped", False, True), ("running", False, True), (None, False, True)],
)  # fmt: skip
def test_a_job_is_tried_where_something_is_left_to_do(tmp_path, status, retry, tried):
    cfg = OmegaConf.create({"retry_failed": retry, "objective": "val/acc"})
    if status:
        write_json(tmp_path / "run.json", {"status": status})
        Run(tmp_path).write_metrics({"best": {"objective": 0.5}})
    called = []
    value = sweeps.attempt(tmp_path, cfg, lambda cfg, apart: called.append(apart) or 0.75)
    assert called == ([status == "running"] if tried else [])  # a killed one gets a process of its own
    assert value == (0.75 if tried else None)


@pytest.mark.parametrize("what", ["SLURM says OUT_OF_MEMORY of its job 7_3", "rank 1, 3 was lost; see SLURM"])
def test_a_job_that_slurm_lost_is_tried_again(tmp_path, what):
    """Without retry_failed=true: it was not its own fault."""
    sweeps.fail(tmp_path / "3", UserError(what))
    assert Run(tmp_path / "3").status == "failed"
    cfg = OmegaConf.create({"retry_failed": False, "objective": "val/acc"})
    assert sweeps.attempt(tmp_path / "3", cfg, lambda cfg, apart: 0.75) == 0.75


def test_a_job_that_is_refused_before_it_goes_on_stays_as_it_was(tmp_path, capsys):
    def refuse(cfg, apart):
        raise UserError("the data has changed")

    cfg = OmegaConf.create({"retry_failed": False})
    write_json(tmp_path / "run.json", {"status": "stopped"})
    assert sweeps.attempt(tmp_path, cfg, refuse) is None
    assert Run(tmp_path).record == {"status": "stopped"} and not (tmp_path / "train.log").exists()
    assert "the data has changed" in capsys.readouterr().out


def test_a_failed_job_says_why_and_ends_alone(tmp_path, capsys):
    def fail(cfg, apart):
        raise MemoryError("no room")

    cfg = OmegaConf.create({"stop_on_failure": False})
    assert sweeps.attempt(tmp_path, cfg, fail) is None and "failed: MemoryError: no room" in capsys.readouterr().out
    assert Run(tmp_path).record["reason"] == "MemoryError: no room"
    cfg = OmegaConf.create({"stop_on_failure": True, "retry_failed": True})
    with pytest.raises(SystemExit) as left:
        sweeps.attempt(tmp_path, cfg, fail)
    assert left.value.code == 1


def test_the_end_counts_failures(tmp_path, capsys):
    for number, status in enumerate(["finished", "failed", "pruned", "failed"]):
        (tmp_path / str(number)).mkdir()
        write_json(tmp_path / str(number) / "run.json", {"status": status})
        (tmp_path / str(number) / "config.yaml").write_text("seed: 1\n" * (status != "failed"))
    conclude(tmp_path, 2)
    assert "jobs: 2 failed, 1 finished, 1 pruned" in capsys.readouterr().out
    with pytest.raises(Failed, match="Failed jobs: 1, 3;"):
        conclude(tmp_path, 1)


HOLDS = """
import sys, time
sys.path[:0] = [{src!r}]
from leyden.run.run import Run
with Run({directory!r}).claim():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_job_that_another_process_is_starting_is_left_to_it(tmp_path, capsys):
    text = HOLDS.format(src=str(paths.PROJECT / "src"), directory=str(tmp_path))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", text], **pipes) as other:
        assert other.stdout.readline() == "held\n"
        cfg = OmegaConf.create({"stop_on_failure": True})
        assert sweeps.attempt(tmp_path, cfg, lambda cfg, apart: pytest.fail("started")) is None
        assert "not started" in capsys.readouterr().out and not (tmp_path / "run.json").exists()
        other.communicate()


def test_what_is_refused_changes_nothing(tmp_path):
    with sweeps.kept(tmp_path, split(["a=1"], "train")):
        pass
    for error, kept in ((UserError("no"), ["a=1"]), (Failed("two jobs"), ["a=2"])):
        with pytest.raises(UserError), sweeps.kept(tmp_path, split(["a=2"], "train")):
            raise error
        assert read_json(tmp_path / "sweep.json")["keys"] == kept


# whole sweeps


@pytest.mark.slow
def test_a_grid_goes_on_with_new_values(cli, tmp_path):
    assert cli("-m", "seed=0,1", *FAST)[0] == 0
    before = {path: path.stat().st_mtime_ns for path in only(tmp_path).glob("[01]/metrics.json")}
    status, said = cli("sweep=latest", "seed=range(3)")
    assert status == 0 and "2 of 3 jobs are done already" in said and "jobs: 3 finished" in said
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert [record["seed"] for _, record in sorted(jobs(only(tmp_path)).items())] == [0, 1, 2]
    status, said = cli("sweep=latest")  # as it was last
    assert status == 0 and "jobs: 3 finished" in said and "3 of 3 jobs are done already" in said


@pytest.mark.slow
def test_failures_are_tried_again_when_asked_for(cli, tmp_path):
    wrong = ["-m", "checkpoint.monitor=val/acc,val/nonsense_acc", *FAST]
    status, said = cli(*wrong, "max_failures=1")
    assert status == 0 and "job 1 failed: checkpoint.monitor=val/nonsense_acc is not logged" in said
    status, said = cli("sweep=latest")
    assert status == 1 and "Failed jobs: 1;" in said and "retry_failed=true" in said
    status, said = cli("sweep=latest", "retry_failed=true")
    assert status == 1 and "job 1 failed" in said and len(jobs(only(tmp_path))) == 2
    status, said = cli("-m", "checkpoint.monitor=val/nonsense_acc,val/acc", *FAST, "stop_on_failure=true")
    assert status == 1 and "jobs: 1 failed" in said


@pytest.mark.slow
def test_a_search_needs_no_flag_and_its_yaml_is_checked(cli, tmp_path):
    status, said = cli("search=grid", *FAST, "trainer.max_epochs=1")
    assert status == 0 and "jobs: 4 finished" in said
    assert [job["overrides"][-1] for _, job in sorted(jobs(only(tmp_path)).items())] != []
    assert cli("search=optuna", "model=cnn,mlp", "--cfg", "job")[0] == 0
    for wrong, word in (
        (["search=optuan"], "did you mean optuna?"),
        (["search=optuna", "hydra.sweeper.n_trials=many"], "whole number"),
        (["search=optuna", "optimizer.lr=1e-3"], "nothing to search"),
        (["search=grid", "optimizer.lr=interval(1e-4,1e-2)"], "type search=optuna"),
        (["search=grid", "+hydra.sweeper.params.modl=cnn"], "type the key itself"),
        (["sweep=nowhere"], "sweep=latest"),
        (["sweep=latest", "resume=latest"], "exclude each other"),
        (["search=optuna", "hydra.sweeper.pruner=null"], "a node with a _target_"),
        (["search=optuna", "hydra.sweeper.n_jobs=0"], "at least 1"),
        (["search=optuna", "optimizer.lr=range(1,1)"], "has no values"),
    ):
        status, said = cli(*wrong)
        assert status == 2 and word in said and "Traceback" not in said, said
    assert len(list((tmp_path / "logs" / "sweep").iterdir())) == 1


@pytest.mark.slow
def test_a_search_prunes_and_ends_with_the_best(cli, tmp_path):
    status, said = cli("search=optuna", *FAST, "trainer.max_epochs=4", "hydra.sweeper.n_trials=6", *HALVING)
    assert status == 0
    found = jobs(only(tmp_path))
    pruned = [n for n, job in found.items() if job["status"] == "pruned"]
    assert pruned and len(found) == 6 and f"{len(pruned)} pruned" in said
    for number in found:
        rows = list(csv.DictReader((only(tmp_path) / str(number) / "metrics.csv").open()))
        assert (len({row["epoch"] for row in rows}) < 4) == (number in pruned)
        assert bool(Run(only(tmp_path) / str(number)).metrics["test"]) == (number not in pruned)


@pytest.mark.slow
def test_a_search_of_troubles_is_whole_in_the_end(typed, cli, tmp_path):
    trouble = [
        f"+callbacks.trouble.{k}" for k in ("raises=[1]", "nan=[2]", "killed=[3]", "stopped=[5]", f"flags='{tmp_path}'")
    ]
    first = typed("search=optuna", *FAST, *SCORE, *trouble, "hydra.sweeper.n_trials=7")
    assert first.returncode == -signal.SIGKILL
    second = typed("sweep=latest", SCORE[2])  # a `_target_` counts only where it is typed
    assert second.returncode == 128 + signal.SIGTERM
    sweep = only(tmp_path)
    assert [jobs(sweep)[n]["status"] for n in range(6)] == [
        "finished", "failed", "finished", "failed", "finished", "stopped",
    ]  # fmt: skip
    status, said = cli("sweep=latest", SCORE[2])
    assert status == 1 and "Failed jobs: 1, 3;" in said, said
    found = jobs(sweep)
    assert sorted(found) == list(range(7)) and found[5]["status"] == "finished" and len(found[5]["resumes"]) == 1
    for number, word in ((1, "boom"), (3, "signal 9")):
        assert word in found[number]["reason"]
    assert "Traceback" in (sweep / "1" / "train.log").read_text()
    score = {n: Run(sweep / str(n)).metrics["best"]["value"] for n in (0, 4, 5, 6)}
    assert f" {max(score, key=score.get)} | " in said.split("best val/score first")[1].splitlines()[4]
    assert cli("sweep=latest", SCORE[2], "max_failures=2")[0] == 0 and jobs(sweep) == found


@pytest.mark.slow
def test_two_processes_do_each_job_once_and_a_killed_one_goes_on_exactly(cli, script, tmp_path):
    line, where = [sys.executable, str(paths.PROJECT / "src" / "train.py")], f"log_dir='{tmp_path / 'logs'}'"
    first = subprocess.Popen([*line, "-m", "seed=range(5)", *FAST, "trainer.max_epochs=30", where])
    while not list(tmp_path.glob("logs/sweep/*/1/checkpoints/last.ckpt")):
        time.sleep(0.05)
    second = subprocess.Popen([*line, "sweep=latest", where], stdout=subprocess.PIPE)
    time.sleep(4)
    first.kill()
    said = second.communicate()[0].decode()
    assert second.returncode in (0, 1), said  # 1: it had passed over the killed job while that was running
    status, said = cli("sweep=latest")
    assert status == 0 and "jobs: 5 finished" in said, said
    found = jobs(only(tmp_path))
    assert [found[n]["seed"] for n in range(5)] == list(range(5))
    assert script("train.py", *FAST, "trainer.max_epochs=30", "seed=1", "name=alone", where)[0] == 0
    expected = Run(tmp_path / "logs" / "train" / "alone").metrics["weights_sha256"]
    assert weights(only(tmp_path))[1] == expected


@pytest.mark.stress
def test_jobs_at_a_time_divide_the_cores_and_survive_a_kill(typed, tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    keys = [key for key in FAST if not key.startswith("threads")]
    swept = typed("search=optuna", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweeper.n_trials=2",
                  *keys, *SCORE, "+callbacks.trouble.killed=[1]")  # fmt: skip
    found = jobs(only(tmp_path))
    assert swept.returncode == 1 and "Failed jobs: 1;" in swept.stderr, swept.stderr
    assert [found[n]["status"] for n in range(2)] == ["finished", "failed"]
    if "OMP_NUM_THREADS" not in os.environ:
        assert found[0]["threads"] == max(1, os.cpu_count() // 2)
    assert "signal 9" in found[1]["reason"]


@pytest.mark.stress
def test_a_search_prunes_runs_of_two_processes(command, tmp_path):
    swept = command(
        "train.py", "search=optuna", "trainer=ddp", *FAST, "hydra.sweeper.n_trials=3", "trainer.max_epochs=3", *HALVING
    )
    assert swept.returncode == 0, swept.stderr
    found = jobs(only(tmp_path))
    assert len(found) == 3 and {job["world_size"] for job in found.values()} == {2}
    assert "pruned" in {job["status"] for job in found.values()}


@pytest.mark.slow
def test_names_that_a_glob_finds(cli, tmp_path):
    status, said = cli("-m", "experiment=glob(digits*)", "debug=fast", "threads=1")
    assert status == 0 and "jobs: 3 finished" in said
    assert "experiment=digits_resnet" in json.loads((only(tmp_path) / "sweep.json").read_text())["jobs"][2]


@pytest.mark.stress
def test_twenty_trials_with_troubles_continued_by_two_at_once(typed, tmp_path):
    trouble = [f"+callbacks.trouble.{k}" for k in ("raises=[3,8]", "nan=[5]", "killed=[11]", "stopped=[14]")]
    first = typed("search=optuna", *FAST, *SCORE, *trouble, f"+callbacks.trouble.flags='{tmp_path}'")
    assert first.returncode == -signal.SIGKILL and typed("sweep=latest", SCORE[2]).returncode == 128 + signal.SIGTERM
    line = [sys.executable, str(paths.PROJECT / "src" / "train.py"), "sweep=latest", SCORE[2],
            f"log_dir='{tmp_path / 'logs'}'"]  # fmt: skip
    env = os.environ | {"PYTHONPATH": str(paths.PROJECT / "tests")}
    both = [subprocess.Popen(line, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        process.communicate()
    ended = typed("sweep=latest", SCORE[2], "max_failures=3")
    found, (sweep,) = jobs(only(tmp_path)), (tmp_path / "logs" / "sweep").iterdir()
    assert ended.returncode == 0 and "jobs: 17 finished, 3 failed" in ended.stdout, ended.stdout
    assert sorted(found) == list(range(20)) and all(len(job["resumes"]) <= 1 for job in found.values())
    assert len({str(job["overrides"]) for job in found.values()}) == 20
    scores = {n: Run(sweep / str(n)).metrics.get("best", {}).get("value") or 0 for n in found}
    best = max((n for n in found if found[n]["status"] == "finished"), key=scores.get)
    assert f"| {best} " in ended.stdout.split("best val/score first")[1].splitlines()[4]


@pytest.mark.stress
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not say what a process has")
@pytest.mark.parametrize("line", [["-m", "seed=range(100)"], ["search=optuna", "hydra.sweeper.n_trials=100"]])
def test_the_hundredth_job_needs_no_more_memory_than_the_fifth(typed, tmp_path, line):
    """With 4 million parameters each: what one job left, weights and moments, would be 50 MB."""
    big = ["model.hidden=[2000,2000]", "trainer.max_epochs=1", "trainer.enable_checkpointing=false"]
    watch = ["+callbacks.resident._target_=trouble.Resident"]
    swept = typed(*line, *FAST[:4], *big, *FAST[5:], *watch)
    assert swept.returncode == 0, swept.stderr
    memory = [int(line) for line in (only(tmp_path) / "memory.txt").read_text().split()]
    assert len(memory) == 100 and memory[99] - memory[4] < 100, memory
