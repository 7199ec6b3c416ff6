"""An exported file at work, without any of our code: this file imports nothing of leyden, and runs alone, too.

python session.py <file> <cases.npz> <results.npz>
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

METADATA = "leyden.json"  # of a zip of torch's


class Session:
    """A file of ours by its path. `card`: its metadata; `dims`: what the file itself says of each input.

    Raises:
        ValueError: the file is not there, not of a kind that is known, or not one of ours.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not self.path.is_file():
            raise ValueError("there is no such file")
        kind = self.path.suffix
        if kind not in OPENERS:
            raise ValueError(f"it is none of {', '.join(OPENERS)}")
        self.card, self.dims, self.run = OPENERS[kind](self.path)

    def __call__(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """The outputs for a batch, one array for each input of the card, in its order."""
        return self.run(*inputs)


def onnx(path: Path) -> tuple[dict[str, Any], dict[str, list], Callable]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its types are no part of its interface
        raise ValueError(f"onnxruntime cannot read it ({' '.join(str(error).split())[:200]})") from error
    words = session.get_modelmeta().custom_metadata_map
    if "leyden" not in words:
        raise ValueError("it is an ONNX file of another origin, without our metadata")
    names = [entry.name for entry in session.get_inputs()]
    dims = {entry.name: list(entry.shape) for entry in session.get_inputs()}

    def run(*inputs: np.ndarray) -> list[np.ndarray]:
        return session.run(None, dict(zip(names, inputs, strict=True)))

    return {name: json.loads(word) for name, word in words.items()}, dims, run


def stored(path: Path) -> dict[str, Any]:
    """The metadata in a zip of torch's, read before anything in it is trusted."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next((name for name in archive.namelist() if name.endswith(f"/extra/{METADATA}")), None)
            words = json.loads(archive.read(name)) if name else {}
    except (zipfile.BadZipFile, ValueError) as error:
        raise ValueError("it is damaged, or no file of torch's") from error
    if "leyden" not in words:
        raise ValueError("it is a file of another origin, without our metadata")
    return words


def pt2(path: Path) -> tuple[dict[str, Any], dict[str, list], Callable]:
    import torch

    card = stored(path)
    with open(path, "rb") as file:  # whatever the file is called
        program = torch.export.load(file)
    names = {spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"}
    found = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    shapes = [[n if isinstance(n, int) else str(n) for n in node.meta["val"].shape] for node in found]
    return card, dict(zip(card["inputs"], shapes, strict=True)), torch_call(program.module())


def torchscript(path: Path) -> tuple[dict[str, Any], dict[str, list], Callable]:
    import torch

    card = stored(path)
    return card, {}, torch_call(torch.jit.load(path, map_location="cpu"))


def torch_call(module: Callable) -> Callable:
    import torch

    def run(*inputs: np.ndarray) -> list[np.ndarray]:
        with torch.no_grad():
            found = module(*map(torch.from_numpy, inputs))
        found = found.values() if isinstance(found, dict) else found if isinstance(found, list | tuple) else [found]
        return [part.numpy() for part in found]

    return run


OPENERS = {".onnx": onnx, ".pt2": pt2, ".pt": torchscript}


def main(file: str, cases: str, results: str) -> None:
    """Run all cases, `<number>.<input>`, into `<number>.<output>`; print what the file says of its inputs."""
    session = Session(file)
    found: dict[str, Any] = {}
    with np.load(cases) as arrays:
        for number in range(sum(name.endswith(f".{next(iter(session.card['inputs']))}") for name in arrays)):
            outputs = session(*(arrays[f"{number}.{name}"] for name in session.card["inputs"]))
            found |= {f"{number}.{place}": output for place, output in enumerate(outputs)}
    np.savez(results, **found)
    print(json.dumps(session.dims))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
