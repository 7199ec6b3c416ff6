"""What a user does to `lab`: delete what is not used, and give the folder another name."""

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
