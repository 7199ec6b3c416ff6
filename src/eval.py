"""Test a run again, from its directory alone."""

import logging

from omegaconf import DictConfig

from leyden import UserError, require
from leyden.launch.command import launch

log = logging.getLogger("leyden.eval")


def evaluate(cfg: DictConfig) -> dict[str, float]:
    """The metrics of a run's checkpoint on one split, printed and stored."""
    from leyden.run import build, loggers, process, record

    with process.restored(), record.recording(cfg) as run:
        require(cfg.split in ("train", "val", "test"), "split", "one of train, val, test", cfg.split)
        process.set_global_torch_flags(cfg)

        datamodule, task = build.data(cfg, cfg.split), build.trained(cfg)
        datamodule.tested = cfg.split
        trainer = build.trainer(cfg, [])
        run.begin(task, trainer, datamodule)

        metrics = build.evaluate(trainer, task, datamodule)
        if not metrics:
            raise UserError(f"There is nothing to evaluate: no {cfg.split} data, or a task without a step for it.")
        metrics = {name.replace("test/", f"{cfg.split}/"): value for name, value in metrics.items()}
        if trainer.is_global_zero:
            results = {"test": metrics | {"checkpoint": cfg.run}}
            run.write_metrics(results)
            log.info(loggers.in_lines(results, run.directory))
    return metrics


if __name__ == "__main__":
    launch(evaluate, "eval")
