import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from leyden import UserError
from leyden.run import runs


def test_launches_of_one_moment_get_directories_of_their_own(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: runs.create(tmp_path), range(64)))
    assert len(set(made)) == 64
    assert not any(set(path.name) & set("=:, ") for path in made)


def test_a_name_is_used_once(tmp_path):
    runs.create(tmp_path, "exp1")
    with pytest.raises(UserError, match="exp1"):
        runs.create(tmp_path, "exp1")


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="log_dir"):
        runs.create(tmp_path / "file")


def test_latest_is_the_newest_start(tmp_path):
    with pytest.raises(UserError, match="no run"):
        runs.find("latest", tmp_path)
    for name, started in (("b", "2026-01-02"), ("a", "2026-01-03"), ("c", "2026-01-01")):
        (tmp_path / "train" / name).mkdir(parents=True)
        (tmp_path / "train" / name / "config.yaml").write_text("{}")
        (tmp_path / "train" / name / "checkpoints").mkdir()
        (tmp_path / "train" / name / "checkpoints" / "last.ckpt").write_text("")
        runs.write_json(tmp_path / "train" / name / "run.json", {"started": started})
    (tmp_path / "train" / "c" / "run.json").write_text('{"half')
    assert runs.find("latest", tmp_path).name == "a"
    (tmp_path / "train" / "a" / "checkpoints" / "last.ckpt").unlink()  # it failed before it saved
    assert runs.find("latest", tmp_path).name == "b"
    (tmp_path / "train" / "b" / "checkpoints" / "last.ckpt").unlink()
    assert runs.find("b", tmp_path).name == "b"
    assert runs.find(str(tmp_path / "train" / "b" / "checkpoints" / "x.ckpt"), tmp_path).name == "b"
    with pytest.raises(UserError, match="has no checkpoint"):
        runs.checkpoint("b", tmp_path / "train" / "b")
    with pytest.raises(UserError, match="no run directory"):
        runs.find("nosuch", tmp_path)


def test_json_is_whole_or_old(tmp_path):
    path = tmp_path / "run.json"
    runs.write_json(path, {"a": 1})
    runs.update(tmp_path, b=2)
    assert runs.read_json(path) == {"a": 1, "b": 2}
    with pytest.raises(TypeError):
        runs.write_json(path, {"a": object()})
    assert runs.read_json(path) == {"a": 1, "b": 2}


def test_no_torch_is_imported():
    code = (
        "import sys, leyden.launch.command, leyden.launch.plan, leyden.launch.ranks; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": str(runs.PROJECT / "src")})


def test_the_newest_unfinished_run_is_found(tmp_path):
    for name, status in (("a", "stopped"), ("b", "failed"), ("c", "finished"), ("d", "running")):
        (tmp_path / "train" / name).mkdir(parents=True)
        (tmp_path / "train" / name / "config.yaml").write_text("{}")
        record = {"started": f"2026-01-0{'abcd'.index(name) + 1}", "status": status, "host": "elsewhere"}
        runs.write_json(tmp_path / "train" / name / "run.json", record | {"heartbeat": runs.now()})
    assert runs.find("latest", tmp_path, unfinished=True).name == "b"
    runs.update(tmp_path / "train" / "d", heartbeat="2026-01-01T00:00:00+00:00")
    assert runs.find("latest", tmp_path, unfinished=True).name == "d"


def test_a_directory_is_held_by_one_process(tmp_path):
    other = (
        f"from leyden import runs; from pathlib import Path\nwith runs.claim(Path({str(tmp_path)!r})): print('held')"
    )
    line = [sys.executable, "-c", other]
    env = os.environ | {"PYTHONPATH": str(runs.PROJECT / "src")}
    with runs.claim(tmp_path):
        refused = subprocess.run(line, env=env, capture_output=True, text=True)
        assert refused.returncode and "is being started by another process" in refused.stderr
    assert subprocess.run(line, env=env, capture_output=True, text=True).stdout == "held\n"


def test_a_row_of_numbers_is_a_line_of_json(tmp_path):
    content = {"confusion": [[1, 20], [-3, 4e-05]], "line": "data.shape=[1,  8]", "none": [], "words": ["a", "[\n1]"]}
    runs.write_json(tmp_path / "a.json", content)
    assert runs.read_json(tmp_path / "a.json") == content
    assert "[1, 20]" in (tmp_path / "a.json").read_text()


def test_the_lowest_classes_are_told_in_a_line(tmp_path):
    test = {
        "test/acc": 0.5,
        "test/acc/b": 0.75,
        "test/acc/a": 0.25,
        "confusion": [[1]],
        "checkpoint": None,
        "samples": 4,
    }
    assert "test/acc 0.5000\nby class, lowest first: a 0.250, b 0.750\ntested" in runs.table({"test": test}, tmp_path)
    many = {f"test/acc/{i}": i / 20 for i in range(20)} | {"checkpoint": None, "samples": 4}
    assert "9 0.450, ...\n" in runs.table({"test": many}, tmp_path)
