"""Every command of the README runs, and its examples are what they say."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from PIL import Image

from leyden.run import paths

TEXT = (paths.PROJECT / "README.md").read_text(encoding="utf-8")
LINES = [line for block in re.findall(r"```bash\n(.*?)```", TEXT, re.S) for line in block.splitlines() if line.strip()]
MADE = re.findall(
    r"`(src/lab/\S+\.py|conf/\S+\.yaml)`(?:[^\n`]|`\$\{[^`]*`|\n(?!\n))*\n\n```(?:python|yaml)\n(.*?)```",
    TEXT,
    re.S,
)


MADE += [(path, f"{line}\n") for path, line in re.findall(r"`(conf/\S+\.yaml)` is the line `(.*)`\.", TEXT)]


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A copy of the project with the files that the README shows."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("src", "conf"):
        shutil.copytree(paths.PROJECT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path, text in MADE:
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    for number in range(40):
        path = folder / "photos" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (60, 40), (6 * number, 90, 200)).save(path)
    return folder


def test_the_examples_are_found():
    assert {path for path, _ in MADE} >= {
        "src/lab/models/linear.py", "conf/model/linear.yaml", "src/lab/data/stripes.py", "conf/data/stripes.yaml",
        "src/lab/tasks/one_vs_rest.py", "conf/task/one_vs_rest.yaml", "src/lab/data/signs.py", "conf/data/signs.yaml",
        "src/lab/tasks/multilabel.py", "conf/task/multilabel.yaml",
    }  # fmt: skip


@pytest.mark.slow
def test_the_commands_run(clone):
    """All in one process, which imports torch once; the task of several labels trains to its end."""
    driver = """
import contextlib, io, json, runpy, shlex, sys, traceback
sys.path.insert(0, "src")
done = {}
for line in json.load(sys.stdin):
    sys.argv, said = shlex.split(line, comments=True)[1:], io.StringIO()
    whole = ("--help", "debug", "resume", "rerun", "name=labels")
    fast = [] if any(word in line for word in whole) else ["debug=fast"]
    fast = fast if "train.py" in line else []
    fast = ["rounds=1", "steps=2"] if "benchmark.py" in line else fast
    sys.argv += fast
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            runpy.run_path(sys.argv[0], run_name="__main__")
        done[line] = [0, said.getvalue()]
    except SystemExit as left:
        done[line] = [left.code or 0, said.getvalue()]
    except BaseException:
        done[line] = [1, said.getvalue() + traceback.format_exc()]
json.dump(done, open("done.json", "w"))
"""
    # tests/test_scripts.py runs trainer=ddp, test_benchmark.py scale=true, which takes minutes
    left_out = "trainer=ddp", "scale=true"
    lines = [line for line in LINES if "python src/" in line and not any(word in line for word in left_out)]
    lines = json.dumps(lines)
    subprocess.run([sys.executable, "-c", driver], cwd=clone, input=lines, text=True, check=True)
    done = json.loads((clone / "done.json").read_text())
    assert len(done) > 20
    assert {line: said for line, (status, said) in done.items() if status} == {}
    assert json.loads((clone / "logs/train/labels/metrics.json").read_text())["test"]["test/auroc_macro"] > 0.9
    assert (clone / "labels.csv").read_text().splitlines()[0] == "name,label_0,label_1,label_2,label_3,error"


def test_the_lock_has_what_is_needed_with_hashes_and_no_addresses():
    lock = (paths.PROJECT / "requirements.lock").read_text()
    found = dict(re.findall(r"^([a-z0-9-]+)==(\S+)[^\n]*\\\n    --hash=sha256:", lock, re.M))
    assert "://" not in lock and len(found) == len(re.findall(r"^\S+==", lock, re.M))
    project = tomllib.loads((paths.PROJECT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for text in (*project["dependencies"], *extras["search"], *extras["launchers"], *extras["test"], *extras["dev"]):
        needed = Requirement(text)
        assert needed.name == "leyden" or found[needed.name] in needed.specifier, text


@pytest.mark.slow
def test_a_line_of_bash_completes_groups_and_keys():
    (line,) = re.findall(r"`(eval \"\$\(python src/train.py -sc [^`]*)`", TEXT)
    ask = """COMP_LINE="python src/train.py $0" COMP_WORDS=(python src/train.py "$0") COMP_CWORD=2
COMP_POINT=${#COMP_LINE}; hydra_bash_completion; echo "${COMPREPLY[@]}" """
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for typed, offered in (("model=c", "model=cnn"), ("trainer.max_e", "trainer.max_epochs=")):
        bash = ["bash", "-c", f"{line}\n{ask}", typed]
        assert subprocess.check_output(bash, text=True, cwd=paths.PROJECT, env=env).split() == [offered]


def test_two_readers_have_two_halves():
    """The first half is for who begins, the second one to look things up."""
    lines = TEXT.splitlines()
    assert lines.index("# Reference") <= 150 and len(lines) <= 450


def test_the_targets_are_in_the_list_of_make_help():
    help = subprocess.run(["make", "help"], cwd=paths.PROJECT, capture_output=True, text=True, check=True).stdout
    typed = set(re.findall(r"(?m)(?:^|`)make ([a-z]+)", TEXT))
    assert {"train", "test", "check"} <= typed <= {line.split()[0] for line in help.splitlines()}


def test_make_installs_what_a_target_needs_and_what_is_locked():
    def printed(*arguments):
        line = ["make", "-n", *arguments]
        return subprocess.run(line, cwd=paths.PROJECT, capture_output=True, text=True, check=True).stdout

    for target, extra in (("train", ""), ("test", "[test]"), ("check", "[dev]")):
        assert f"-e '.{extra}'" in printed(target) and f"Installing Leyden{extra} into" in printed(target)
    first, _, then = printed("train", "LOCKED=1").partition(" && ")
    assert (
        "--require-hashes -r requirements.lock" in first and "--no-deps" in then and "cmp -s requirements.lock" in first
    )


def test_nothing_else_is_a_command():
    assert all(line.startswith(("make ", "python src/")) for line in LINES)


def test_the_groups_and_options_of_the_table_are_those_of_conf():
    groups = re.findall(r"^\| `(\w+)` \| `([\w ]+)` \|", TEXT, re.M)
    assert {"model", "data", "task"} <= {group for group, _ in groups}
    for group, options in groups:
        folder = paths.PROJECT / "conf" / group
        assert {path.stem for path in folder.glob("*.yaml") if path.stem[0] != "_"} == set(options.split()), group
