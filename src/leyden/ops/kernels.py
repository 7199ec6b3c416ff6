"""Compiled kernels of our operators: built on first use, kept, and never a reason to stop."""

import hashlib
import json
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

PATIENCE = 600  # seconds for a build, one's own or that of another process
SUFFIX = ".pyd" if os.name == "nt" else ".so"
# In a process of its own, whose noise stays off the screen, and which finds out whether the library loads.
BUILD = "import json, sys; from torch.utils import cpp_extension; cpp_extension.load(**json.loads(sys.argv[1]))"
COMPLAINT = (
    r"^.*(\berror:|No space left|not found|undefined symbol|No such file|Permission denied|RuntimeError: Ninja).*$"
)
found: dict[str, str] = {}  # operator -> "compiled", or why it is not
log = logging.getLogger(__name__)


def load(name: str, folder: Path) -> bool:
    """Load the kernels of an operator, built from <folder>/<name>.cpp if they are not there yet; whether it went well.

    What goes wrong is said once, in a sentence: without its kernels an operator is its reference implementation.
    """
    if name not in found:
        try:
            torch.ops.load_library(build(name, sources(name, folder)))
            found[name] = "compiled"
        except Exception as error:  # compilers, linkers and disks fail in many ways, none of which should end a run
            found[name] = " ".join(str(error).split()).rstrip(".")
            say("%s runs in plain PyTorch, as its kernel could not be built: %s.", name, found[name])
    return found[name] == "compiled"


def say(*sentence: str) -> None:
    """A warning, of one rank of a machine only."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        log.warning(*sentence)


def sources(name: str, folder: Path) -> list[Path]:
    """The .cpp, and the .cu where a GPU or TORCH_CUDA_ARCH_LIST asks for it and nvcc is there."""
    cpp, cu = folder / f"{name}.cpp", folder / f"{name}.cu"
    if not (cu.exists() and architectures()):
        return [cpp]
    if torch.version.cuda and cuda_home():
        return [cpp, cu]
    say("%s runs in plain PyTorch on GPUs, as there is no nvcc; set CUDA_HOME.", name)
    return [cpp]


def architectures() -> str:
    """What nvcc compiles for: TORCH_CUDA_ARCH_LIST, or the GPUs that are here, such as 8.0;9.0."""
    gpus = {torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())}
    return os.environ.get("TORCH_CUDA_ARCH_LIST") or ";".join(f"{major}.{minor}" for major, minor in sorted(gpus))


def cuda_home() -> str | None:
    """The folder of CUDA: the one named, that of torch's version, or that of the nvcc on the path."""
    folders = [os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")]
    if not folders[0]:
        nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        folders = [f"/usr/local/cuda-{torch.version.cuda}", str(Path(nvcc).parents[1])]
    return next((folder for folder in folders if shutil.which("nvcc", path=f"{folder}/bin")), None)


def flags() -> list[str]:
    """For the C++ compiler. Without OpenMP at::parallel_for is serial, without AVX2 at::vec is as narrow as SSE."""
    if os.name == "nt":
        return ["/O2", "/openmp"]
    avx2 = ["-mavx2", "-mfma", "-mf16c", "-DCPU_CAPABILITY=AVX2", "-DCPU_CAPABILITY_AVX2"]
    wide = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return ["-O3", *["-fopenmp"] * (sys.platform == "linux"), *avx2 * wide]


def cache() -> Path:
    """Where libraries are kept: TORCH_EXTENSIONS_DIR, as torch's own, or the user's cache."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or home / "torch_extensions") / "leyden"


def key(files: list[Path]) -> str:
    """Letters that change with the sources and with whatever a library of them depends on."""
    versions = [torch.__version__, platform.python_version(), sys.platform, platform.machine(), *platform.libc_ver()]
    cuda = [architectures(), cuda_home()] if len(files) > 1 else []
    text = json.dumps([versions, flags(), os.environ.get("CXX"), cuda, [path.read_text("utf-8") for path in files]])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def build(name: str, files: list[Path]) -> Path:
    """The library of these sources, from the cache or new.

    One process of several builds, in a folder of its own, and moves the library to its place when it is whole: one
    that is killed leaves nothing half done, and nothing to wait for.

    Raises:
        OSError: the cache cannot be written, or another process has been building for too long.
        RuntimeError: the compiler's first complaint.
    """
    library = cache() / f"{name}-{key(files)}{SUFFIX}"
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(library.with_suffix(".lock"), timeout=PATIENCE):  # the system's: it ends with its process
        for left in library.parent.glob(f"{library.stem}-*"):  # by processes that were killed
            shutil.rmtree(left, ignore_errors=True)
        if not library.exists():
            log.info("building the kernel of %s, once for this machine", name)
            with tempfile.TemporaryDirectory(prefix=f"{library.stem}-", dir=library.parent) as folder:
                compiled(f"leyden_{name}", files, folder).replace(library)
    return library


def compiled(name: str, files: list[Path], folder: str) -> Path:
    """Build `<folder>/<name>`, the library. Raises RuntimeError with the compiler's first complaint."""
    options: dict[str, Any] = {"name": name, "sources": [str(path) for path in files], "build_directory": folder}
    options |= {"extra_cflags": flags(), "is_python_module": False}
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])  # ninja may be pip's
    env = os.environ | {"PATH": path, "TORCH_CUDA_ARCH_LIST": architectures(), "CUDA_HOME": cuda_home() or ""}
    line = [sys.executable, "-c", BUILD, json.dumps(options)]
    done = subprocess.run(
        line, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE,
        text=True, errors="replace",
    )  # fmt: skip
    if done.returncode:
        complaint = re.search(COMPLAINT, done.stdout, re.M)
        raise RuntimeError(complaint[0] if complaint else (done.stdout.strip() or "no output").splitlines()[-1])
    return Path(folder) / f"{name}{SUFFIX}"
