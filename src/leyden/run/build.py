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
from lightning.pytorch import loggers, profilers, strategies
from lightning.pytorch.callbacks import Callback, RichProgressBar
from lightning.pytorch.utilities.model_helpers import is_overridden
from omegaconf import DictConfig, MissingMandatoryValue, OmegaConf
from torch import nn

from leyden import UserError, lightning_internals, require, said
from leyden.data.datamodule import DataModule
from leyden.debug import layers, watch
from leyden.resume import checkpoints, exact
from leyden.resume.keeper import Keeper
from leyden.resume.records import Records
from leyden.run import configs, paths, record, study, trust
from leyden.run.run import Run
from leyden.tasks import optimizers, supervised

FOR_TARGETS = {"numbers": "task=regression", "classes": "task=classification or, for a table, data.target_kind=numbers"}
POSITIVE = ("val_check_interval", "check_val_every_n_epoch", "log_every_n_steps", "accumulate_grad_batches")
BUILT: ContextVar[DictConfig | None] = ContextVar("BUILT", default=None)  # the config that is being built from
log = logging.getLogger(__name__)


def make(cfg: DictConfig, key: str, node: Any, kind: type = object, **kwargs: Any) -> Any:
    """What the node `key` of the config says; UserError where it may not be built, fails, or is of another kind."""
    before = BUILT.set(cfg)
    try:
        made = instantiate(OmegaConf.create({key: trust.checked(cfg, node)})[key], **kwargs)
    except Exception as error:
        cause = error.__cause__ if isinstance(error, InstantiationException) and error.__cause__ else error
        if isinstance(cause, UserError):
            raise cause from cause.__cause__
        if isinstance(cause, MissingMandatoryValue):
            raise UserError(f"{cause.full_key} is needed; type {cause.full_key}=<value>.") from error
        if fact := re.match(r"Interpolation key 'facts\.(\w+)", str(cause)):
            lack = f"The datamodule {cfg.data.get('_target_')} has no `{fact[1]}` in its dict `facts`"
            raise UserError(f"{lack}, which {cause.full_key} takes; add it there.") from error

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
    """The datamodule, which draws as in the run before; `split`: the one that is asked for."""
    before = configs.source(cfg)
    seen = before.record if before else {}
    seed = cfg.seed if cfg.get("rerun") else seen.get("seed", cfg.seed)
    tree: Any = OmegaConf.merge(cfg, {"data_dir": str(paths.in_project(cfg.data_dir)), "seed": seed})
    with exact.isolated(seed):
        made = make(tree, "data", tree.data, LightningDataModule)

    if not isinstance(made, DataModule):
        return exact.seed_hooks(made, pl_worker_init_function, seed)
    if before and seen.get("data_fingerprint"):
        record.check_same(cfg, made, before, split)
    return made


def parts(cfg: DictConfig) -> tuple[LightningDataModule, LightningModule]:
    """The datamodule with its facts in cfg, and the task."""
    for key in ("checkpoint.mode", "scheduler.mode"):
        must = "min or max, as its metric's name does not say which is better"
        require((mode := OmegaConf.select(cfg, key, default="min")) in ("min", "max"), key, must, mode)

    if cfg.rerun:
        cfg.facts = None  # as the data says now
    datamodule = data(cfg)
    if not cfg.resume:  # the model keeps the facts that it began with
        facts(cfg, datamodule)
    return datamodule, task(cfg)


def facts(cfg: DictConfig, datamodule: LightningDataModule) -> None:
    """Put what the data says of itself into cfg.facts, where models and tasks find it."""
    require(not cfg.facts, "facts", "left out, as the data says them", cfg.facts)
    found = getattr(datamodule, "facts", {})
    require(not any("_target_" in part for part in trust.parts(found)), "the data's facts", "without _target_", found)
    cfg.facts = configs.literal(found)


def task(cfg: DictConfig) -> LightningModule:
    """The task with its model, optimizer and scheduler in it."""
    target = {"_target_": OmegaConf.to_container(cfg.task).get("_target_"), "_partial_": True}
    found = "numbers" if "target_mean" in (cfg.facts or {}) else "classes"
    if getattr(make(cfg, "task", target).func, "targets", found) != found:
        raise UserError(f"The targets of the data are {found}; type {FOR_TARGETS[found]}.")

    made = make(cfg, "task", cfg.task, LightningModule)
    optimizers.make_callable(made)
    lazy = [name for name, parameter in made.named_parameters() if nn.parameter.is_lazy(parameter)]
    require(not lazy, "task", "of layers with all their sizes", lazy)
    return made


def load_model(run: str | Path, frozen: bool = True) -> nn.Module:
    """The task of another run, as `run=` takes it, with its weights; if `frozen`, it stays as in an evaluation.

    A `latest` of a config is stored as the run that was found. UserError where there is none, where it may not be
    built, and for a `latest` in code.
    """
    outer = BUILT.get()
    now: Any = outer or OmegaConf.load(paths.CONF / "_packages.yaml")
    sweep = Path(outer.run_dir).parent if outer and outer.run_dir else None
    found = paths.find(str(run), paths.logs_folder(now.get("log_dir")), sweep=sweep)
    if run == "latest" and outer and not configs.pin(outer, str(paths.in_words(found.directory))):
        raise UserError("load_model('latest') must stand in the config, which stores the run found.")

    tree = configs.stored(found.directory)
    tree.update(run=str(found.checkpoint(str(run))), run_dir=None, own=[], trusted=configs.packages(now))
    with exact.isolated(0):
        made = trained(tree)
    return optimizers.Frozen(made) if frozen else made


def trained(cfg: DictConfig) -> LightningModule:
    """The task with the weights of the checkpoint `cfg.run`; UserError if they do not fit."""
    if OmegaConf.select(cfg, "model.weights"):  # the file has them
        cfg.model.weights = None
    made = task(cfg)
    checkpoints.load(made, Path(cfg.run))
    return made


def watchers(cfg: DictConfig) -> list[Callback]:
    """The keeper, the chosen callbacks, and the records."""
    run, write = Run(cfg.run_dir), cfg.trainer.enable_checkpointing
    settings = {"seed": cfg.seed, "exact": cfg.exact, "objective": cfg.objective, "write": write} | dict(cfg.checkpoint)
    keeper = Keeper(run.directory, judge=study.judge(run.directory, partial(trust.checked, cfg)), **settings)
    announce = partial(record.announce, cfg, f"{keeper.monitor} ({keeper.mode})")
    records = Records(run.directory, keeper, run.update, announce)
    return [keeper, *group(cfg, "callbacks", Callback), watch.Mistakes(), records]


def trainer(cfg: DictConfig, callbacks: list[Callback]) -> Trainer:
    """The Trainer with these callbacks, and with loggers and profiler."""
    for key in POSITIVE:  # Lightning does not check them
        value = cfg.trainer.get(key)
        require(value is None or isinstance(value, str) or value > 0, f"trainer.{key}", "above 0", value)
    time = cfg.trainer.get("max_time")
    require(isinstance(time, str | None), "trainer.max_time", 'null or a text "DD:HH:MM:SS", in quotes', time)
    plugins = make(cfg, "trainer.plugins", cfg.trainer.get("plugins") or [], list, _convert_="all")

    bar = bool(cfg.trainer.enable_progress_bar) and sys.stdout.isatty()
    ours: dict[str, Any] = {
        "callbacks": callbacks + [RichProgressBar(refresh_rate=20)] * bar,
        "logger": group(cfg, "logger", loggers.Logger),
        "plugins": [*plugins, checkpoints.AtomicIO(Run(cfg.run_dir).update)],
        "default_root_dir": cfg.run_dir,
        "enable_checkpointing": bool(callbacks),  # the keeper is one of them
        "enable_progress_bar": bar,
    }

    if cfg.get("profiler"):
        ours["profiler"] = make(cfg, "profiler", cfg.profiler, profilers.Profiler)
    if cfg.trainer.strategy == "ddp":
        timeout = timedelta(seconds=cfg.get("timeout") or 600)
        ours["strategy"] = strategies.DDPStrategy(timeout=timeout, gradient_as_bucket_view=True)

    built = make(cfg, "trainer", cfg.trainer, Trainer, **ours)
    torch._inductor.config.deterministic = True  # no stopwatch chooses kernels; a Trainer sets it back
    lightning_internals.join_ranks(built, exact.Share)
    if (asked := str(cfg.trainer.precision)) != built.precision and built.is_global_zero:
        log.warning("precision=%s is not for this device; running in %s.", asked, built.precision)
    return built


def evaluate(trainer: Trainer, task: LightningModule, datamodule: LightningDataModule) -> dict[str, Any]:
    """Test the task: the metrics and the number of samples; empty where there is no test."""
    split = "test" if isinstance(datamodule, DataModule) else getattr(datamodule, "tested", "test")
    if split == "train":  # which may be shuffled
        raise UserError("split=train needs a datamodule of leyden; type split=val or test.")

    run, stage = (trainer.validate, "validation") if split == "val" else (trainer.test, "test")
    if not (is_overridden(f"{stage}_step", task) and is_overridden(f"{split}_dataloader", datamodule)):
        return {}
    reset_seed()  # noise is the same in each evaluation
    with layers.explained(trainer, task):
        found = run(task, datamodule=datamodule, verbose=False)

    metrics = {name: value for part in found for name, value in part.items()}
    ours = isinstance(task, supervised.Supervised)
    apart = getattr(task, "details", {}) if ours and split != "val" else {}  # what is known of each class
    return metrics and metrics | apart | {"samples": task.samples if ours else None}
