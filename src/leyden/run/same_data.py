"""Whether the data is still what a run was trained on: splits that are cut from other data mix train with test."""

import logging
import os
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from leyden import UserError
from leyden.data.datamodule import DataModule
from leyden.run import configs
from leyden.run.run import Run

# facts that a model keeps as they were; all others say what its inputs and outputs mean
STATISTICS = ("mean", "std", "counts", "target_mean", "target_std")
# keys of data that do not decide which samples there are
LOADING = (
    "batch_size", "num_workers", "pin_memory", "drop_last", "seed", "balanced", "augment", "train_transforms",
    "eval_transforms", "cache", "data_dir", "classes",
)  # fmt: skip
log = logging.getLogger(__name__)


def seed(cfg: DictConfig) -> int:
    """The seed that splits are drawn with: of a run that is there already, the one that it began with."""
    stored = None if cfg.get("rerun") else record_before(cfg).get("seed")
    return cfg.seed if stored is None else stored


def check(cfg: DictConfig, datamodule: Any, split: str | None = None) -> str:
    """How the data differs from what the run before was trained on; nothing where no split that is asked for is cut.

    `split`: the one asked for; None asks for all.

    Raises:
        UserError: it differs, and `exact` forbids it, or the model does not know its classes or columns.
    """
    changed = difference(cfg, datamodule, split)
    if changed and cfg.exact:
        raise UserError(f"{changed}; bring the data back, or type exact=false to go on all the same.")
    if not changed or cfg.get("rerun"):
        return changed
    facts: Any = OmegaConf.to_container(cfg.facts) if cfg.facts else {}
    then, now = meaning(facts), meaning(getattr(datamodule, "facts", {}))
    if lost := [name for name in now if now[name] != then.get(name)]:
        raise UserError(f"{changed}, and the model was built for other {' and '.join(lost)}; bring the data back.")
    log.warning("%s; going on, as exact=false says.", changed)
    if cfg.get("run") and int(os.environ.get("RANK", 0)) == 0:
        Run(Path(cfg.run_dir)).update(exact=False, not_exact=changed)
    return changed


def record_before(cfg: DictConfig) -> dict[str, Any]:
    """What run.json says of the run that is read, goes on or is repeated; nothing of a new one."""
    if cfg.get("run"):
        return Run(Path(cfg.run).parent.parent).record
    if cfg.get("resume"):
        return Run(Path(cfg.run_dir)).record
    return Run(Path(cfg.rerun)).record if cfg.get("rerun") else {}


def difference(cfg: DictConfig, datamodule: Any, split: str | None) -> str:
    """What `check` returns."""
    before, ours = record_before(cfg), isinstance(datamodule, DataModule)
    if not before or not (ours or cfg.get("resume")):
        return ""
    then, now = before.get("data_fingerprint"), getattr(datamodule, "fingerprint", None)
    if None in (then, now) or then == now:
        return ""
    notes = datamodule.notes if ours else {}
    cut = {*before.get("cut_splits", ()), *notes.get("cut_splits", ())}
    if not cfg.get("resume") and (not cut or split not in {None, *cut} or other_data(cfg)):
        return ""
    sizes = [", ".join(f"{k} {v:,}" for k, v in p.get("split_sizes", {}).items()) for p in (notes, before)]
    counts = f" (samples now: {sizes[0]}; then: {sizes[1]})" if all(sizes) else ""
    return f"The data is not what the run was trained on{counts}, and its splits would not be the same"


def other_data(cfg: DictConfig) -> bool:
    """Whether a run is repeated on other data or splits because its user says so."""
    if not cfg.get("rerun"):
        return False
    nodes: Any = (OmegaConf.to_container(tree.data, resolve=True) for tree in (cfg, configs.stored(Path(cfg.rerun))))
    now, then = ({key: value for key, value in node.items() if key not in LOADING} for node in nodes)
    return now != then


def meaning(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts without statistics."""
    found = {name: value for name, value in facts.items() if name not in STATISTICS}
    if found.get("kind") == "table":  # "fill", the median of a column, is a statistic too
        found["columns"] = [
            (column["name"], column.get("categories"), column.get("offset")) for column in found["columns"]
        ]
    return found
