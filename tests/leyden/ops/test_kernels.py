"""Builds of a small library: what is kept, who builds, and what a failure leaves."""

import ctypes
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from leyden.ops import kernels
from leyden.run import paths

pytestmark = pytest.mark.slow  # these build libraries
compiler = pytest.mark.skipif(
    not (shutil.which(os.environ.get("CXX", "c++")) and shutil.which("ninja")), reason="no C++ compiler or no ninja"
)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A source that compiles fast, and an empty cache."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    monkeypatch.setattr(kernels, "found", {})
    source = tmp_path / "small.cpp"
    source.write_text('extern "C" int answer() { return 42; }\n')
    return source


def start(source: Path) -> subprocess.Popen:
    """Another process that builds the same library."""
    code = (
        f"from pathlib import Path; from leyden.ops import kernels; print(kernels.build('small', [Path('{source}')]))"
    )
    env = os.environ | {"PYTHONPATH": str(paths.PROJECT / "src")}
    return subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)


def kept() -> list[str]:
    """What is in the cache, but for the locks that nobody holds."""
    return sorted(path.name for path in kernels.cache().glob("*") if path.suffix != ".lock")


@compiler
def test_a_library_is_built_once_for_its_sources(small, monkeypatch):
    library = kernels.build("small", [small])
    assert ctypes.CDLL(str(library)).answer() == 42
    monkeypatch.setattr(kernels, "compiled", lambda *_: pytest.fail("built again"))
    assert kernels.build("small", [small]) == library and kept() == [library.name]
    before = kernels.key([small])
    small.write_text(small.read_text().replace("42", "43"))
    assert kernels.key([small]) != before


@pytest.mark.parametrize(("name", "value"), [("__version__", "2.0.0"), ("CXX", "another"), ("capability", "DEFAULT")])
def test_another_torch_compiler_or_processor_has_another_key(small, monkeypatch, name, value):
    before = kernels.key([small])
    if name == "CXX":
        monkeypatch.setenv(name, value)
    elif name == "capability":
        monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: value)
    else:
        monkeypatch.setattr(f"torch.{name}", value)
    assert kernels.key([small]) != before or kernels.flags() == ["-O3", "-fopenmp"]


@pytest.mark.slow
@compiler
def test_a_killed_build_leaves_nothing_to_wait_for_and_two_at_once_do_not_collide(small, monkeypatch):
    slow = small.with_name("slow-c++")
    slow.write_text(f'#!/bin/sh\ncase "$*" in *small.cpp*) sleep 1;; esac\nexec {shutil.which("c++")} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("CXX", str(slow))
    killed = start(small)
    while not list(kernels.cache().glob("small-*/*.ninja")):
        assert killed.poll() is None
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert kept() != []
    both = [start(small), start(small)]
    said = [process.communicate(timeout=120)[0].split() for process in both]
    assert said[0] == said[1] == [str(kernels.cache() / name) for name in kept()]


def failure(caplog, folder) -> str:
    """The one sentence of a library that cannot be had, however often it is asked for."""
    with caplog.at_level(logging.WARNING):
        assert not kernels.load("small", folder) and not kernels.load("small", folder)
    (sentence,) = caplog.messages
    assert sentence.startswith("small runs in plain PyTorch") and sentence.endswith(".") and "\n" not in sentence
    assert kernels.found["small"] in sentence
    return sentence


@compiler
@pytest.mark.parametrize(
    ("cxx", "code", "reason"),
    [
        ("false", "", "false"),
        ("/nowhere/c++", "", "/nowhere/c++: not found"),
        ("c++", "#include <nowhere.h>", "fatal error: nowhere.h"),
    ],
    ids=["broken", "missing", "header"],
)
def test_a_broken_compiler_is_a_sentence(small, monkeypatch, caplog, cxx, code, reason):
    monkeypatch.setenv("CXX", cxx)
    small.write_text(code)
    assert reason in failure(caplog, small.parent)
    assert kept() == []


@compiler
def test_a_full_disk_is_a_sentence(small, caplog, monkeypatch):
    disk = small.parent / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(disk))
    try:
        assert "No space left" in failure(caplog, small.parent)
        assert kept() == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_cache_that_cannot_be_written_is_a_sentence(small, caplog, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(small))
    assert "Not a directory" in failure(caplog, small.parent)


def test_a_damaged_library_is_a_sentence(small, caplog):
    library = kernels.cache() / f"small-{kernels.key([small])}{kernels.SUFFIX}"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"half")
    assert str(library) in failure(caplog, small.parent)


def test_only_the_first_rank_of_a_machine_says_it(small, caplog, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(small))
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert not kernels.load("small", small.parent) and not caplog.messages


def test_cuda_is_looked_for_in_its_own_folder(tmp_path, monkeypatch):
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert kernels.cuda_home() == str(tmp_path)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nowhere"))
    assert kernels.cuda_home() is None
