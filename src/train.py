"""Train a model, then test its best weights."""

import logging
from pathlib import Path

from omegaconf import DictConfig

from leyden import UserError
from leyden.command import launch

log = logging.getLogger("leyden.train")


def train(cfg: DictConfig) -> float | None:
    """One run, from the config to its results; returns the best value of the objective."""
    from leyden import build, checkpoints, record, runs

    with record.recording(cfg):
        # build
        build.switches(cfg)
        datamodule = build.data(cfg)
        build.facts(cfg, datamodule)
        task = build.task(cfg)
        trainer = build.trainer(cfg, build.watchers(cfg))
        keeper = trainer.checkpoint_callback
        facts = build.summary(task, trainer, datamodule)
        record.begin(cfg, **facts)
        if trainer.is_global_zero:
            log.info(
                "%s of %s parameters on %s, %s, %s samples a step, seed %s, best by %s (%s)",
                cfg.get("model", cfg.task)._target_.split(".")[-1], f"{facts['parameters']:,}", facts["device"],
                facts["precision"], facts["effective_batch"] or "?", cfg.seed, keeper.monitor, keeper.mode,
            )  # fmt: skip
            if facts["padding"]:
                log.info("%.1f%% of a training batch is padding", 100 * facts["padding"])

        # train
        trainer.fit(task, datamodule=datamodule, weights_only=True)
        if trainer.global_step == 0:
            raise UserError(
                "Nothing was trained: max_epochs, max_steps, max_time or limit_train_batches leave no step."
            )
        last = checkpoints.read(keeper.folder / "last.ckpt")["state_dict"] if keeper.write else task.state_dict()
        results = runs.read_json(Path(cfg.run_dir) / "metrics.json") | {"weights_sha256": checkpoints.sha256(last)}

        # test the best weights, or the last ones where none are known to be best
        best = keeper.best.get("checkpoint")
        weights = Path(cfg.run_dir, best) if best else None
        metrics = build.evaluate(trainer, task, datamodule, weights)
        results["test"] = {**metrics, "checkpoint": best} if metrics else {}

        # tell
        if trainer.is_global_zero:
            runs.write_json(Path(cfg.run_dir) / "metrics.json", results)
            log.info(runs.table(results, Path(cfg.run_dir)))
        return keeper.best.get("objective")


if __name__ == "__main__":
    launch(train, "train")
