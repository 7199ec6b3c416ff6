"""What a user does to `lab`: delete what is not used, and give the folder another name."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from leyden.run import paths

DELETED = ("models/vit", "data/diabetes", "callbacks/ema", "ops")  # one of each kind, with its YAML and its test
REST = """
import ast, importlib, sys
from pathlib import Path

sys.path[:0] = ["src", "tests"]
from hydra import compose, initialize_config_dir
from hydra.utils import get_object
from omegaconf import OmegaConf
from test_conf import CONF, SINGLE

def targets(node):
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else []:
        yield from [value] if key == "_target_" else targets(value)

for path in Path("src/mine").rglob("*.py"):
    importlib.import_module(".".join(path.relative_to("src").with_suffix("").parts).removesuffix(".__init__"))
for path in Path("tests").rglob("test_*.py"):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mine."):
            assert importlib.util.find_spec(node.module), f"{path} imports {node.module}"
assert CONF.is_relative_to(Path.cwd())
for choice in SINGLE:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = OmegaConf.to_container(compose("train", [choice]), resolve=False)
    for target in targets(cfg):
        if target.startswith("mine."):
            get_object(target)
assert not [name for name in sys.modules if name.split(".")[0] == "lab"]
print(len(SINGLE), "options")
"""


@pytest.mark.slow
def test_the_rest_imports_and_composes(tmp_path):
    for name in ("src", "conf", "tests"):
        shutil.copytree(paths.PROJECT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    texts = {path: path.read_text() for path in (tmp_path / "conf").rglob("*.yaml")}
    for part in DELETED:
        place, name = tmp_path / "src" / "lab" / part, part.rpartition("/")[2]
        modules = [path.stem for path in place.glob("*.py")] or [name]
        shutil.rmtree(place) if place.is_dir() else place.with_suffix(".py").unlink()
        for path in (path for stem in modules for path in (tmp_path / "tests").rglob(f"test_{stem}.py")):
            path.unlink()
        for path, text in texts.items():
            if f"lab.{part.replace('/', '.')}." in text or re.search(rf"override /\w+: \[?{name}\b", text):
                path.unlink()
    (tmp_path / "src" / "lab").rename(tmp_path / "src" / "mine")
    for path in [*(tmp_path / "conf").rglob("*.yaml"), *(tmp_path / "tests").rglob("*.py")]:
        path.write_text(re.sub(r"\blab\b", "mine", path.read_text()))
    done = subprocess.run([sys.executable, "-c", REST], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" options\n") and not list(tmp_path.rglob("*vit*"))


@pytest.mark.stress
def test_a_copy_with_names_of_its_own_takes_what_is_new_without_a_conflict(tmp_path):
    """The commands of the README rename and merge; then the copy's `make test` passes, with own files and settings."""
    root, upstream, copy = paths.PROJECT, tmp_path / "upstream", tmp_path / "copy"
    who = {f"GIT_{who}_{what}": "a" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    env = os.environ | who | {"GIT_MERGE_AUTOEDIT": "no", "PYTHONPATH": str(copy / "src")}

    def run(*line, cwd=copy):
        done = subprocess.run(line, cwd=cwd, capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    names = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=root, text=True)
    for name in (name for name in names.splitlines() if (root / name).is_file()):
        (upstream / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, upstream / name)
    run("git", "init", "-q", "-b", "main", cwd=upstream)
    run("git", "add", "-A", cwd=upstream)
    run("git", "commit", "-qm", "first", cwd=upstream)
    run("git", "clone", "-q", upstream, copy, cwd=tmp_path)

    text = (root / "README.md").read_text()
    (block,) = re.findall(r"```text\n(git mv .*?)```", text, re.S)
    rename, merge = block.split("git remote add")
    for name, content in re.findall(r"`(src/lab/\S+\.py)`:?\n\n```python\n(.*?)```", text, re.S):
        (copy / name).write_text(content)
    linear = "_target_: lab.models.linear.Linear\nin_shape: ${facts.shape}\nnum_classes: ${facts.outputs}\n"
    (copy / "conf" / "model" / "linear.yaml").write_text(linear)
    (copy / "conf" / "data" / "stripes.yaml").write_text("defaults: [_loader]\n_target_: lab.data.stripes.Stripes\n")
    (copy / "README.md").write_text("# Mine\n\nA study of stripes.\n" + text.partition("\n")[2])
    (copy / "conf" / "local").mkdir()
    (copy / "conf" / "local" / "default.yaml").write_text("# @package _global_\nseed: 7\ntrainer: {max_epochs: 3}\n")
    run("git", "add", "-A")
    run("bash", "-ec", rename)

    later = ("src/leyden/files.py", "conf/model/cnn.yaml", "tests/leyden/run/test_run.py", "src/lab/models/cnn.py")
    for path in (upstream / name for name in later):
        path.write_text(path.read_text() + "# a later line\n")
    run("git", "commit", "-qam", "later", cwd=upstream)
    run("bash", "-ec", f"git remote add{merge}".replace("<where you cloned it from>", str(upstream)))
    assert not (copy / "src" / "lab").exists()
    for name in later:
        assert (copy / name.replace("/lab/", "/mine/")).read_text().endswith("# a later line\n"), name
    run(sys.executable, "src/train.py", "model=linear", "data=stripes", "debug=fast", "threads=1")
    run(sys.executable, "-m", "pytest", "-q", "-n", "2", "-m", "not slow and not stress and not gpu")
