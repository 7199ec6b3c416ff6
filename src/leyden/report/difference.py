"""What differs between two runs, and where their losses part."""

import hashlib
import re
from typing import Any

import pandas

from leyden.report.formats import setting
from leyden.report.results import Run, number, part
from leyden.report.tables import MISSING
from leyden.run.keys import role


def told(first: Run, second: Run) -> str:
    """Lines of config, code, machine, data, results, and the first step at which the losses part."""
    sections = {
        "config": compare(*({key: run.get(key) for key in run.config} for run in (first, second))),
        "code and machine": compare(*map(surroundings, (first, second))),
        "results": compare(*map(outcome, (first, second))),
    }
    lines = [f"a  {first.path}", f"b  {second.path}"]
    for title, rows in sections.items():
        lines += ["", f"{title}: {'the same' if rows.empty else ''}".rstrip()]
        width = max(map(len, rows.index), default=0)
        lines += [f"  {name:<{width}}  {a}  ->  {b}" for name, a, b in rows.itertuples()]
    return "\n".join([*lines, "", parting(first, second), ""])


def compare(a: dict[str, Any], b: dict[str, Any]) -> pandas.DataFrame:
    """Both values of what differs, by name."""
    names = [name for name in {**a, **b} if role(name) != "label"]
    frame = pandas.DataFrame(
        {side: [setting(values.get(name, MISSING)) for name in names] for side, values in (("a", a), ("b", b))},
        index=names,
    )
    return frame[frame.a != frame.b]


def surroundings(run: Run) -> dict[str, Any]:
    """Commit, uncommitted changes, versions, machine and data."""
    record, patch = run.record, run.path / "changes.patch"
    names = ("commit", "data_fingerprint", "threads", "precision", "device", "world_size", "effective_batch", "exact")
    found = {name.replace("_", " "): record.get(name) for name in names}
    changes = patch.read_text(encoding="utf-8", errors="replace") if patch.is_file() else ""
    files = dict.fromkeys(re.findall(r"^diff --git .* b/(.+)$", changes, re.M))
    digest = hashlib.sha256(changes.encode()).hexdigest()[:8]
    found["uncommitted changes"] = f"{digest} in {', '.join(files)}" if files else "none"
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
    a, b = by_step(first).align(by_step(second), join="inner")
    both = a.notna() & b.notna()
    names = [name for name in a if both[name].any()]
    names = [name for name in names if "loss" in name] or names
    if not names:
        return "losses: the runs share no logged step"
    differs = both[names] & (a[names] != b[names])
    if not differs.any(axis=None):
        return f"losses: the same at all {len(a)} logged steps that both have"
    place = differs.any(axis=1).idxmax()
    name = min(differs.columns[differs.loc[place]])
    return f"losses: part at step {place[0]:g}: {name} {a.loc[place, name]} -> {b.loc[place, name]}"


def by_step(run: Run) -> pandas.DataFrame:
    """The texts of metrics.csv; the index is the step, and how many rows of it came before."""
    rows = [row | {"step": step} for row in run.logged() if (step := number(row.get("step"))) is not None]
    frame = pandas.DataFrame(rows, columns=list(rows[0]) if rows else ["step"]).replace("", None)
    index = [frame.step, frame.groupby("step").cumcount()]
    return frame.set_index(index).drop(columns=["epoch", "step"], errors="ignore")
