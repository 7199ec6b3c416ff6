"""What the loggers are told besides the curves: config and command at the start, at the end what it came to."""

import logging
import shlex
from pathlib import Path
from typing import Any

from lightning import Trainer
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from omegaconf import DictConfig, OmegaConf

from leyden import UserError
from leyden.run import paths
from leyden.run.keys import role
from leyden.run.run import Run

log = logging.getLogger(__name__)


def begin(trainer: Trainer, cfg: DictConfig, resumed: bool) -> None:
    """Tell each logger the config; TensorBoard keeps it, and is not told again when a run goes on.

    Raises:
        UserError: a logger cannot start: no login, no network, a file that cannot be written.
    """
    config: Any = OmegaConf.to_container(cfg, resolve=True)
    for logger in trainer.loggers if trainer.is_global_zero else ():
        try:
            if not isinstance(logger, TensorBoardLogger):
                logger.log_hyperparams(config)
            elif not resumed:
                command = Run(cfg.run_dir).record.get("command") or ""
                for name, text in (("command", command), ("config", OmegaConf.to_yaml(cfg))):
                    logger.experiment.add_text(name, "".join(f"    {line}\n" for line in text.splitlines()), 0)
        except Exception as error:  # of any package
            what = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise UserError(f"{type(logger).__name__} cannot start: {what}; its options are in conf/logger.") from error


def conclude(trainer: Trainer, cfg: DictConfig, results: dict[str, Any]) -> None:
    """Tell the log and each logger the best values and their checkpoint; TensorBoard as a row of its HPARAMS."""
    directory, best, values = Path(cfg.run_dir), results.get("best") or {}, outcome(results)
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.log_hyperparams(columns(cfg, Run(directory).record), values, best.get("step"))
        else:
            logger.log_metrics(values, best.get("step"))
            logger.log_hyperparams({"best_checkpoint": str(directory / best.get("checkpoint", ""))})
        logger.finalize("success")
    for file in sorted(directory.glob("fit-profile*.txt")):  # the head of what a profiler has written
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        log.info("%s\n... all in %s", "\n".join(lines[:15]), file.name)
    log.info(in_lines(results, directory))


def outcome(results: dict[str, Any]) -> dict[str, float]:
    """The best monitored value and its counterpart in the test, or the last values where nothing was judged."""
    best, test = results.get("best"), results.get("test") or {}
    if not best:
        return {f"last/{name}": value for name, value in (results.get("train") or {}).items()}
    name = f"test/{best['monitor'].rpartition('/')[2]}"
    return {f"best/{best['monitor']}": best["value"]} | ({f"best/{name}": test[name]} if name in test else {})


def columns(cfg: DictConfig, record: dict[str, Any]) -> dict[str, Any]:
    """What tells runs apart: model, data, seed, and the keys that a sweep varies, or else all that were typed.

    What a sweep varies stands in the overrides of a job, but not so in the command of the sweep.
    """
    found = {name: cfg[name]._target_.rpartition(".")[2].lower() for name in ("model", "data") if name in cfg}
    found["seed"] = cfg.seed
    typed, command = record.get("overrides", []), shlex.split(record.get("command") or "")
    for override in [each for each in typed if each not in command] or typed:
        key, _, text = override.lstrip("+").partition("=")
        if role(key) != "label" and not key.startswith("~"):
            value = None if "/" in key else OmegaConf.select(cfg, key)
            found[key] = value if isinstance(value, bool | int | float | str) else text
    return found


def close(trainer: Trainer, kind: type[BaseException] | None, *_: Any) -> None:
    """End what would else go on into the next job of this process; `kind`: the error that the run ended with."""
    for logger in trainer.loggers if trainer.is_global_zero else ():
        if isinstance(logger, WandbLogger):
            logger.experiment.finish(exit_code=int(kind is not None))


def in_lines(results: dict[str, Any], directory: Path) -> str:
    """What a run came to, a plain line for each number, and where to look further."""
    best, test, path = results.get("best"), results.get("test") or {}, paths.in_words(directory)
    lines = [f"{best['monitor']} {best['value']:.4f} (best, epoch {best['epoch'] + 1})"] if best else []
    several = "/dataloader_idx_"  # the name that Lightning gives to the values of each of several loaders
    whole = {name: value for name, value in test.items() if name.partition(several)[0].count("/") == 1}
    lines += [f"{name} {value:.4f}" for name, value in whole.items()]
    if apart := sorted((test[name], name.split("/", 2)[2]) for name in test.keys() - whole.keys() if "/" in name):
        shown = ", ".join(f"{name} {value:.3f}" for value, name in apart[:10])
        lines.append(f"by class, lowest first: {shown}{', ...' if apart[10:] else ''}")
    if test:
        count = f" on {test['samples']} samples" if test["samples"] else ""
        lines.append(f"tested {test['checkpoint'] or 'the last weights'}{count}")
    lines.append(f"run {path}")
    if (directory / "tensorboard").exists():
        inside = directory.is_relative_to(paths.PROJECT / "logs")
        lines.append("curves: make tensorboard" if inside else f"curves: tensorboard --logdir {shlex.quote(str(path))}")
    return "\n".join(lines)
