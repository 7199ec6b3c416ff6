"""What differs between two runs, and where their losses part."""

import re
from hashlib import sha256
from pathlib import Path
from typing import Any

from leyden.report.results import MISSING, flat, is_setting, logged, read, setting
from leyden.run.run import Run

# keys of run.json
COMPARED = r"commit|data_fingerprint|threads|precision|device|world_size|effective_batch|exact|(versions|hardware)\..*"


def difference(first: Path, second: Path) -> str:
    """What differs, under three headings, and the step where losses part."""
    lines, one, other = [f"a  {first}", f"b  {second}"], facts(first), facts(second)
    for title, a in one.items():
        b = other[title]
        pairs = {key: (setting(a.get(key, MISSING)), setting(b.get(key, MISSING))) for key in a | b}
        apart = [f"  {key}  {old}  ->  {new}" for key, (old, new) in pairs.items() if old != new]
        lines += ["", f"{title}:" if apart else f"{title}: the same", *apart]
    return "\n".join([*lines, "", parting(first, second)])


def facts(directory: Path) -> dict[str, dict[str, Any]]:
    """What is compared of a run."""
    run, row, patch = Run(directory), read(directory), directory / "changes.patch"
    config = {key: row[key] for key in filter(is_setting, row)}
    around = {key: value for key, value in flat(run.record).items() if re.fullmatch(COMPARED, key)}
    around["uncommitted changes"] = sha256(patch.read_bytes()).hexdigest()[:8] if patch.is_file() else "none"
    results = {key: value for key, value in row.items() if key in ("status", "best_epoch") or "/" in key}
    results["weights_sha256"] = run.metrics.get("weights_sha256")
    return {"config": config, "code, machine and data": around, "results": results}


def parting(first: Path, second: Path) -> str:
    """The first step at which losses differ, or what else is logged."""
    texts = {"dtype": str, "keep_default_na": False, "na_values": [""]}  # to the last digit
    one, other = (logged(run, **texts).drop(columns="epoch").melt("step").dropna() for run in (first, second))
    both = one.merge(other, on=["step", "variable"]).astype({"step": int}).sort_values("step", kind="stable")
    losses = both.variable.str.contains("loss")
    both = both[losses | ~losses.any() & ~both.variable.str.startswith("time/")]
    if both.empty:
        return "losses: the runs share no logged step"
    apart = both[both.value_x != both.value_y]
    if apart.empty:
        return f"losses: the same at all {both.step.nunique()} logged steps that both have"
    row = apart.iloc[0]
    return f"losses: part at step {row.step}: {row.variable} {row.value_x} -> {row.value_y}"
