"""From the config to live objects: the only place where something is instantiated."""

import logging
import re
import sys
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch._inductor.config
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from lightning import LightningDataModule, LightningModule, Trainer
from lightning.fabric.utilities.seed import pl_worker_init_function, reset_seed
from lightning.pytorch.callbacks import Callback, Checkpoint, RichProgressBar
from lightning.pytorch.loggers import Logger
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue
from torch import nn
from torch.nn.parameter import is_lazy

from leyden import UserError, lightning_internals, require, said
from leyden.data.datamodule import DataModule
from leyden.debug import failures
from leyden.debug.mistakes import Mistakes
from leyden.resume import checkpoints, exact
from leyden.resume.checkpoints import AtomicIO
from leyden.resume.keeper import Keeper
from leyden.resume.records import Records
from leyden.run import configs, paths, record, study, trust
from leyden.run.run import Run
from leyden.tasks.optimizers import Frozen, make_callable
from leyden.tasks.supervised import Supervised

FOR_TARGETS = {"numbers": "task=regression", "classes": "task=classification or, for a table, data.target_kind=numbers"}
POSITIVE = ("val_check_interval", "check_val_every_n_epoch", "log_every_n_steps", "accumulate_grad_batches")
BUILT: ContextVar[DictConfig | None] = ContextVar("BUILT", default=None)  # the config that is being built from
log = logging.getLogger(__name__)


def make(cfg: DictConfig, key: str, node: Any, kind: type = object, **keywords: Any) -> Any:
    """Instantiate a node of the config, which is called `key`.

    Raises UserError for whatever its constructor raises, and where it may not be built, or is of another kind.
    """
    before = BUILT.set(cfg)
    try:
        made = instantiate(OmegaConf.create({key: trust.checked(cfg, node)})[key], **keywords)
    except Exception as error:
        cause: BaseException = error
        while isinstance(cause, InstantiationException) and cause.__cause__:  # of Hydra: the constructor's own in it
            cause = cause.__cause__
        if isinstance(cause, UserError):
            raise cause from cause.__cause__
        if isinstance(cause, MissingMandatoryValue):
            raise UserError(f"{cause.full_key} is needed; type {cause.full_key}=<value>.") from error
        place = re.search(r"^full_key: (\S+)", str(error), re.M)
        name = place[1] if place else key
        target = f" ({node.get('_target_')})" if name in ("data", "task") else ""
        raise UserError(f"{name}{target} cannot be built: {said(cause)}.") from error
    finally:
        BUILT.reset(before)
    require(isinstance(made, kind), key, f"a {kind.__name__}", f"{type(made).__module__}.{type(made).__qualname__}")
    return made


def group(cfg: DictConfig, name: str, kind: type) -> list[Any]:
    """The parts of a list group, which is no key where it is empty."""
    return [make(cfg, f"{name}.{part}", node, kind) for part, node in (cfg.get(name) or {}).items()]


def data(cfg: DictConfig, split: str | None = None) -> LightningDataModule:
    """The datamodule, whose draws come from the seed of the run that goes on or is read.

    `split`: that `record.check_same` looks at; None: all.
    """
    directory = cfg.run_dir if cfg.get("resume") else cfg.get("rerun")
    if cfg.get("run"):  # the checkpoint of another command
        directory = Path(cfg.run).parent.parent
    before = Run(directory) if directory else None
    seen = before.record if before else {}
    seed = cfg.seed if cfg.get("rerun") else seen.get("seed", cfg.seed)
    tree: Any = OmegaConf.merge(cfg, {"data_dir": str(paths.in_project(cfg.data_dir)), "seed": seed})
    with exact.isolated(tree.seed):
        made = make(tree, "data", tree.data, LightningDataModule)
    if not isinstance(made, DataModule):
        return exact.seed_hooks(made, pl_worker_init_function, tree.seed)
    if before and seen.get("data_fingerprint"):
        record.check_same(cfg, made, before, split)
    return made


def facts(cfg: DictConfig, datamodule: LightningDataModule) -> None:
    """Put what the data says of itself into cfg.facts, from where models and tasks take it."""
    require(not cfg.facts, "facts", "left out, as the data says them", cfg.facts)
    found = getattr(datamodule, "facts", {})
    good = not any("_target_" in part for part in trust.parts(found))
    require(good, "facts of the data", "without a key `_target_`", found)
    cfg.facts = configs.literal(found)


def parts(cfg: DictConfig) -> tuple[LightningDataModule, LightningModule]:
    """The datamodule with its facts in cfg, and the task, of a new run or of one that is there already."""
    unknown = f"min or max, as the name of what it watches does not say which is better (objective {cfg.objective})"
    require(cfg.checkpoint.mode in ("min", "max"), "checkpoint.mode", unknown, cfg.checkpoint.mode)
    require(OmegaConf.select(cfg, "scheduler.mode", default="") is not None, "scheduler.mode", unknown, None)
    if cfg.rerun:
        cfg.facts = None  # as the data says now
    datamodule = data(cfg)
    if not cfg.resume:  # the model keeps the facts that it began with
        facts(cfg, datamodule)
    return datamodule, task(cfg)


def task(cfg: DictConfig) -> LightningModule:
    """The task with its model, optimizer and scheduler in it."""
    target = {"_target_": OmegaConf.to_container(cfg.task, resolve=False).get("_target_"), "_partial_": True}
    found = "numbers" if "target_mean" in (cfg.facts or {}) else "classes"
    if getattr(make(cfg, "task", target).func, "targets", found) != found:
        raise UserError(f"The targets of the data are {found}; type {FOR_TARGETS[found]}.")
    made = make(cfg, "task", cfg.task, LightningModule)
    make_callable(made)
    lazy = [name for name, parameter in made.named_parameters() if is_lazy(parameter)]
    require(not lazy, "task", "of layers with all their sizes", lazy)
    return made


def load_model(run: str | Path, frozen: bool = True) -> nn.Module:
    """The task of another run with its weights, without its data; if `frozen`, it stays as in an evaluation.

    `run` is as `run=` takes it; a `latest` of a config is stored as the run that was found. Raises UserError where
    there is none, where it may not be built, and for a `latest` in code, where it cannot be stored.
    """
    outer = BUILT.get()
    now: Any = OmegaConf.load(paths.CONF / "_packages.yaml") if outer is None else outer
    sweep = Path(outer.run_dir).parent if outer else None
    found = paths.find(str(run), paths.logs_folder(now.get("log_dir")), sweep=sweep)
    if run == "latest" and outer and not configs.pin(outer, str(paths.in_words(found.directory))):
        raise UserError("load_model('latest') must stand in the config, where the run that is found can be stored.")
    tree, file = configs.stored(found.directory), str(found.checkpoint(str(run)))
    tree.update(run=file, run_dir=str(found.directory), own=[], trusted=configs.packages(now))
    with exact.isolated(0):  # what it draws leaves the draws of the other as they were
        made = trained(tree)
    return Frozen(made) if frozen else made


def trained(cfg: DictConfig) -> LightningModule:
    """The task of a run, with the weights of the checkpoint `cfg.run`; UserError if they do not fit."""
    if OmegaConf.select(cfg, "model.weights"):  # the file has them
        cfg.model.weights = None
    made = task(cfg)
    checkpoints.load(made, Path(cfg.run))
    return made


def watchers(cfg: DictConfig) -> list[Callback]:
    """The keeper first, the chosen callbacks, and the records last."""
    run = Run(cfg.run_dir)
    settings = {key: cfg[key] for key in ("seed", "exact", "objective")} | {"write": cfg.trainer.enable_checkpointing}

    def checked(node: Any) -> Any:
        return trust.checked(cfg, node)

    keeper = Keeper(str(run.directory), judge=study.judge(run.directory, checked), **settings, **cfg.checkpoint)
    announce = partial(record.announce, cfg, f"{keeper.monitor} ({keeper.mode})")
    records = Records(str(run.directory), keeper, run.update, announce)
    return [keeper, *group(cfg, "callbacks", Callback), Mistakes(), records]


def trainer(cfg: DictConfig, callbacks: list[Callback]) -> Trainer:
    """The Trainer with these callbacks, and with loggers and profiler."""
    for key in POSITIVE:  # which Lightning itself does not check, nor a time without quotes, a number in YAML
        require((value := cfg.trainer.get(key)) is None or value > 0, f"trainer.{key}", "above 0", value)
    time = cfg.trainer.get("max_time")
    require(isinstance(time, str | None), "trainer.max_time", 'null or a text "DD:HH:MM:SS", in quotes', time)
    bar = bool(cfg.trainer.enable_progress_bar) and sys.stdout.isatty()
    plugins = make(cfg, "trainer.plugins", cfg.trainer.get("plugins") or [], list, _convert_="all")
    ours: dict[str, Any] = {}
    if cfg.trainer.strategy == "ddp":
        timeout = timedelta(seconds=cfg.get("timeout") or 600)
        ours["strategy"] = DDPStrategy(timeout=timeout, gradient_as_bucket_view=True)
    built = make(
        cfg,
        "trainer",
        cfg.trainer,
        Trainer,
        **ours,
        callbacks=callbacks + [RichProgressBar(refresh_rate=20)] * bar,
        logger=group(cfg, "logger", Logger),
        profiler=make(cfg, "profiler", cfg.profiler, Profiler) if cfg.get("profiler") else None,
        plugins=[*plugins, AtomicIO(Run(cfg.run_dir).update)],
        default_root_dir=cfg.run_dir,
        enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
        enable_progress_bar=bar,
    )
    torch._inductor.config.deterministic = True  # no stopwatch chooses kernels of other bits; a Trainer sets it back
    lightning_internals.join_ranks(built, exact.Share)
    if (asked := str(cfg.trainer.precision)) != built.precision and built.is_global_zero:
        log.warning("precision=%s is not for this device; running in %s.", asked, built.precision)
    return built


def evaluate(
    trainer: Trainer, task: LightningModule, datamodule: LightningDataModule, weights: Path | None
) -> dict[str, Any]:
    """Test the task, with other weights if given: the metrics and the number of samples, empty without test data."""
    split = "test" if isinstance(datamodule, DataModule) else getattr(datamodule, "tested", "test")
    if split == "train":  # which may be shuffled
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
    ours = isinstance(task, Supervised)
    apart = getattr(task, "details", {}) if ours and split != "val" else {}  # what is known of each class
    return metrics and metrics | apart | {"samples": task.samples if ours else None}
