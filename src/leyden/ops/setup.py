"""The kernels ahead of time, for those who ship wheels: `pip wheel --no-deps --no-build-isolation src/leyden/ops`."""

import os
from pathlib import Path

import torch
from setuptools import Extension, setup
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension

FOLDER = Path(__file__).parent


def extension(cpp: Path) -> Extension:
    """The library of an operator, for any processor; with its .cu where a GPU or TORCH_CUDA_ARCH_LIST asks for it."""
    cu = cpp.with_suffix(".cu")
    gpu = CUDA_HOME and cu.exists() and (torch.cuda.is_available() or os.environ.get("TORCH_CUDA_ARCH_LIST"))
    kind, files = (CUDAExtension, [cpp, cu]) if gpu else (CppExtension, [cpp])
    flags = {"cxx": ["/openmp"] if os.name == "nt" else ["-O3", "-g0", "-fopenmp"], "nvcc": ["-O3"]}
    return kind(f"leyden_{cpp.stem}", [path.name for path in files], extra_compile_args=flags)


if __name__ == "__main__":
    os.chdir(FOLDER)
    setup(
        name="leyden-ops",
        version="0.1.0",
        install_requires=[f"torch=={torch.__version__.split('+')[0]}"],  # of another its library may not load
        ext_modules=[extension(path) for path in sorted(FOLDER.glob("*.cpp"))],
        cmdclass={"build_ext": BuildExtension.with_options(no_python_abi_suffix=True)},
        py_modules=[],
    )
