"""What a run says of itself: run.json, train.log, and what it was built from."""

import logging
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from omegaconf import DictConfig, OmegaConf, errors

from leyden import UserError, said
from leyden.data.datamodule import DataModule
from leyden.ops import kernels
from leyden.resume.stopping import WARNINGS
from leyden.run import configs
from leyden.run.paths import PROJECT, in_words
from leyden.run.run import HEARTBEAT_S, Run, Status, now, slurm_requeue

PACKAGES = ("torch", "lightning", "torchvision", "torchmetrics", "hydra-core", "numpy")
log = logging.getLogger(__name__)


class LiveRun(Run):
    """The run of this process; rank 0 writes, once it is open."""

    def __init__(self, cfg: DictConfig):
        super().__init__(cfg.run_dir)
        self.cfg, self.ended = cfg, threading.Event()
        self.pruned: str | None = None  # why a search gave it up
        self.file: logging.Handler | None = None  # train.log, once it is open

    def update(self, **fields: Any) -> None:
        if self.file:
            super().update(**fields)

    def open(self) -> None:
        """Say that the run runs, and write its log from here on."""
        if self.file or not is_first_rank():
            return
        old = self.record if self.cfg.get("resume") else {}
        here = {"at": now(), "after": old.get("reason") or self.status} | environment()
        self.file = logging.FileHandler(self.log_file, encoding="utf-8", errors="replace")
        self.file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        logging.getLogger().addHandler(self.file)
        self.start(**({"resumes": [*old.get("resumes", []), here]} if old else origin(self.cfg)))
        threading.Thread(target=self.beat, daemon=True).start()

    def beat(self) -> None:
        while not self.ended.wait(HEARTBEAT_S):
            self.update(heartbeat=now())

    def begin(self, task: LightningModule, trainer: Trainer, datamodule: LightningDataModule) -> None:
        """Store what the run is built from: its config with the facts, uncommitted changes, and sizes."""
        cfg = self.cfg
        if unused := sorted(configs.unused_groups(cfg)):
            OmegaConf.set_struct(cfg, False)
            for name in unused:
                del cfg[name]
            log.info("The task does not use the config's %s.", " and ".join(unused))

        if not is_first_rank():
            return
        self.open()
        tree = cfg.copy()
        tree.update({key: None for key in ("run_dir", "resume", "rerun") if key in tree})  # of this start only
        OmegaConf.save(tree, self.config_file)
        if patch := changes():
            (self.directory / "changes.patch").write_text(patch, "utf-8")

        found = {"data_fingerprint": getattr(datamodule, "fingerprint", None), "threads": torch.get_num_threads()}
        found |= {"world_size": trainer.world_size, "parameters": count(task), "precision": trainer.precision}
        found |= {"device": str(trainer.strategy.root_device), "kernels": dict(kernels.found)}
        self.update(**found | (datamodule.notes if isinstance(datamodule, DataModule) else {}))


@contextmanager
def recording(cfg: DictConfig, table: bool = False) -> Iterator[LiveRun]:
    """Keep run.json and train.log true until the end; `table`: stdout is for a table alone.

    A run that goes on is opened when all is built: a refusal changes nothing in it.
    """
    screen, root = logging.StreamHandler(sys.stderr if table else sys.stdout), logging.getLogger()
    screen.addFilter(lambda entry: entry.name.startswith("leyden") or entry.levelno >= logging.WARNING)
    screen.addFilter(lambda entry: entry.name != "leyden.file")  # for train.log alone
    root.handlers = [screen]  # `process.restored` takes it and the file away
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    logging.raiseExceptions = False  # a closed pipe ends the output, not the run

    run = LiveRun(cfg)
    if not cfg.get("resume"):
        run.open()

    try:
        yield run
        run.end(Status.PRUNED if run.pruned else Status.FINISHED, run.pruned)
    except SystemExit as error:
        name = signal.Signals(error.code - 128).name if isinstance(error.code, int) and error.code > 128 else "exit"
        run.end(Status.STOPPED, name)
        if "resume" in cfg and is_first_rank():
            then = f"go on with: python src/train.py resume={shlex.quote(str(in_words(run.directory)))}"
            if name in WARNINGS and slurm_requeue():
                then = "SLURM starts its job again, and it goes on by itself"
            log.warning("Stopped by %s; %s", name, then)
        raise
    except BaseException as error:
        run.end(Status.FAILED, f"{type(error).__name__}: {error}")
        logging.getLogger("leyden.file").error("failed", exc_info=True)
        if isinstance(error, MisconfigurationException | errors.OmegaConfBaseException):
            raise UserError(f"{said(error)}.") from error
        raise
    finally:
        run.ended.set()
        if run.file:
            run.file.close()


def is_first_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"


def check_same(cfg: DictConfig, datamodule: DataModule, before: Run, split: str | None) -> None:
    """UserError where a split (None: any) that we cut may hold what the run before was trained on.

    With exact=false it is only said; other classes are never taken.
    """
    then: Any = OmegaConf.to_container(cfg.facts or OmegaConf.create(), resolve=True)
    if then and coding(datamodule.facts) != coding(then):
        raise UserError("The data has other classes or columns than the run was trained on; bring it back.")

    seen, notes = before.record, datamodule.notes
    same, cut = seen["data_fingerprint"] == datamodule.fingerprint, {*seen.get("cut_splits", ()), *notes["cut_splits"]}
    if same or not (cfg.get("resume") or (cut and split in {None, *cut})):
        return

    data, old = (OmegaConf.to_container(tree.data) for tree in (cfg, configs.stored(before.directory)))
    if cfg.get("rerun") and data != old:  # as its user says
        return

    sizes = f"samples now: {notes.get('split_sizes')}; then: {seen.get('split_sizes')}"
    changed = f"The data is not what the run was trained on, and would be split otherwise ({sizes})"
    if cfg.exact:
        raise UserError(f"{changed}; bring it back, or type exact=false to go on.")

    log.warning("%s; going on, as exact=false says.", changed)
    if cfg.get("run") and cfg.run_dir and is_first_rank():
        Run(cfg.run_dir).update(exact=False, not_exact=changed)


def coding(facts: dict[str, Any]) -> tuple[list[str], list[Any]]:
    """What the numbers in the data stand for."""
    columns = facts.get("columns") or []
    return facts.get("classes") or [], [(c["name"], c.get("categories"), c.get("offset")) for c in columns]


def origin(cfg: DictConfig) -> dict[str, Any]:
    """What was asked for, when and where; of a job of a sweep, its own overrides."""
    file = Path(cfg.run_dir) / ".hydra" / "overrides.yaml"
    typed = yaml.safe_load(file.read_bytes()) if file.is_file() else []
    asked: Any = OmegaConf.to_container(OmegaConf.masked_copy(cfg, ["seed", "tags", "note", "rerun", "init_from"]))
    return {"overrides": typed, "started": now(), "resumes": []} | asked | environment()


def environment() -> dict[str, Any]:
    """What was typed, the code, the versions and the machine."""
    return {
        "command": os.environ.get("LEYDEN_COMMAND"),
        "commit": git("rev-parse", "--verify", "-q", "HEAD").strip() or None,
        "versions": {"python": platform.python_version()} | {name: metadata.version(name) for name in PACKAGES},
        "hardware": {"machine": platform.machine(), "system": platform.platform(), "cores": os.cpu_count()},
    }


def changes() -> str:
    """The uncommitted changes, with untracked files of src and conf."""
    untracked = git("ls-files", "--others", "--exclude-standard", "-z", "src", "conf").split("\0")
    return "".join([git("diff", "HEAD"), *(git("diff", "--no-index", "--", os.devnull, x) for x in untracked if x)])


def git(*args: str) -> str:
    """What git prints in the project; nothing where there is no git or no repository."""
    line = ["git", "-C", str(PROJECT), *args]
    return subprocess.run(line, capture_output=True, text=True, errors="replace").stdout if shutil.which("git") else ""


def count(task: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in task.parameters())


def announce(cfg: DictConfig, best: str, trainer: Trainer, task: LightningModule, batch: int | None) -> None:
    """Log what is trained, by what it is judged, and the samples of a step."""
    one = sum(count(part) > 0 for part in task.children()) == 1  # of several networks none stands for all
    name = (cfg.get("model", cfg.task) if one else cfg.task)._target_.split(".")[-1]
    step = f"{batch} samples a step, " if batch else ""
    where = f"{trainer.strategy.root_device}, {trainer.precision}, {step}seed {cfg.seed}, best by {best}"
    log.info("%s of %s parameters on %s", name, f"{count(task):,}", where)
