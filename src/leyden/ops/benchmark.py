"""How long an operator takes and how long its twin, forward and backward, in paired rounds."""

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

CALLS = 20  # in a row for each measurement
SIDES = ("operator", "twin")


def measure(operator: Callable, twin: Callable, x: Tensor, rounds: int) -> list[dict[str, float]]:
    """Seconds of a forward and a backward pass of both, one after the other in each round; they take turns to begin."""
    x, functions = x.detach().requires_grad_(), {"operator": operator, "twin": twin}
    grad = torch.ones_like(x)
    found = []
    for number in range(rounds + 1):  # the first warms up
        order = SIDES if number % 2 else SIDES[::-1]
        found.append({side: seconds(functions[side], x, grad) for side in order})
    return found[1:]


def seconds(function: Callable, x: Tensor, grad: Tensor) -> float:
    """Mean seconds of a call and its gradient."""
    wait = torch.cuda.synchronize if x.is_cuda else lambda: None
    wait()
    start = time.perf_counter()
    for _ in range(CALLS):
        torch.autograd.grad(function(x), x, grad)
    wait()
    return (time.perf_counter() - start) / CALLS


def summary(rounds: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Median, least and most: microseconds of each side, and how many times faster the operator was in a round."""
    rows = {f"{side}, us": [1e6 * pair[side] for pair in rounds] for side in SIDES}
    rows["twin/operator"] = [pair["twin"] / pair["operator"] for pair in rounds]
    return {name: {"median": median(row), "min": min(row), "max": max(row)} for name, row in rows.items()}


def table(title: str, found: dict[str, dict[str, float]]) -> str:
    """The measurements, a plain line each."""
    lines = [f"{title:<36}{'median':>12}{'min':>12}{'max':>12}"]
    for name, spread in found.items():
        places = 0 if name.endswith("us") else 2
        lines.append(f"{name:<36}" + "".join(f"{number:>12,.{places}f}" for number in spread.values()))
    return "\n".join(lines)
