"""A step that is done once more with an eye on each layer."""

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import lightning
import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

# operators that write an infinity on purpose, or leave what was in the memory
MASKS = ("masked_fill", "masked_fill_", "where", "full", "full_like", "fill_", "new_full", "empty", "empty_like",
         "new_empty", "empty_strided", "new_empty_strided", "triu", "tril")  # fmt: skip
LIBRARIES = (str(Path(torch.__file__).parent), str(Path(lightning.__file__).parent), __file__)


@dataclass
class Call:
    """One call of a layer: the sizes that went in and came out, None where it did not return."""

    name: str
    module: nn.Module
    leaf: bool  # it has no parts, or parameters of its own
    given: str
    returned: str | None = None
    cost: float = 0.0
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return type(self.module).__name__


def tensors(node: Any) -> Iterator[Tensor]:
    """Those of nested containers, in order."""
    if isinstance(node, Tensor):
        yield node
    elif isinstance(node, dict | list | tuple):
        for child in node.values() if isinstance(node, dict) else node:
            yield from tensors(child)


def whole(tensor: Tensor) -> Tensor:
    """A tensor with the parts that FSDP keeps on other ranks, which all must ask for at once."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def sizes(node: Any) -> str:
    """The sizes of the tensors of nested containers: `64 x 10, 64`."""
    return ", ".join(" x ".join(map(str, tensor.shape)) or "1" for tensor in tensors(node)) or "-"


@contextmanager
def watched(
    task: LightningModule, keep: bool = False, meter: Callable[[], float] = time.perf_counter
) -> Iterator[list[Call]]:
    """Record each call of a part of the task inside, in the order in which it begins, and what it adds to the meter.

    With `keep` what went in and came out is kept, too. The task logs nothing inside.
    """
    calls: list[Call] = []
    running: list[tuple[Call, float]] = []
    with ExitStack() as after, torch.compiler.set_stance("force_eager"):
        for name, module in task.named_modules():
            if module is task:
                continue

            def begin(module: nn.Module, given: Any, keywords: Any, name: str = name) -> None:
                inner = any(module.children()) and not any(True for _ in module.parameters(recurse=False))
                calls.append(Call(name, module, not inner, sizes([given, keywords])))
                calls[-1].inputs = list(tensors([given, keywords])) if keep else []
                running.append((calls[-1], meter()))

            def end(module: nn.Module, given: Any, output: Any) -> None:
                call, started = running.pop()
                call.cost, call.returned = meter() - started, sizes(output)
                call.outputs = list(tensors(output)) if keep else []

            after.callback(module.register_forward_pre_hook(begin, with_kwargs=True).remove)
            after.callback(module.register_forward_hook(end).remove)
        vars(task).update(log=silent, log_dict=silent)
        after.callback(lambda: [vars(task).pop(name) for name in ("log", "log_dict")])
        yield calls


class Suspect(TorchDispatchMode):
    """Notes the first operator that makes of finite numbers what is not finite, and the line that calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.found = ""

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = operator(*args, **(kwargs or {}))
        name = operator.overloadpacket.__name__
        if not self.found and name not in MASKS and bad(output) and not bad([args, kwargs]):
            calls = [frame for frame in traceback.extract_stack() if not frame.filename.startswith(LIBRARIES)]
            place = next((f"{Path(f.filename).name}, line {f.lineno}: {f.line}" for f in calls[::-1]), "")
            self.found = f"{name} ({place})"
        return output


def bad(node: Any) -> bool:
    return any(t.is_floating_point() and not t.isfinite().all() for t in tensors(node))


def silent(*_: Any, **__: Any) -> None:
    """Logs nothing."""


def step_of(task: LightningModule, trace: TracebackType | None) -> tuple[str, Callable[[], Any]] | None:
    """The step of the task in which an error came up, as its name and a function that does it again."""
    while trace:
        code, local = trace.tb_frame.f_code, trace.tb_frame.f_locals
        if code.co_name.endswith("_step") and code.co_argcount > 1 and local.get("self") is task:
            arguments = [local[name] for name in code.co_varnames[1 : code.co_argcount]]
            return code.co_name, partial(getattr(task, code.co_name), *arguments)
        trace = trace.tb_next
    return None


def rows(cells: list[tuple[Any, ...]], titles: tuple[str, ...] = ("layer", "kind", "in", "out")) -> list[str]:
    """Lines of a table with its titles, columns as wide as they must be."""
    table = [titles, *([str(cell) for cell in row] for row in cells)]
    widths = [max(len(row[i]) for row in table) for i in range(len(titles))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
