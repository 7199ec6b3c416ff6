"""What the loggers are told besides the curves: config and command at the start, at the end what it came to."""

import json
import logging
import shlex
from pathlib import Path
from typing import Any

from lightning import Trainer
from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger
from omegaconf import DictConfig, OmegaConf

from leyden import UserError
from leyden.run import paths
from leyden.run.keys import role
from leyden.run.run import Run

log = logging.getLogger(__name__)
USUAL = ("model", "data", "seed")  # columns of each run; TensorBoard shows no more than five unless asked to


def begin(trainer: Trainer, cfg: DictConfig, resumed: bool) -> None:
    """Tell each logger the config.

    Raises:
        UserError: a logger cannot start: no login, no network, a file that cannot be written.
    """
    for logger in trainer.loggers if trainer.is_global_zero else ():
        try:
            introduce(logger, cfg, resumed)
        except Exception as error:  # of any package
            what = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise UserError(f"{type(logger).__name__} cannot start: {what}; its options are in conf/logger.") from error


def introduce(logger: Logger, cfg: DictConfig, resumed: bool) -> None:
    """TensorBoard keeps what it has been told, and is not told again when a run goes on."""
    if not isinstance(logger, TensorBoardLogger):
        config: Any = OmegaConf.to_container(cfg, resolve=True)
        logger.log_hyperparams(config)
    elif not resumed:
        command = Run(Path(cfg.run_dir)).record.get("command", "")
        for name, text in (("command", command), ("config", OmegaConf.to_yaml(cfg))):
            logger.experiment.add_text(name, "".join(f"    {line}\n" for line in text.splitlines()), 0)


def conclude(trainer: Trainer, cfg: DictConfig, results: dict[str, Any]) -> None:
    """Tell the log and each logger the best values and their checkpoint; TensorBoard as a row of its HPARAMS."""
    best = results.get("best") or {}
    values, checkpoint = outcome(results), best.get("checkpoint")
    record = Run(Path(cfg.run_dir)).record
    columns = settings(cfg, record.get("overrides") or [], shlex.split(record.get("command") or ""))
    for logger in trainer.loggers if trainer.is_global_zero else ():
        if isinstance(logger, TensorBoardLogger):
            logger.log_hyperparams(columns, values, best.get("step"))
        else:
            logger.log_metrics(values, best.get("step"))
            logger.log_hyperparams({"best_checkpoint": checkpoint and str(Path(cfg.run_dir) / checkpoint)})
        logger.finalize("success")
    show_profiles(Path(cfg.run_dir))
    log.info(in_lines(results, Path(cfg.run_dir)))


def show_profiles(directory: Path) -> None:
    """Put the head of each table that a profiler has written into the log."""
    for file in sorted(directory.glob("fit-profile*.txt")):
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        log.info("%s\n... all in %s", "\n".join(lines[:15]), file.name)


def outcome(results: dict[str, Any]) -> dict[str, float]:
    """The best monitored value and its counterpart in the test, or the last values where nothing was judged."""
    best, test = results.get("best") or {}, results.get("test") or {}
    values = {f"best/{best['monitor']}": best["value"]} if best else {}
    name = f"test/{best['monitor'].rpartition('/')[2]}" if best else ""
    values |= {f"best/{name}": test[name]} if name in test else {}
    return values or {f"last/{name}": value for name, value in (results.get("train") or {}).items()}


def settings(cfg: DictConfig, overrides: list[str], command: list[str]) -> dict[str, Any]:
    """What tells runs from each other, as plain values: the usual keys, and those that a sweep varies, or else typed.

    What a sweep varies stands in the overrides of a job, but not so in the command of the sweep.
    """
    varied = [override for override in overrides if override not in command]
    found = {name: plain(OmegaConf.select(cfg, name)) for name in USUAL if OmegaConf.select(cfg, name) is not None}
    for override in varied or overrides:
        key, _, text = override.lstrip("+").partition("=")
        if role(key) != "label" and not key.startswith(("~", "hydra")):
            node = None if "/" in key else OmegaConf.select(cfg, key)
            found[key] = text if OmegaConf.is_dict(node) or node is None else plain(node)
    return found


def plain(node: Any) -> bool | int | float | str:
    """A value of the config as TensorBoard takes it; a class by its name, as options are written."""
    if OmegaConf.is_dict(node) and "_target_" in node:
        return node["_target_"].rpartition(".")[2].lower()
    if OmegaConf.is_config(node):
        return json.dumps(OmegaConf.to_container(node, resolve=True))
    return node if isinstance(node, bool | int | float | str) else str(node)


def close(trainer: Trainer, kind: type[BaseException] | None, *_: Any) -> None:
    """End what would else go on into the next job of this process; `kind`: the error that the run ended with."""
    for logger in trainer.loggers if trainer.is_global_zero else ():
        if isinstance(logger, WandbLogger):
            logger.experiment.finish(exit_code=int(kind is not None))


def missing(where: str) -> str:
    """What to type where a logger's package is not installed."""
    name = where.rpartition(".")[2]
    return f"logger={name} needs a package that is not installed; type pip install -e '.[{name}]'."


def in_lines(results: dict[str, Any], directory: Path) -> str:
    """What a run came to, a plain line for each number, and where to look further."""
    lines, best, test = [], results.get("best") or {}, results.get("test") or {}
    if best:
        lines.append(f"{best['monitor']} {best['value']:.4f} (best, epoch {best['epoch'] + 1})")
    lines += [f"{name} {value:.4f}" for name, value in test.items() if name.count("/") == 1]
    apart = sorted((value, name) for name, value in test.items() if name.count("/") > 1)
    if apart:
        shown = ", ".join(f"{name.split('/', 2)[2]} {value:.3f}" for value, name in apart[:10])
        lines.append(f"by class, lowest first: {shown}{', ...' if apart[10:] else ''}")
    if test:
        count = f" on {test['samples']} samples" if test["samples"] else ""
        lines.append(f"tested {test['checkpoint'] or 'the last weights'}{count}")
    path = paths.in_words(directory)
    lines.append(f"run {path}")
    if (directory / "tensorboard").exists():
        inside = directory.is_relative_to(paths.PROJECT / "logs")
        lines.append("curves: make tensorboard" if inside else f"curves: tensorboard --logdir {shlex.quote(str(path))}")
    return "\n".join(lines)
