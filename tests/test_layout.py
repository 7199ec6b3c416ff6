"""The rules of the tree, which `make check` runs while the project is called leyden; a copy may grow as it likes."""

import ast
import io
import shutil
import subprocess
import sys
import tokenize
import zipfile
from collections import Counter

import pytest

from leyden.run import paths
from test_conf import OPTIONS
from test_pairs import DOWNLOADED, TRAINED

ROOT = paths.PROJECT
SOURCES = sorted((ROOT / "src").rglob("*.py"))
pytestmark = pytest.mark.skipif(
    'name = "leyden"' not in (ROOT / "pyproject.toml").read_text(), reason="a copy of the template"
)

# At most; of src/**/*.py where nothing else is said. A change lowers them.
CEILINGS = {
    "lines": 9_000,
    "bytes": 420_000,
    "files": 85,
    "files in one folder": 10,
    "lines in one file": 250,
    "lines in one function": 50,
    "lines that hold code, in percent of all": 71.2,
    "uses of `fmt: skip` and `noqa`": 8,
    "lines of conf": 738,
    "lines of Makefile and pyproject.toml": 132,
}

# folder -> what it may import, besides itself and the base (`leyden` without a folder)
ALLOWED = {
    "lab": {"lab.ops", "lab.models", "lab.data", "lab.tasks", "leyden.data", "leyden.tasks", "leyden.ops"},
    "lab.models": {"lab.ops"},
    "lab.data": {"leyden.data"},
    "lab.tasks": {"leyden.tasks"},
    "lab.callbacks": set(),
    "lab.ops": {"leyden.ops"},
    "leyden": set(),
    "leyden.data": {"leyden.resume"},
    "leyden.tasks": set(),
    "leyden.ops": set(),
    "leyden.resume": set(),
    "leyden.debug": {"leyden.data", "leyden.tasks"},
    "leyden.run": {"leyden.resume", "leyden.debug", "leyden.data", "leyden.tasks", "leyden.ops"},
    "leyden.launch": {"leyden.run"},
    "leyden.search": {"leyden.launch", "leyden.run"},
    "leyden.report": {"leyden.run"},
    "leyden.deploy": {"leyden.run", "leyden.data", "leyden.tasks"},
}
# attributes with an underscore that a file may touch on what is not its own; those of Lightning only in one file
PRIVATE = {
    "_inductor",
    "_NormBase",
    "_buffers",
    "_compiled_call_impl",
}  # torch
PRIVATE |= {"_target_", "_replace", "_make_sbatch_string", "_equivalence_dict"}  # of OmegaConf, namedtuples, submitit
PRIVATE |= {"_return_value", "_apply_overrides_to_config", "_parse_overrides_and_create_caching_repo"}  # of Hydra
LIGHT = ("lab/models", "leyden/launch", "leyden/report")  # folders that load no Lightning; of these launch no torch


def home(name):
    """The folder that a module is in, or its package where it lies in none; None: it is not ours."""
    parts = name.split(".")
    if parts[0] not in ("lab", "leyden"):
        return None
    folder = ".".join(parts[:2])
    return folder if folder in ALLOWED else parts[0]


def imports(path):
    """What a file imports anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            here = path.relative_to(ROOT / "src").parts[: -node.level] if node.level else ()
            module = ".".join([*here, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_imports_point_one_way(path):
    mine = home(".".join(path.relative_to(ROOT / "src").with_suffix("").parts))
    if mine is None:  # a script or a plugin, which may import all
        return
    for name in imports(path):
        other = home(name)
        if other not in (None, mine, None if mine == "lab.models" else "leyden"):  # models import torch alone
            assert other in ALLOWED[mine], f"{path.name} imports {name}"


def test_one_file_touches_the_private_state_of_lightning():
    touched = []
    for path in SOURCES:
        if path == ROOT / "src" / "leyden" / "lightning_internals.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("lightning"):
                names = {alias.name for alias in node.names if alias.name.startswith("_")}
                touched += [f"{path.name}: {name}" for name in names - PRIVATE]
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
                own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
                touched += [f"{path.name}: {node.attr}"] * (not own and node.attr not in PRIVATE)
    assert touched == []


@pytest.mark.parametrize("folder", LIGHT)
def test_what_must_start_fast_imports_nothing_heavy(folder):
    heavy = {"lightning", "torchmetrics"} | ({"torch", "torchvision"} if folder == "leyden/launch" else set())
    for path in (ROOT / "src" / folder).glob("*.py"):
        top = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {name.split(".")[0] for node in top for name in [getattr(node, "module", None) or node.names[0].name]}
        assert not names & heavy, path.name


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


def test_no_yaml_is_long_and_its_plain_keys_have_comments():
    for path in (ROOT / "conf").rglob("*.yaml"):
        assert len(path.read_text().splitlines()) <= 45, path
    lines = (ROOT / "conf" / "train.yaml").read_text().splitlines()
    keys = [line for line in lines[lines.index("") :] if line and not line.startswith("checkpoint:")]
    assert all("#" in line for line in keys)


def test_each_model_and_data_set_is_in_a_pair_that_is_tried():
    assert {model for models in TRAINED.values() for model in models} >= set(OPTIONS["model"])
    assert {*TRAINED, *DOWNLOADED} >= set(OPTIONS["data"])


def test_nobody_is_called_utils():
    banned = {"utils", "util", "helpers", "helper", "common", "misc", "base"}
    paths = [path for folder in ("src", "conf", "tests") for path in (ROOT / folder).rglob("*")]
    assert not [path for path in paths if path.stem.lower() in banned]


def test_the_top_level_stays_as_it_is():
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True).stdout
    top = {line.split("/")[0] for line in listed.splitlines()}
    fixed = {"src", "conf", "tests", "logs", "Makefile", "pyproject.toml", "requirements.lock", "README.md", "LICENSE"}
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
        assert {"lab/data/digits.py", *(f"lab/ops/squared_relu.{end}" for end in ("py", "cpp", "cu"))} <= set(
            wheel.namelist()
        )
        top = {name.split("/")[0].split("-")[0] for name in wheel.namelist()}
    assert top == {"leyden", "lab", "hydra_plugins"}
