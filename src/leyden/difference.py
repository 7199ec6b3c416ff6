"""What differs between two runs, and where their losses part."""

import hashlib
import re
from collections import Counter
from typing import Any

from leyden.formats import setting
from leyden.results import Run, number, part
from leyden.tables import MISSING

OWN = ("run_dir", "log_dir", "name", "resume", "rerun")  # keys that each run has for itself


def told(first: Run, second: Run) -> str:
    """Lines of config, code, machine, data, results, and the first step at which the losses part."""
    sections = {
        "config": compare(*({key: run.get(key) for key in run.config} for run in (first, second))),
        "code and machine": compare(*map(surroundings, (first, second))),
        "results": compare(*map(outcome, (first, second))),
    }
    lines = [f"a  {first.path}", f"b  {second.path}"]
    for title, rows in sections.items():
        lines += ["", f"{title}: {'' if rows else 'the same'}".rstrip()]
        width = max((len(name) for name, *_ in rows), default=0)
        lines += [f"  {name:<{width}}  {a}  ->  {b}" for name, a, b in rows]
    return "\n".join([*lines, "", parting(first, second), ""])


def compare(a: dict[str, Any], b: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Name and both values, where they differ."""
    names = [name for name in {**a, **b} if name.split(".")[0] not in OWN]
    pairs = [(name, setting(a.get(name, MISSING)), setting(b.get(name, MISSING))) for name in names]
    return [pair for pair in pairs if pair[1] != pair[2]]


def surroundings(run: Run) -> dict[str, Any]:
    """Commit, uncommitted changes, versions, machine and data."""
    record = run.record
    names = ("commit", "data_fingerprint", "threads", "precision", "device", "world_size", "effective_batch", "exact")
    found = {name.replace("_", " "): record.get(name) for name in names}
    try:
        patch = (run.path / "changes.patch").read_text(encoding="utf-8", errors="replace")
    except OSError:
        patch = ""
    files = Counter(re.findall(r"^diff --git .* b/(.+)$", patch, re.M))
    found["uncommitted changes"] = (
        f"{hashlib.sha256(patch.encode()).hexdigest()[:8]} in {', '.join(files)}" if files else "none"
    )
    return found | part(record, "versions") | part(record, "hardware")


def outcome(run: Run) -> dict[str, Any]:
    best = part(run.metrics, "best")
    found: dict[str, Any] = {"status": run.status}
    epoch = best["epoch"] + 1 if isinstance(best.get("epoch"), int) else None  # as people count
    found |= {f"best {best.get('monitor')}": best.get("value"), "best epoch": epoch} if best else {}
    found |= {name: value for name, value in part(run.metrics, "test").items() if number(value) is not None}
    return found | {"weights": str(run.metrics.get("weights_sha256"))[:16]}


def parting(first: Run, second: Run) -> str:
    """The first step at which logged losses differ; of tasks that log none, any logged value."""
    a, b = by_step(first), by_step(second)
    shared = [key for key in a if key in b]
    names = {name for key in shared for name in a[key] if name in b[key]}
    losses = {name for name in names if "loss" in name} or names
    if not losses:
        return "losses: the runs share no logged step"
    for step, count in shared:
        for name in sorted(losses & a[step, count].keys() & b[step, count].keys()):
            one, other = a[step, count][name], b[step, count][name]
            if one != other:
                return f"losses: part at step {step}: {name} {one} -> {other}"
    return f"losses: the same at all {len(shared)} logged steps that both have"


def by_step(run: Run) -> dict[tuple[int, int], dict[str, str]]:
    """(step, how many rows of it came before) -> what was logged."""
    found: dict[tuple[int, int], dict[str, str]] = {}
    seen: Counter[float] = Counter()
    for row in run.logged():
        if (step := number(row.get("step"))) is not None:
            values = {name: value for name, value in row.items() if name not in ("epoch", "step") and value}
            found[int(step), seen[step]] = values
            seen[step] += 1
    return found
