"""Compiled kernels of our operators: built on first use, kept, and never a reason to stop."""

import hashlib
import logging
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import torch

from leyden import said
from leyden.files import lock

found: dict[str, str] = {}  # operator -> "compiled", or why it is not
log = logging.getLogger(__name__)


def load(name: str, folder: Path) -> bool:
    """Load the kernels of an operator, built from <folder>/<name>.cpp on first use; a failure is said once."""
    if name not in found:
        try:
            torch.ops.load_library(build(name, folder))
            found[name] = "compiled"
        except Exception as error:  # compilers and disks fail in many ways
            found[name] = said(error)
            if os.environ.get("LOCAL_RANK", "0") == "0":  # of the ranks of a machine one
                log.warning("%s runs in plain PyTorch, as its kernel could not be built: %s.", name, found[name])
    return found[name] == "compiled"


def build(name: str, folder: Path) -> Path:
    """The library of the .cpp and, for GPUs, the .cu, built by one process; raises the compiler's first complaint."""
    asked = os.environ.get("TORCH_CUDA_ARCH_LIST")
    gpus = [torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())]
    ends = ["cpp", "cu"] if torch.version.cuda and (gpus or asked) else ["cpp"]
    files = [file for end in ends if (file := folder / f"{name}.{end}").exists()]
    parts = torch.__version__, sys.version, flags(), gpus, asked, [file.read_text("utf-8") for file in files]

    home = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache/torch_extensions") / "leyden"
    library = home / f"{name}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}.so"
    if library.exists():
        return library

    home.mkdir(parents=True, exist_ok=True)
    with lock(library.with_suffix(".lock"), seconds=600), tempfile.TemporaryDirectory(dir=home) as work:
        if not library.exists():
            log.info("building the kernel of %s, once for this machine", name)
            compile(name, [str(file) for file in files], work)
            Path(work, f"{name}.so").replace(library)
    return library


def compile(name: str, sources: list[str], folder: str) -> None:
    """In a process of its own, which tries to load the library, too."""
    options = {"extra_cflags": flags(), "build_directory": folder, "is_python_module": False}
    code = f"from torch.utils import cpp_extension; cpp_extension.load({name!r}, {sources!r}, **{options!r})"
    nvcc = f"/usr/local/cuda-{torch.version.cuda}"  # unless another one is named
    env = ({"CUDA_HOME": nvcc} if os.path.isdir(nvcc) else {}) | os.environ
    env["PATH"] += os.pathsep + sysconfig.get_path("scripts")  # of pip's ninja

    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=600)
    if done.returncode:
        complaint = re.search(r"^.*(\berror:|No space left|not found|No such file).*$", done.stdout + done.stderr, re.M)
        raise RuntimeError(complaint[0] if complaint else done.stderr.splitlines()[-1])


def flags() -> list[str]:
    """Of the compiler: without OpenMP at::parallel_for is serial, without AVX2 at::vec is narrow."""
    avx2 = ["-mavx2", "-mfma", "-mf16c", "-DCPU_CAPABILITY=AVX2", "-DCPU_CAPABILITY_AVX2"]
    wide = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return ["-O3", *["-fopenmp"] * (sys.platform == "linux"), *avx2 * wide]
