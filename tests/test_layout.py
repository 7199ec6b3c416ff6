"""The rules of the tree. They hold while the project is called leyden; a copy may grow as it likes."""

import ast
import io
import shutil
import subprocess
import sys
import tokenize
import zipfile
from collections import Counter

import pytest

from leyden import runs

ROOT = runs.PROJECT
SOURCES = sorted((ROOT / "src").rglob("*.py"))
pytestmark = pytest.mark.skipif(
    'name = "leyden"' not in (ROOT / "pyproject.toml").read_text(), reason="a copy of the template"
)

# At most; of src/**/*.py where nothing else is said. A change may lower a number and never raises one.
CEILINGS = {
    "lines": 11_964,
    "bytes": 545_342,
    "files": 115,
    "files in one folder": 33,
    "lines in one file": 250,
    "lines in one function": 50,
    "lines that hold code, in percent of all": 71,
    "uses of `fmt: skip` and `noqa`": 36,
    "lines of conf": 800,
    "lines of Makefile and pyproject.toml": 140,
}

# folder or file -> what it may import at its top, of our own package and of the heavy ones
ALLOWED = {
    "models": {"leyden.models", "leyden.ops", "torch", "torchvision"},
    "ops": {"leyden.ops", "torch"},
    "tasks": {"leyden.tasks", "leyden.exact", "leyden.checkpoints", "torch", "lightning", "torchmetrics"},
    "data": {"leyden.data", "leyden.exact", "leyden.checkpoints", "torch", "torchvision", "lightning"},
    "callbacks": {
        "leyden.callbacks", "leyden.compiled", "leyden.exact", "leyden.checkpoints", "leyden.schedules",
        "leyden.tensors", "leyden.lightning_internals", "torch", "lightning", "torchmetrics",
    },
    "compiled.py": {"torch"},
    "tensors.py": {"torch"},
    "failures.py": {"leyden.tensors", "torch", "lightning"},
    "deploy": {"leyden.deploy", "leyden.data", "leyden.tasks", "torch", "torchvision", "lightning"},
    "exact.py": {"torch"},
    "lightning_internals.py": {"leyden.exact", "torch", "lightning"},
    "checkpoints.py": {"leyden.plain_data", "torch", "lightning"},
    "plain_data.py": {"torch", "omegaconf"},
    "run_log.py": set(),
    "same_data.py": {"leyden.data", "leyden.runs", "omegaconf"},
    "schedules.py": set(),
    "timing.py": {"leyden.data", "leyden.tasks", "torch", "lightning"},
    "life.py": set(),
    "runs.py": {"leyden.life", "hydra", "omegaconf"},
    "record.py": {"leyden.life", "leyden.run_log", "leyden.runs", "hydra", "omegaconf"},
    "ranks.py": {"hydra", "omegaconf"},
    "overrides.py": {"leyden.keys", "leyden.runs", "hydra", "omegaconf"},
    "keys.py": set(),
    "process.py": {"leyden.compiled", "leyden.data", "torch", "lightning", "omegaconf"},
    "help.py": set(),
    "cluster.py": {"leyden.ranks", "omegaconf"},
    "results.py": {"leyden.keys", "leyden.life", "leyden.runs"},
    "tables.py": {"leyden.results"},
    "formats.py": {"leyden.results", "leyden.tables"},
    "difference.py": {"leyden.formats", "leyden.results", "leyden.tables"},
    "picture.py": {"leyden.formats", "leyden.results", "leyden.tables"},
    "loggers.py": {"leyden.results", "leyden.runs", "lightning", "omegaconf"},
    "stored.py": {"leyden.life", "leyden.overrides", "leyden.runs", "omegaconf"},
    "sweeps.py": {
        "leyden.cluster", "leyden.life", "leyden.overrides", "leyden.ranks", "leyden.results", "leyden.runs",
        "leyden.stored", "omegaconf",
    },
    "parallel.py": {"leyden.ranks", "omegaconf"},
    "study.py": {"leyden.runs", "hydra"},
    "search.py": {"leyden.life", "leyden.runs", "leyden.study", "leyden.sweeps", "hydra"},
    "command.py": {
        "leyden.cluster", "leyden.help", "leyden.overrides", "leyden.parallel", "leyden.ranks", "leyden.readers",
        "leyden.runs", "leyden.stored", "leyden.sweeps", "hydra", "omegaconf",
    },
    "readers.py": {"leyden.overrides", "leyden.runs", "hydra", "omegaconf"},
}  # fmt: skip
HEAVY = {"torch", "torchvision", "lightning", "torchmetrics", "hydra", "omegaconf", "leyden"}


def imports(path):
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "leyden":
            base = ("UserError", "Failed", "require")
            yield from ("leyden" if alias.name in base else f"leyden.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_imports_point_one_way(path):
    parts = path.relative_to(ROOT / "src").parts
    if parts[0] != "leyden" or parts[1] == "__init__.py" or parts[1] in ("build.py", "trust.py"):
        return
    allowed = ALLOWED[parts[1]]
    for name in imports(path):
        if name.split(".")[0] in HEAVY and name != "leyden":
            assert any(name == ok or name.startswith(f"{ok}.") for ok in allowed), f"{path.name} imports {name}"


def code_lines(path):
    """Lines that hold code: no blank ones, no comments, no docstrings."""
    text = path.read_text()
    ignored = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in ignored:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def lines(path):
    """As `wc -l` counts them."""
    return path.read_bytes().count(b"\n")


def test_the_tree_is_small():
    texts = {path: path.read_text() for path in SOURCES}
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    functions = [node for text in texts.values() for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    total = sum(map(lines, SOURCES))
    measured = {
        "lines": total,
        "bytes": sum(path.stat().st_size for path in SOURCES),
        "files": len(SOURCES),
        "files in one folder": max(Counter(path.parent for path in SOURCES).values()),
        "lines in one file": max(map(lines, SOURCES)),
        "lines in one function": max(node.end_lineno - node.lineno + 1 for node in functions),
        "lines that hold code, in percent of all": 100 * sum(map(code_lines, SOURCES)) / total,
        "uses of `fmt: skip` and `noqa`": sum(t.count("# fmt: skip") + t.count("# noqa") for t in texts.values()),
        "lines of conf": sum(map(lines, (ROOT / "conf").rglob("*.yaml"))),
        "lines of Makefile and pyproject.toml": lines(ROOT / "Makefile") + lines(ROOT / "pyproject.toml"),
    }
    assert measured.keys() == CEILINGS.keys()
    assert {name: value for name, value in measured.items() if value > CEILINGS[name]} == {}


def test_a_file_opens_with_a_line_that_says_what_it_is():
    assert [path for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_nobody_is_called_utils():
    banned = {"utils", "util", "helpers", "helper", "common", "misc", "base"}
    paths = [path for folder in ("src", "conf", "tests") for path in (ROOT / folder).rglob("*")]
    assert not [path for path in paths if path.stem.lower() in banned]


def test_the_top_level_stays_as_it_is():
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True).stdout
    top = {line.split("/")[0] for line in listed.splitlines()}
    fixed = {"src", "conf", "tests", "logs", "Makefile", "pyproject.toml", "README.md", "LICENSE"}
    assert {name for name in top if not name.startswith(".")} <= fixed


def test_no_script_hides_a_module():
    standard = sys.stdlib_module_names | {"evaluate", "profile", "test", "trace"}
    assert not {path.stem for path in (ROOT / "src").glob("*.py")} & standard


@pytest.mark.slow
def test_a_wheel_holds_the_package_and_no_script(tmp_path):
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, tmp_path]
    subprocess.run(build, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("leyden-*.whl"))) as wheel:
        top = {name.split("/")[0] for name in wheel.namelist()}
        assert {"leyden/data/digits.py", *(f"leyden/ops/squared_relu.{end}" for end in ("py", "cpp", "cu"))} <= set(
            wheel.namelist()
        )
    assert {name.split("-")[0] for name in top} == {"leyden"}
