"""Every command of the README runs, and its examples are what they say."""

import json
import re
import shutil
import subprocess
import sys

import pytest
from PIL import Image

from leyden.run import paths

TEXT = (paths.PROJECT / "README.md").read_text(encoding="utf-8")
LINES = [line for block in re.findall(r"```bash\n(.*?)```", TEXT, re.S) for line in block.splitlines() if line.strip()]
MADE = re.findall(
    r"`(src/lab/\S+\.py|conf/\S+\.yaml)`(?:[^\n`]|`\$\{[^`]*`|\n(?!\n))*\n\n```(?:python|yaml)\n(.*?)```",
    TEXT,
    re.S,
)


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
        "src/lab/tasks/mixup.py", "conf/task/mixup.yaml", "src/lab/tasks/contrastive.py", "conf/task/contrastive.yaml",
        "conf/experiment/wide.yaml",
    }  # fmt: skip


@pytest.mark.slow
def test_the_commands_run(clone):
    """All in one process, which imports torch once."""
    driver = """
import contextlib, io, json, runpy, shlex, sys, traceback
sys.path.insert(0, "src")
done = {}
for line in json.load(sys.stdin):
    sys.argv, said = shlex.split(line, comments=True)[1:], io.StringIO()
    fast = [] if any(word in line for word in ("--help", "debug", "resume", "rerun")) else ["debug=fast"]
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


def test_two_readers_have_two_halves():
    """The first half is for who begins, the second one to look things up."""
    lines = TEXT.splitlines()
    assert lines.index("# Reference") <= 150 and len(lines) <= 450


def test_the_targets_are_in_the_list_of_make_help():
    help = subprocess.run(["make", "help"], cwd=paths.PROJECT, capture_output=True, text=True, check=True).stdout
    typed = set(re.findall(r"(?m)(?:^|`)make ([a-z]+)", TEXT))
    assert {"train", "test", "check"} <= typed <= {line.split()[0] for line in help.splitlines()}


def test_nothing_else_is_a_command():
    assert all(line.startswith(("make ", "python src/")) for line in LINES)


def test_the_groups_and_options_of_the_table_are_those_of_conf():
    groups = re.findall(r"^\| `(\w+)` \| `([\w ]+)` \|", TEXT, re.M)
    assert {"model", "data", "task"} <= {group for group, _ in groups}
    for group, options in groups:
        folder = paths.PROJECT / "conf" / group
        assert {path.stem for path in folder.glob("*.yaml") if path.stem[0] != "_"} == set(options.split()), group
