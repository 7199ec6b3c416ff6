"""What loggers are told besides the curves, and what becomes of a run whose logger fails."""

import inspect
import logging
import os
import re
import shlex
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from lightning import Trainer
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger
from omegaconf import DictConfig, OmegaConf

from leyden import UserError, said
from leyden.run import keys, paths
from leyden.run.run import Run

# Seconds that a run waits for a server, and how often it asks again
PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "3", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
PATIENCE |= {"WANDB_INIT_TIMEOUT": "30", "WANDB_FINISH_TIMEOUT": "30"}
log = logging.getLogger(__name__)


def begin(trainer: Trainer, cfg: DictConfig, resumed: bool) -> None:
    """Tell each logger the config, TensorBoard only once; UserError if one cannot start."""
    os.environ.update(PATIENCE | os.environ)
    threading.excepthook = show
    run, text = Run(cfg.run_dir), OmegaConf.to_yaml(cfg)

    for logger in trainer.loggers if trainer.is_global_zero else ():
        try:
            if isinstance(logger, MLFlowLogger):
                logger.log_hyperparams(parameters(cfg, run.record))
                logger.experiment.log_text(logger.run_id, text, "config.yaml")
            elif not isinstance(logger, TensorBoardLogger):
                settings: Any = OmegaConf.to_container(cfg, resolve=True)
                logger.log_hyperparams(settings)
            elif logger.experiment and not resumed:
                for name, content in {"command": run.record.get("command"), "config": text}.items():
                    logger.experiment.add_text(name, f"```\n{content}\n```", 0)
        except Exception as error:  # of any package
            raise UserError(f"{type(logger).__name__} cannot start: {said(error)[:200]}; see conf/logger.") from error

        guard(logger, run)


def guard(logger: Any, run: Run) -> None:
    """Keep what the methods of a logger and of its experiment raise in run.json; it ends nothing.

    After a failure they rest ten times as long as it took: a server may hang, and come back.
    """
    rest, kind = 0.0, type(logger).__name__

    def call(method: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal rest
        if (start := time.monotonic()) < rest:
            return None
        try:
            return method(*args, **kwargs)
        except Exception as error:  # of any package
            first, rest = not rest, start + 10 * (time.monotonic() - start)
            if first:
                why = said(error)[:200]
                run.update(failed_loggers=run.record.get("failed_loggers", {}) | {kind: why})
                log.warning("%s failed; what it lacks is in metrics.csv: %s.", kind, why)

    for owner in (logger, getattr(logger, "experiment", None)):
        for name, _ in inspect.getmembers(type(owner), inspect.isfunction):
            if not name.startswith("_"):
                setattr(owner, name, partial(call, getattr(owner, name)))


def show(error: Any) -> None:
    """Show what ended a thread; TensorBoard's keeps it for its next caller."""
    if not getattr(error.thread, "exception", None):
        threading.__excepthook__(error)


def conclude(trainer: Trainer, cfg: DictConfig, results: dict[str, Any]) -> None:
    """Tell the log and each logger the best values and their checkpoint; TensorBoard as a row of its HPARAMS."""
    run, best, values = Run(cfg.run_dir), results.get("best") or {}, outcome(results)
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.log_hyperparams(columns(cfg, run.record), values, best.get("step"))
        else:
            logger.log_metrics(values, best.get("step"))
            logger.log_hyperparams({"best_checkpoint": str(run.directory / best.get("checkpoint", ""))})
        logger.finalize("success")

    log.info(in_lines(results, run.directory))


def outcome(results: dict[str, Any]) -> dict[str, float]:
    """The best monitored value and its counterpart in the test, or the last values where nothing was judged."""
    if not (best := results.get("best")):
        return {f"last/{name}": value for name, value in results["train"].items()}
    name, test = f"test/{best['monitor'].rpartition('/')[2]}", results.get("test") or {}
    return {f"best/{best['monitor']}": best["value"]} | ({f"best/{name}": test[name]} if name in test else {})


def columns(cfg: DictConfig, record: dict[str, Any]) -> dict[str, Any]:
    """What tells runs apart: model, data, seed, and what a sweep varies, or else what was typed."""
    found = {name: cfg[name]._target_.rpartition(".")[2].lower() for name in ("model", "data") if name in cfg}
    found["seed"] = cfg.seed

    typed, command = record.get("overrides", []), shlex.split(record.get("command") or "")
    for override in [each for each in typed if each not in command] or typed:  # a sweep's command has the ranges
        key, _, text = override.lstrip("+").partition("=")
        if keys.role(key) != "label" and not key.startswith("~"):
            value = OmegaConf.select(cfg, key)
            found[key] = value if isinstance(value, int | float | str) else text
    return found


def parameters(cfg: DictConfig, record: dict[str, Any]) -> dict[str, Any]:
    """What MLflow compares runs by: their columns, and each key that is not as in conf/."""
    from pandas import json_normalize

    with initialize_config_dir(str(paths.CONF), version_base="1.3"):
        trees: Any = [OmegaConf.to_container(tree) for tree in (cfg, compose("train"))]
    mine, usual = (json_normalize(tree).iloc[0].to_dict() for tree in trees)
    apart = [key for key in mine if mine[key] != usual.get(key, ...) and keys.role(key) != "label"]
    return columns(cfg, record) | {key: OmegaConf.select(cfg, key) for key in apart}


def close(trainer: Trainer, kind: type[BaseException] | None, *_: Any) -> None:
    """End what would go on into the next job; `kind`: the error that ended the run."""
    for logger in trainer.loggers:
        if isinstance(logger, WandbLogger):
            logger.experiment.finish(exit_code=int(kind is not None))


def in_lines(results: dict[str, Any], directory: Path) -> str:
    """What a run came to, a plain line for each number, and where to look further."""
    best, test, path = results.get("best"), results.get("test") or {}, paths.in_words(directory)
    lines = [f"{best['monitor']} {best['value']:.4f} (best, epoch {best['epoch'] + 1})"] if best else []
    numbers = {name: value for name, value in test.items() if isinstance(value, int | float) and name != "samples"}
    by_class = [name for name in numbers if re.match("[^/]+/[^/]+/(?!dataloader_idx_)", name)]
    lines += [f"{name} {value:.4f}" for name, value in numbers.items() if name not in by_class]

    if by_class:
        lowest = sorted(by_class, key=lambda name: numbers[name])[:10]
        shown = ", ".join(f"{name.split('/', 2)[2]} {numbers[name]:.3f}" for name in lowest)
        lines.append(f"by class, lowest first: {shown}{', ...' if by_class[10:] else ''}")
    if test:
        count = f" on {test['samples']} samples" if test["samples"] else ""
        lines.append(f"tested {test['checkpoint'] or 'the last weights'}{count}")

    lines += [f"profile: {file.name}" for file in sorted(directory.glob("fit-profile*.txt"))]
    lines.append(f"run {path}")
    if (directory / "tensorboard").exists():
        lines.append(f"curves: tensorboard --logdir {shlex.quote(str(path))}")
    return "\n".join(lines)
