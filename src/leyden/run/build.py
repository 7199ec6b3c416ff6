"""From the config to live objects: the only place where something is instantiated."""

import logging
import re
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch._inductor.config
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

FOR_TARGETS = {"numbers": "task=regression", "classes": "task=classification or, for a table, data.target_kind=numbers"}
POSITIVE = ("val_check_interval", "check_val_every_n_epoch", "log_every_n_steps", "accumulate_grad_batches")
log = logging.getLogger(__name__)


def make(cfg: DictConfig, key: str, node: Any, kind: type = object, **keywords: Any) -> Any:
    """Instantiate a node of the config, which is called `key`; its texts stay as they are.

    Raises:
        UserError: its constructor raises, a value is missing, its target may not be built, or is of another kind.
    """
    try:
        plain = trust.checked(cfg, node)
        if isinstance(plain, dict):
            plain = {"_convert_": "all"} | plain
        made = instantiate(OmegaConf.create({key: plain})[key], **keywords)
    except UserError:
        raise
    except Exception as error:  # of Hydra, with the constructor's own as its cause
        cause = error.__cause__ or error
        if isinstance(cause, UserError):
            raise cause from error
        if isinstance(cause, MissingMandatoryValue):
            raise UserError(f"{cause.full_key} is needed; type {cause.full_key}=<value>.") from error
        place = re.search(r"^full_key: (\S+)", str(error), re.M)
        name = place[1] if place else key
        target = f" ({node.get('_target_')})" if name in ("data", "task") else ""
        raise UserError(f"{name}{target} cannot be built: {said(cause)}.") from error
    require(isinstance(made, kind), key, f"a {kind.__name__}", f"{type(made).__module__}.{type(made).__qualname__}")
    return made


def group(cfg: DictConfig, name: str, kind: type) -> list[Any]:
    """The parts of a list group; an empty list leaves no key."""
    return [make(cfg, f"{name}.{part}", node, kind) for part, node in (cfg.get(name) or {}).items()]


# data


def data(cfg: DictConfig, split: str | None = None) -> LightningDataModule:
    """The datamodule; what it draws comes from the seed of the run that is read, goes on or is repeated.

    `split`: the one that is asked for; None: all.

    Raises:
        UserError: its splits are cut anew from other data than what the run saw, so that test may hold what it was
            trained on, and `exact` forbids it.
    """
    directory = cfg.run_dir if cfg.get("resume") else cfg.get("rerun")
    if cfg.get("run"):  # the checkpoint of another command
        directory = Path(cfg.run).parent.parent
    tree, before = cfg.copy(), Run(directory).record if directory else {}
    tree.data_dir = str(paths.in_project(cfg.data_dir))
    tree.seed = cfg.seed if cfg.get("rerun") else before.get("seed", cfg.seed)
    with exact.isolated(tree.seed):
        made = make(tree, "data", tree.data, LightningDataModule)
    if not isinstance(made, DataModule):
        return exact.seed_hooks(made, pl_worker_init_function, tree.seed)
    check_same(cfg, made, before, split)
    return made


def check_same(cfg: DictConfig, datamodule: DataModule, before: dict[str, Any], split: str | None) -> None:
    """Compare the data with what the run before saw, where a split that is asked for is cut by us.

    Raises:
        UserError: it differs, and `exact` forbids it; or the model was built for other classes or columns.
    """
    if not (then := before.get("data_fingerprint")):
        return
    if cfg.facts:
        facts = OmegaConf.to_container(cfg.facts, resolve=True), datamodule.facts
        classes, columns = ([part.get(name) or [] for part in facts] for name in ("classes", "columns"))
        codes = [[(each["name"], each.get("categories"), each.get("offset")) for each in part] for part in columns]
        if classes[0] != classes[1] or codes[0] != codes[1]:
            what = "The classes or columns of the data are not those that the run was trained on"
            raise UserError(f"{what}, and its numbers would mean nothing; bring the data back.")
    same, notes = then == datamodule.fingerprint, datamodule.notes
    cut = {*before.get("cut_splits", ()), *notes["cut_splits"]}
    if same or not (cfg.get("resume") or (cut and split in {None, *cut})):
        return
    if cfg.get("rerun"):
        now, stored = (OmegaConf.to_container(tree.data) for tree in (cfg, configs.stored(Path(cfg.rerun))))
        if now != stored:  # as its user says
            return
    sizes = [", ".join(f"{k} {v:,}" for k, v in p.get("split_sizes", {}).items()) for p in (notes, before)]
    counts = f"(samples now: {sizes[0]}; then: {sizes[1]})"
    changed = f"The data is not what the run was trained on {counts}, and its splits would not be the same"
    if cfg.exact:
        raise UserError(f"{changed}; bring the data back, or type exact=false to go on all the same.")
    log.warning("%s; going on, as exact=false says.", changed)
    if cfg.get("run") and record.is_first_rank():
        Run(cfg.run_dir).update(exact=False, not_exact=changed)


def facts(cfg: DictConfig, datamodule: LightningDataModule) -> None:
    """Put what the data says of itself into cfg.facts, from where models and tasks take it.

    Raises:
        UserError: the config has facts already, or those of the data name a target.
    """
    require(not cfg.facts, "facts", "left out, as the data says them", cfg.facts)
    found = getattr(datamodule, "facts", {})
    if any("_target_" in part for part in trust.parts(found)):
        raise UserError("The facts of the data must have no key '_target_', which builds something; rename it.")
    cfg.facts = configs.literal(found)


# all that is trained


def parts(cfg: DictConfig) -> tuple[LightningDataModule, LightningModule]:
    """The datamodule with its facts in cfg, and the task, of a new run or of one that is there already.

    Raises:
        UserError: a config that was stored wants what may not be built, or its data has changed.
    """
    unknown = "min or max, as the name of what it watches does not say which is better"
    require(cfg.checkpoint.mode in ("min", "max"), "checkpoint.mode", unknown, cfg.checkpoint.mode)
    require(OmegaConf.select(cfg, "scheduler.mode", default="") is not None, "scheduler.mode", unknown, None)
    if cfg.rerun:
        cfg.facts = None  # as the data says now
    datamodule = data(cfg)
    if not cfg.resume:  # the model keeps the facts that it began with
        facts(cfg, datamodule)
    return datamodule, task(cfg)


def task(cfg: DictConfig) -> LightningModule:
    """The task with its model, optimizer and scheduler in it.

    Raises:
        UserError: it is for `targets` of another kind than those of the data, or some of its layers have no size.
    """
    target = {"_target_": OmegaConf.to_container(cfg.task, resolve=False).get("_target_"), "_partial_": True}
    found = "numbers" if "target_mean" in (cfg.facts or {}) else "classes"
    if getattr(make(cfg, "task", target).func, "targets", found) != found:
        raise UserError(f"The targets of the data are {found}; type {FOR_TARGETS[found]}.")
    made = make(cfg, "task", cfg.task, LightningModule)
    lazy = [name for name, parameter in made.named_parameters() if is_lazy(parameter)]
    require(not lazy, "task", "of layers with all their sizes, as an optimizer and a checkpoint need them", lazy)
    return made


def watchers(cfg: DictConfig) -> list[Callback]:
    """The keeper first, the chosen callbacks, and the records last."""
    given = {key: cfg[key] for key in ("seed", "exact", "objective")} | {"write": cfg.trainer.enable_checkpointing}
    judge = study.judge(Path(cfg.run_dir), partial(trust.checked, cfg))
    keeper = Keeper(cfg.run_dir, judge=judge, **given, **cfg.checkpoint)
    announce = partial(record.announce, cfg, f"{keeper.monitor} ({keeper.mode})")
    records = Records(cfg.run_dir, keeper, Run(cfg.run_dir).update, announce)
    return [keeper, *group(cfg, "callbacks", Callback), Mistakes(), records]


def trainer(cfg: DictConfig, callbacks: list[Callback]) -> Trainer:
    """The Trainer with these callbacks, and with loggers and profiler.

    Raises:
        UserError: a combination that Lightning refuses.
    """
    time = cfg.trainer.get("max_time")  # what follows Lightning itself does not check
    require(time is None or isinstance(time, str), "trainer.max_time", 'null or a text "DD:HH:MM:SS", in quotes', time)
    for key in POSITIVE:
        value = cfg.trainer.get(key)
        require(value is None or value > 0, f"trainer.{key}", "above 0", value)
    bar = bool(cfg.trainer.enable_progress_bar) and sys.stdout.isatty()
    ours: dict[str, Any] = {}
    plugins = make(cfg, "trainer.plugins", cfg.trainer.get("plugins") or [], list, _convert_="all")
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
    if built.precision != str(cfg.trainer.precision) and built.is_global_zero:
        log.warning("precision=%s is not for this device; running in %s.", cfg.trainer.precision, built.precision)
    return built


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
    if not (metrics := {name: value for part in found for name, value in part.items()}):
        return {}
    samples, details = getattr(task, "samples", None), getattr(task, "details", None)
    apart = details if split != "val" and isinstance(details, dict) else {}  # what is known of each class
    return metrics | apart | {"samples": samples if isinstance(samples, int) else None}
