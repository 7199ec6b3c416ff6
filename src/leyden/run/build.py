"""From the config to live objects: the only place where something is instantiated."""

import logging
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from lightning import LightningDataModule, LightningModule, Trainer
from lightning.fabric.utilities.seed import pl_worker_init_function, reset_seed
from lightning.pytorch.callbacks import Callback, Checkpoint, RichProgressBar
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from torchvision.transforms import v2

from leyden import UserError, lightning_internals  # fmt: skip
from leyden.data.datamodule import DataModule
from leyden.debug import failures  # fmt: skip
from leyden.debug.mistakes import Mistakes
from leyden.ops import kernels
from leyden.resume import checkpoints, compiled, exact  # fmt: skip
from leyden.resume.checkpoints import AtomicIO
from leyden.resume.keeper import Keeper
from leyden.resume.records import Records
from leyden.run import loggers, paths, same_data, study, trust  # fmt: skip
from leyden.run.configs import literal
from leyden.run.run import Run

log = logging.getLogger(__name__)


def make(cfg: DictConfig, key: str, node: Any, **keywords: Any) -> Any:
    """Instantiate a node of the config, which is called `key`; its texts stay as they are.

    Raises:
        UserError: a key that its constructor does not take, a value that is not there, what it says itself, or a target
            that may not be built.
    """
    try:
        plain = trust.checked(cfg, node)
        if isinstance(plain, dict):
            plain = {"_convert_": "all"} | plain
        return instantiate(OmegaConf.create({key: plain})[key], **keywords)
    except (InstantiationException, OmegaConfBaseException) as error:
        cause = error.__cause__ or error
        if isinstance(cause, UserError):
            raise cause from error
        if isinstance(cause, MissingMandatoryValue):
            raise UserError(f"{cause.full_key} is needed; type {cause.full_key}=<value>.") from error
        lines = [line for line in str(error).splitlines() if line.strip()]
        if isinstance(cause, ModuleNotFoundError) and key.startswith("logger."):
            raise UserError(loggers.missing(key)) from error
        what = " ".join(str(cause).split()) or lines[0]
        part = re.search(r"^full_key: (\S+)", str(error), re.M)
        name = part[1] if part else key
        target = f" ({node.get('_target_')})" if name in ("data", "task") else ""
        raise UserError(f"{name}{target} cannot be built: {what.rstrip('.')}.") from error


def data(cfg: DictConfig) -> LightningDataModule:
    """The datamodule, with its files looked for from the project; what it draws comes from the seed of the run."""
    tree = cfg.copy()
    tree.data_dir = str(paths.in_project(cfg.data_dir))
    tree.seed = same_data.seed(cfg)
    with exact.isolated(tree.seed):
        made = make(tree, "data", tree.data)
    return made if isinstance(made, DataModule) else exact.seed_hooks(made, pl_worker_init_function, tree.seed)


def facts(cfg: DictConfig, datamodule: LightningDataModule) -> None:
    """Put what the data says of itself into cfg.facts, from where models and tasks take it.

    Raises:
        UserError: facts that the config gives are not those of the data, or those of the data are no plain values;
            the data is normalised in the workers, and would be again on the device; a part of them names a target.
    """
    steps = datamodule.transforms.values() if isinstance(datamodule, DataModule) else []
    standardizes = str(OmegaConf.select(cfg, "task.preprocess._target_")).endswith(".Standardize")
    if standardizes and any(isinstance(step, v2.Normalize) for part in steps for step in part):
        raise UserError(
            "The transforms of data normalise, and task.preprocess does, too; leave Normalize out, "
            "or type task.preprocess._target_=torch.nn.Identity."
        )
    found = getattr(datamodule, "facts", {})
    if not isinstance(cfg.facts, DictConfig | None):
        raise UserError(f"facts={cfg.facts!r} are no facts; leave facts out.")
    for name, value in (cfg.facts or {}).items():
        given = OmegaConf.to_container(value, resolve=True) if isinstance(value, DictConfig | ListConfig) else value
        if name not in found or found[name] != given:
            raise UserError(f"facts.{name!s} is {given}, but the data says {found.get(name)}; leave facts out.")
    if any("_target_" in part for part in trust.parts(found)):
        raise UserError("The facts of the data must have no key '_target_', which builds something; rename it.")
    try:
        cfg.facts = literal(found)
    except OmegaConfBaseException as error:
        raise UserError(f"{error.full_key} of the data must be plain lists, texts and numbers: {error.msg}.") from error


def task(cfg: DictConfig) -> LightningModule:
    """The task with its model, optimizer and scheduler in it.

    Raises:
        UserError: it does not fit the data, as its own `check_facts` says before anything is built for it.
    """
    written: Any = OmegaConf.to_container(cfg.task, resolve=False)
    kind = make(cfg, "task", {"_target_": written.get("_target_"), "_partial_": True}).func
    if check := getattr(kind, "check_facts", None):
        check(cfg.facts or {})
    return make(cfg, "task", cfg.task)


def parts(cfg: DictConfig) -> tuple[LightningDataModule, LightningModule]:
    """The datamodule with its facts in cfg, and the task, of a new run or of one that is there already.

    Raises:
        UserError: a config that was stored wants what may not be built, or its data has changed.
    """
    check_modes(cfg)
    if cfg.rerun:
        cfg.facts = None  # as the data says now
    datamodule = data(cfg)
    changed = same_data.check(cfg, datamodule)
    if not (changed and cfg.resume):  # the model keeps the facts that it began with
        facts(cfg, datamodule)
    return datamodule, task(cfg)


def check_modes(cfg: DictConfig) -> None:
    """Raises UserError where it is not known which value is better of what is watched."""
    for key in ("checkpoint", "scheduler", "callbacks.early_stopping"):
        node = OmegaConf.select(cfg, key)
        mode = node.get("mode", "") if isinstance(node, DictConfig) else ""  # other schedulers have other modes
        if mode is None or (key == "checkpoint" and mode not in ("min", "max")):
            why = f"; got `{mode}`" if mode else ", as the name of what it watches does not say which is better"
            raise UserError(f"`{key}.mode` must be min or max{why}; type {key}.mode=min or {key}.mode=max.")


def watchers(cfg: DictConfig) -> list[Callback]:
    """The keeper first, the chosen callbacks, and the records last."""
    chosen = [make(cfg, f"callbacks.{name}", node) for name, node in group(cfg, "callbacks")]
    tree = OmegaConf.to_yaml(cfg)
    settings = {"write": cfg.trainer.enable_checkpointing, "seed": cfg.seed, "exact": cfg.exact, "config": tree}
    settings["judge"] = study.judge(Path(cfg.run_dir), partial(trust.checked, cfg))
    keeper = Keeper(cfg.run_dir, objective=cfg.objective, **settings, **cfg.checkpoint)
    return [keeper, *chosen, Mistakes(), Records(cfg.run_dir, keeper, Run(cfg.run_dir).update)]


def trainer(cfg: DictConfig, callbacks: list[Callback]) -> Trainer:
    """The Trainer with these callbacks, and with loggers and profiler.

    Raises:
        UserError: a combination that Lightning refuses.
    """
    bar = cfg.trainer.enable_progress_bar and sys.stdout.isatty()
    ours: dict[str, Any] = {}
    if cfg.trainer.strategy == "ddp":
        timeout = timedelta(seconds=cfg.get("timeout") or 600)
        ours["strategy"] = DDPStrategy(timeout=timeout, gradient_as_bucket_view=True)
    built = make(
        cfg,
        "trainer",
        cfg.trainer,
        **ours,
        callbacks=callbacks + [RichProgressBar(refresh_rate=20)] * bar,
        logger=[make(cfg, f"logger.{name}", node) for name, node in group(cfg, "logger")],
        profiler=make(cfg, "profiler", cfg.profiler) if cfg.get("profiler") else None,
        plugins=[AtomicIO(Run(cfg.run_dir).update)],
        default_root_dir=cfg.run_dir,
        enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
        enable_progress_bar=bar,
    )
    compiled.by_no_stopwatch()
    lightning_internals.join_ranks(built, exact.Share)
    if built.precision != str(cfg.trainer.precision) and built.is_global_zero:
        log.warning("precision=%s is not for this device; running in %s.", cfg.trainer.precision, built.precision)
    return built


def group(cfg: DictConfig, name: str) -> Iterator[tuple[str, DictConfig]]:
    """The parts of a list group; an empty list leaves no key."""
    return iter((cfg.get(name) or {}).items())


def evaluate(
    trainer: Trainer, task: LightningModule, datamodule: LightningDataModule, weights: Path | None
) -> dict[str, Any]:
    """Test the task, with other weights if given; the metrics and the number of samples, empty without test data.

    Raises UserError where a user's own datamodule, whose training data may be shuffled, is asked for it.
    """
    split = "test" if isinstance(datamodule, DataModule) else getattr(datamodule, "tested", "test")
    if split == "train":
        raise UserError("split=train needs a datamodule of leyden; type split=val or split=test.")
    run, stage = (trainer.validate, "validation") if split == "val" else (trainer.test, "test")
    if not (is_overridden(f"{stage}_step", task) and is_overridden(f"{split}_dataloader", datamodule)):
        return {}
    if weights:
        checkpoints.load(task, weights)
    reset_seed()  # a task that draws noise draws the same in another evaluation
    with failures.explained(trainer, task):
        found = run(task, datamodule=datamodule, verbose=False)
    metrics = {name: value for part in found for name, value in part.items()}
    if not metrics:
        return {}
    samples, details = getattr(task, "samples", None), getattr(task, "details", None)
    apart = details if split != "val" and isinstance(details, dict) else {}  # what is known of each class
    return metrics | apart | {"samples": samples if isinstance(samples, int) else None}


def summary(task: LightningModule, trainer: Trainer, datamodule: LightningDataModule) -> dict[str, Any]:
    """What run.json stores of the objects themselves."""
    batch = size if isinstance(size := getattr(datamodule, "batch_size", None), int) else None
    return {
        "threads": torch.get_num_threads(),
        "precision": trainer.precision,
        "world_size": trainer.world_size,
        "effective_batch": batch and batch * trainer.world_size * trainer.accumulate_grad_batches,
        "device": str(trainer.strategy.root_device),
        "parameters": sum(parameter.numel() for parameter in task.parameters()),
        "trained": sum(parameter.numel() for parameter in task.parameters() if parameter.requires_grad),
        "parts": {
            name: f"{type(part).__name__} {count:,}"
            for name, part in getattr(task, "model", task).named_children()
            if (count := sum(parameter.numel() for parameter in part.parameters()))
        },
        "data_fingerprint": getattr(datamodule, "fingerprint", None),
        "padding": getattr(datamodule, "padding", None),
        **(datamodule.notes if isinstance(datamodule, DataModule) else {}),
        "kernels": dict(kernels.found),
    }
