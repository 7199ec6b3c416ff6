"""What is proposed, and what the study is told; the jobs are written by hand."""

import json
import subprocess
import sys

import pytest

from leyden import UserError
from leyden.files import write_json
from leyden.run import paths
from leyden.run.run import Run
from leyden.search import search
from searches import NONE, TPE, end, space, started

optuna = pytest.importorskip("optuna")


def carry_out(found, value=lambda number: number / 10):
    """Run to the end; number -> overrides."""
    jobs = {}
    while proposed := found.propose(1):
        jobs |= proposed
        for number in proposed:
            end(found.directory, number, value=value(number))
        found.settle()
    return jobs


@pytest.mark.parametrize(
    ("text", "usual", "expected"),
    [
        ("a=interval(1,4)", 0.1, "FloatDistribution(high=4.0, log=False, low=1.0, step=None)"),
        ("a=interval(1,4)", 20, "IntDistribution(high=4, log=False, low=1, step=1)"),
        ("a=int(interval(1,4))", 0.1, "IntDistribution(high=4, log=False, low=1, step=1)"),
        ("a=tag(log,interval(1e-4,1e-1))", 0.1, "FloatDistribution(high=0.1, log=True, low=0.0001, step=None)"),
        ("a=tag(log,int(interval(1,100)))", 0.1, "IntDistribution(high=100, log=True, low=1, step=1)"),
        ("a=range(1,10,2)", 0.1, "IntDistribution(high=9, log=False, low=1, step=2)"),
        ("a=range(0.0,1.0,0.25)", 0.1, "FloatDistribution(high=0.75, log=False, low=0.0, step=0.25)"),
        ("a=choice(x,y)", "x", "CategoricalDistribution(choices=('x', 'y'))"),
        ("a=[1,2],[3]", [1], "CategoricalDistribution(choices=('[1,2]', '[3]'))"),
    ],
)
def test_a_range_of_hydra_is_a_distribution_of_optuna(text, usual, expected):
    assert str(space(text, usual)) == expected


def test_a_range_without_values_is_refused():
    with pytest.raises(UserError, match=r"a=interval\(3,1\)"):
        space("a=interval(3,1)")


@pytest.mark.parametrize("sampler", ["TPESampler", "RandomSampler", "CmaEsSampler"])
def test_a_search_that_is_stopped_after_each_trial_proposes_the_same(tmp_path, sampler):
    if sampler == "CmaEsSampler":
        pytest.importorskip("cmaes")
    node = {"_target_": f"optuna.samplers.{sampler}"}
    whole = carry_out(started(tmp_path / "whole", 14, node))
    pieces = {}
    for n in range(1, 15):
        pieces |= carry_out(started(tmp_path / "pieces", n, node))
    assert list(whole) == list(range(14)) and pieces == whole
    assert len({str(values) for values in whole.values()}) == 14
    assert carry_out(started(tmp_path / "other", 3, node, seed=2)) != {n: whole[n] for n in range(3)}
    assert carry_out(started(tmp_path / "whole", 14, node)) == {}


def test_what_became_of_a_job_is_told(tmp_path):
    found = started(tmp_path / "s", 6)
    numbers = list(found.propose(6))
    assert numbers == [0, 1, 2, 3, 4, 5] and not found.propose(1)
    end(tmp_path / "s", 0, value=0.75)
    end(tmp_path / "s", 1, "failed", None, "RuntimeError: boom")
    end(tmp_path / "s", 2, "finished", None)
    end(tmp_path / "s", 3, "pruned")
    end(tmp_path / "s", 4, "finished", float("nan"))
    end(tmp_path / "s", 5, "stopped")
    found.settle()
    trials = found.trials()
    assert [t.state.name for t in trials] == ["COMPLETE", "FAIL", "FAIL", "PRUNED", "FAIL", "RUNNING"]
    assert found.study.best_trial.number == 0 and found.study.best_value == 0.75


def test_a_trial_is_tried_again_when_its_process_is_gone(tmp_path):
    (first,) = started(tmp_path / "s", 2).propose(1).items()
    run = Run(tmp_path / "s" / "0")
    run.directory.mkdir()
    run.start()
    other = started(tmp_path / "s", 2)
    assert list(other.propose(2)) == [1]  # 0 is alive: this process has it
    run.update(pid_born="before")
    last = started(tmp_path / "s", 2)
    assert last.propose(1) == dict([first]) and list(last.propose(2)) == [1] and not last.propose(1)


def test_failed_trials_are_tried_again_when_asked_for(tmp_path):
    found = started(tmp_path / "s", 3)
    jobs = found.propose(3)
    for number, status in enumerate(("finished", "failed", "failed")):
        end(tmp_path / "s", number, status)
    assert not started(tmp_path / "s", 3).propose(1)
    again = started(tmp_path / "s", 3, retry=True)
    assert again.propose(3) == {1: jobs[1], 2: jobs[2]}
    end(tmp_path / "s", 1, value=0.9)
    again.settle()  # a trial that failed stays failed in the study; its run has its value
    assert [trial.state.name for trial in again.trials()] == ["COMPLETE", "FAIL", "FAIL"]
    more = started(tmp_path / "s", 4, retry=True)
    assert list(more.propose(3)) == [2, 3]


def test_a_trial_that_slurm_lost_is_tried_again_without_being_asked_for(tmp_path):
    found = started(tmp_path / "s", 2)
    jobs = found.propose(2)
    end(tmp_path / "s", 0, "failed", None, "SLURM says OUT_OF_MEMORY of its job 7_0")
    end(tmp_path / "s", 1, "failed", None, "RuntimeError: boom")
    assert not found.propose(2)  # not by the same process
    assert started(tmp_path / "s", 2).propose(2) == {0: jobs[0]}


def test_a_trial_without_a_job_fails(tmp_path):
    found = started(tmp_path / "s", 2)
    orphan = found.study.ask()  # as where a process is killed in between
    assert len(found.propose(2)) == 2
    assert found.trials()[orphan.number].state.name == "FAIL"


TWO = """
import sys, random, time
sys.path[:0] = [{src!r}, {tests!r}]
from contextlib import suppress
from pathlib import Path
from leyden.run.run import Busy, Run, Status
from searches import started, end
found = started(Path({directory!r}), 12, storage={storage!r}, name="shared")
while proposed := found.propose(1):
    for number in proposed:
        run = Run(found.directory / str(number))
        run.directory.mkdir(exist_ok=True)
        with suppress(Busy), run.claim():
            if run.status == Status.UNKNOWN:
                time.sleep(random.random() / 20)
                end(found.directory, number, value=number / 10)
                print(number, flush=True)
"""


def served(kind, tmp_path):
    """An URL of a storage, and what ends it."""
    if kind == "journal":
        return None
    if kind == "sqlite":
        return f"sqlite:///{tmp_path / 'study.db'}"
    pytest.importorskip("psycopg2")
    server = pytest.importorskip("pgserver").get_server(tmp_path / "pg")
    return server.get_uri().replace("postgresql:", "postgresql+psycopg2:")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["journal", "sqlite", "postgresql"])
def test_two_processes_share_a_study(tmp_path, kind):
    storage = served(kind, tmp_path)
    folders = [tmp_path / "s"] * 2 if storage is None else [tmp_path / "s", tmp_path / "t"]
    words = {"src": str(paths.PROJECT / "src"), "tests": str(paths.PROJECT / "tests"), "storage": storage}
    scripts = [TWO.format(directory=str(folder), **words) for folder in folders]
    both = [subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) for text in scripts]
    done = [list(map(int, process.communicate()[0].split())) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(done[0] + done[1]) == list(range(12)) and all(done)
    trials = started(folders[0], 12, storage=storage, name="shared").trials()
    assert [trial.value for trial in trials] == [number / 10 for number in range(12)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"sampler": {"_target_": "optuna.samplers.Nonsense"}}, "optuna.samplers.Nonsense cannot be built"),
        ({"storage": "sqlite:////nowhere/x.db"}, "hydra.sweeper.storage cannot be used"),
        ({"storage": "nonsense"}, "hydra.sweeper.storage cannot be used"),
    ],
)
def test_a_mistake_is_a_sentence(tmp_path, words, said):
    with pytest.raises(UserError) as refused:
        started(tmp_path / "s", 2, **words).propose(1)
    assert said in str(refused.value)


def test_a_study_of_another_direction_is_refused(tmp_path):
    url = f"sqlite:///{tmp_path / 'x.db'}"
    started(tmp_path / "s", 1, storage=url, name="a")
    with pytest.raises(UserError, match="maximize"):
        settings = {"n_trials": 1, "sampler": TPE, "pruner": NONE, "storage": url, "study_name": "a", "seed": 1}
        search.Search(tmp_path / "s", {}, "minimize", **settings)
    assert json.loads((tmp_path / "s" / "study.json").read_text())["name"] == "a"


def test_refused_ranges_leave_the_study_as_it_was(tmp_path):
    first = started(tmp_path / "s", 3)
    jobs = carry_out(first)
    with pytest.raises(UserError):
        started(tmp_path / "s", 5, lr=space("lr=choice(1,2)"), model=space("model=cnn,mlp")).propose(1)
    again = carry_out(started(tmp_path / "s", 5))
    assert len(jobs) == 3 and len(again) == 2 and not set(jobs) & set(again)


def test_a_sweep_that_was_moved_is_the_same_study(tmp_path):
    (tmp_path / "s").mkdir()
    write_json(tmp_path / "s" / "sweep.json", {"id": "s"})
    jobs = carry_out(started(tmp_path / "s", 2))
    (tmp_path / "s").rename(tmp_path / "elsewhere")
    assert sorted(jobs | carry_out(started(tmp_path / "elsewhere", 4))) == [0, 1, 2, 3]
    (tmp_path / "elsewhere" / "study.log").unlink()
    with pytest.raises(UserError, match="has a job that its study does not know"):
        started(tmp_path / "elsewhere", 6)


def test_a_file_of_sqlite_counts_from_the_project(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "PROJECT", tmp_path)
    carry_out(started(tmp_path / "s", 2, storage="sqlite:///x.db"))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert (tmp_path / "x.db").is_file() and list(carry_out(started(tmp_path / "s", 3, storage="sqlite:///x.db"))) == [
        2
    ]


def test_a_half_written_journal_is_repaired_and_a_damaged_one_named(tmp_path):
    jobs = carry_out(started(tmp_path / "s", 2))
    file = tmp_path / "s" / "study.log"
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"op_code": 4, "wor')
    assert sorted(jobs | carry_out(started(tmp_path / "s", 3))) == [0, 1, 2]
    for wrong in (b"nonsense\n", b"[]\n"):
        file.write_bytes(whole[:200] + wrong + whole[200:])
        with pytest.raises(UserError, match=r"study.log cannot be used"):
            started(tmp_path / "s", 4)
