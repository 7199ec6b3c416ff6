import ast
import json
import shutil
import subprocess
import sys

import pytest
from PIL import Image

import report
from leyden import UserError
from leyden.run import paths
from leyden.run.run import Run
from synthetic import write


@pytest.fixture
def say(capsys, tmp_path):
    """What report.py prints for these arguments and the runs of tmp_path: on stdout and stderr."""

    def run(*arguments):
        report.report([*map(str, arguments), f"log_dir={tmp_path}"])
        return capsys.readouterr()

    return run


def sweep(folder, count=4):
    for n in range(count):
        lr, seed = (n // 2 + 1) / 1000, n % 2
        write(folder / str(n), 0.5 + n / 10, {"optimizer.lr": lr, "seed": seed})
    (folder / "multirun.yaml").write_text("hydra: {}\n")
    return folder


def test_the_newest_sweep_is_taken(say, tmp_path):
    sweep(tmp_path / "sweep" / "2026-01-01")
    write(tmp_path / "sweep" / "2026-01-02" / "0", 0.123)
    (tmp_path / "sweep" / "2026-01-03").mkdir()
    assert "0.1230" in say().out
    shutil.rmtree(tmp_path / "sweep" / "2026-01-02")
    lines = [line for line in say().out.splitlines() if line.startswith("|")]
    assert "2, 3" in lines[1] and "0.7500 ± 0.0707" in lines[1] and "0, 1" in lines[2]


def test_the_newest_sweep_is_the_one_that_began_last(say, tmp_path):
    """Its folder's name is of a clock that may stand hours ahead: a container beside its host, daylight saving."""
    write(tmp_path / "sweep" / "2026-01-02_20-00-00" / "0", 0.111, started="2026-01-02T20:00:00.000+12:00")
    write(tmp_path / "sweep" / "2026-01-02_09-00-00" / "0", 0.222, started="2026-01-02T09:00:00.000+00:00")
    assert "0.2220" in say().out and "0.1110" not in say().out


def test_several_places_names_and_conditions(say, tmp_path):
    sweep(tmp_path / "sweep" / "a")
    write(tmp_path / "train" / "exp1", 0.99)
    rows = json.loads(say(tmp_path / "sweep", "exp1", "--json").out)
    assert rows[0]["value"] == 0.99 and len(rows) == 3
    only = json.loads(say(tmp_path / "sweep", "--where", "optimizer.lr=1e-3", "--where", "seed=1", "--json").out)
    assert [row["value"] for row in only] == [0.6]
    Run(tmp_path / "sweep" / "a" / "3").update(status="failed")
    assert "failed" not in say(tmp_path / "sweep", "--where", "optimizer.lr=1e-3").out
    assert "test/acc first" in say(tmp_path / "sweep", "--metric", "test/acc").out


@pytest.mark.parametrize("form", ["csv", "json", "markdown", "latex"])
def test_a_form_is_alone_on_stdout(say, tmp_path, form):
    folder = sweep(tmp_path / "sweep" / "a")
    Run(folder / "1").update(status="failed")
    said = say(folder, f"--{form}", "--plot", tmp_path / "p.png")
    assert "failed: 1" in said.err and "failed: 1" not in said.out and (tmp_path / "p.png").exists()


def test_trouble_is_named_in_last_lines(say, tmp_path):
    folder = sweep(tmp_path / "sweep" / "a", 6)
    Run(folder / "1").update(status="failed", reason="ValueError: boom\nmore")
    Run(folder / "2").update(status="running")
    (folder / "3" / "config.yaml").write_text("{")
    assert say(folder).out.splitlines()[-3:] == [
        "failed: 1 (ValueError: boom more)",
        "killed: 2",
        "unknown: 3 (its files cannot be read)",
    ]


def test_a_list_of_names_ends_after_ten(say, tmp_path):
    for n in range(100):
        folder = tmp_path / "a" / str(n)
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("objective: val/acc\ndata: {}\ntask: {}\ntrainer: {}\n")
        (folder / "run.json").write_text('{"status": "failed", "reason": "x"}')
    assert "failed: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 90 more (x)" in say(tmp_path / "a").out.splitlines()


def test_nothing_finished_is_a_table_too(say, tmp_path):
    for n in range(2):
        write(tmp_path / "sweep" / "a" / str(n), None, {"seed": n}, status="failed", reason="x")
    assert "failed: 0, 1 (x)" in say().out


def test_two_runs_are_told_apart(say, tmp_path):
    sweep(tmp_path / "train")
    assert "optimizer.lr  0.001  ->  0.002" in say("--diff", "1", tmp_path / "train" / "2").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "no folder"), (["--metric", "val/ac"], "what there is: val/acc."), (["--where", "x"], "as "),
        (["--where", "optimizer.lr=7"], "No run has optimizer.lr=7"), (["--diff", "0"], "expected 2 arguments"),
        (["--diff", "0", "nowhere"], "no run directory"), (["--cvs"], "--help"), (["--csv", "--json"], "not allowed"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(script, tmp_path, arguments, said):
    sweep(tmp_path / "sweep" / "a")
    write(tmp_path / "train" / "0")
    status, _, sentence = script("report.py", *arguments, f"log_dir={tmp_path}")
    assert status == 2 and said in sentence and len(sentence.splitlines()) == 1, sentence


def test_no_sweep_is_a_mistake_that_says_what_to_type(tmp_path):
    with pytest.raises(UserError, match=r"report\.py .*train"):
        report.report([f"log_dir={tmp_path}"])


def test_two_hundred_runs_without_torch_or_hydra(tmp_path):
    sweep(tmp_path / "sweep" / "a", 200)
    code = f"import report, sys; report.report(['log_dir={tmp_path}']); "
    code += "print([name for name in ('torch', 'hydra', 'matplotlib') if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=paths.PROJECT / "src")
    assert ast.literal_eval(ended.stdout.splitlines()[-1]) == [], ended.stderr


@pytest.mark.slow
def test_a_real_sweep_ends_in_a_table_and_a_picture(script, tmp_path):
    small = ["data=fake", "data.num_samples=200", "model=mlp", "trainer.max_epochs=2", "threads=1"]
    status, _, errors = script("train.py", "-m", "optimizer.lr=1e-3,1e-2", "seed=0,1", *small, f"log_dir='{tmp_path}'")
    assert status == 0, errors
    status, table, errors = script("report.py", "--plot", str(tmp_path / "report.png"), f"log_dir='{tmp_path}'")
    assert status == 0 and "optimizer.lr" in table and "±" in table, errors
    header = next(line for line in table.splitlines() if line.startswith("|"))
    assert [cell.strip() for cell in header.strip("|").split("|")] == [
        "run", "optimizer.lr", "val/acc", "epoch", "test/acc", "n", "seconds", "samples/s", "status",
    ]  # fmt: skip
    colours = {colour for _, colour in Image.open(tmp_path / "report.png").convert("RGB").getcolors(2**24)}
    assert {(0, 107, 164), (255, 128, 14)} <= colours  # of the two best curves
