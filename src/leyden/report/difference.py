"""What differs between two runs, and where their losses part."""

import hashlib
import re
from pathlib import Path

import pandas

from leyden.report.results import FACTS, MISSING, curves, flat, read, setting
from leyden.run.keys import role
from leyden.run.run import Run

COMPARED = (  # keys of run.json
    r"commit|data_fingerprint|threads|precision|device|world_size|effective_batch|exact|(versions|hardware)\..*"
)


def difference(first: Path, second: Path) -> str:
    """What differs in the config, in code, machine and data, and in the results; and the step where losses part."""
    lines = [f"a  {first}", f"b  {second}"]
    for title, a, b in zip(("config", "code, machine and data", "results"), facts(first), facts(second), strict=True):
        both = pandas.DataFrame({"a": a.map(setting), "b": b.map(setting)}).fillna(MISSING)
        both = both[both.a != both.b]
        lines += ["", f"{title}:" if len(both) else f"{title}: the same"]
        lines += [f"  {key}  {pair.a}  ->  {pair.b}" for key, pair in both.iterrows()]
    return "\n".join([*lines, "", parting(first, second), ""])


def facts(directory: Path) -> tuple[pandas.Series, ...]:
    """What is compared of a run: its config, its surroundings, its results."""
    run, row, patch = Run(directory), read(directory), directory / "changes.patch"
    config = {key: row[key] for key in row if key not in FACTS and "/" not in key and role(key) != "label"}
    around = {key: value for key, value in flat(run.record).items() if re.fullmatch(COMPARED, key)}
    around["uncommitted changes"] = hashlib.sha256(patch.read_bytes()).hexdigest()[:8] if patch.is_file() else "none"
    results = {key: row[key] for key in row if key in ("status", "best_epoch") or "/" in key}
    results["weights_sha256"] = run.metrics.get("weights_sha256")
    return tuple(pandas.Series(part, dtype=object) for part in (config, around, results))


def parting(first: Path, second: Path) -> str:
    """The first step at which logged losses differ; of tasks that log none, any logged value."""
    texts = {"dtype": str, "keep_default_na": False, "na_values": [""]}  # to the last digit, and a NaN is a value
    logged = [curves(run, **texts).astype({"step": int}).groupby("step").first() for run in (first, second)]
    a, b = logged[0].drop(columns="epoch").align(logged[1].drop(columns="epoch"), join="inner")
    names = [name for name in a if "loss" in name] or list(a)
    both = a[names].notna() & b[names].notna()
    if not both.any(axis=None):
        return "losses: the runs share no logged step"
    differs = both & (a[names] != b[names])
    if not differs.any(axis=None):
        return f"losses: the same at all {len(a)} logged steps that both have"
    step = differs.any(axis=1).idxmax()
    name = differs.loc[step].idxmax()
    return f"losses: part at step {step}: {name} {a.loc[step, name]} -> {b.loc[step, name]}"
