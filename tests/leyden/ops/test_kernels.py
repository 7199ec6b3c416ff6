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


def start(folder: Path) -> subprocess.Popen:
    """Another process that builds the same library."""
    code = f"from pathlib import Path; from leyden.ops import kernels; print(kernels.build('small', Path('{folder}')))"
    env = os.environ | {"PYTHONPATH": str(paths.PROJECT / "src")}
    return subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)


def kept() -> list[Path]:
    """What is in the cache, but for the locks that nobody holds and what a killed process has left."""
    return sorted((Path(os.environ["TORCH_EXTENSIONS_DIR"]) / "leyden").glob("*.so"))


@compiler
def test_a_library_is_built_once_for_its_sources(small, monkeypatch):
    library = kernels.build("small", small.parent)
    assert ctypes.CDLL(str(library)).answer() == 42
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("built again"))
    assert kernels.build("small", small.parent) == library and kept() == [library]
    small.write_text(small.read_text().replace("42", "43"))
    with pytest.raises(pytest.fail.Exception):
        kernels.build("small", small.parent)
    small.write_text(small.read_text().replace("43", "42"))
    monkeypatch.setattr("torch.__version__", "2.0.0")
    with pytest.raises(pytest.fail.Exception):
        kernels.build("small", small.parent)


@compiler
def test_a_killed_build_leaves_nothing_to_wait_for_and_two_at_once_do_not_collide(small, monkeypatch):
    slow = small.with_name("slow-c++")
    slow.write_text(f'#!/bin/sh\ncase "$*" in *small.cpp*) sleep 1;; esac\nexec {shutil.which("c++")} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("CXX", str(slow))
    killed = start(small.parent)
    while not list(small.parent.glob("cache/leyden/*/*.ninja")):
        assert killed.poll() is None
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert kept() == []
    both = [start(small.parent), start(small.parent)]
    said = [process.communicate(timeout=120)[0].split() for process in both]
    assert said[0] == said[1] == [str(path) for path in kept()]


def failure(caplog, folder) -> str:
    """The one sentence of a library that cannot be had, however often it is asked for."""
    with caplog.at_level(logging.WARNING):
        assert not kernels.load("small", folder) and not kernels.load("small", folder)
    (sentence,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
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


def test_a_cache_that_cannot_be_written_is_a_sentence_of_the_first_rank(small, caplog, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(small))
    assert "Not a directory" in failure(caplog, small.parent)
    caplog.clear()
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(kernels, "found", {})
    assert not kernels.load("small", small.parent) and not caplog.messages


@compiler
def test_a_damaged_library_is_a_sentence(small, caplog):
    library = kernels.build("small", small.parent)
    library.write_bytes(b"half")
    assert str(library) in failure(caplog, small.parent)
