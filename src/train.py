"""Train a model, then test its best weights."""

from contextlib import ExitStack
from functools import partial

from omegaconf import DictConfig

from leyden import UserError
from leyden.launch.command import launch


def train(cfg: DictConfig) -> float | None:
    """One run, from the config to its results; returns the best value of the objective."""
    from leyden.debug.layers import explained
    from leyden.resume import checkpoints, snapshot
    from leyden.run import build, loggers, paths, process, record

    with process.restored(), record.recording(cfg) as run, ExitStack() as after:
        # build
        process.set_global_torch_flags(cfg)
        datamodule, task = build.parts(cfg)
        keeper, *chosen, records = build.watchers(cfg)
        trainer = build.trainer(cfg, [keeper, *chosen, records])

        # from the start, other weights, or where the run was stopped; until here a refusal changes nothing
        last, entry = checkpoints.newest(run.checkpoints, cfg.resume) if cfg.resume else (None, {})
        keeper.check(trainer, datamodule, entry)
        if cfg.init_from and not last:
            checkpoints.load(task, paths.weights(cfg.init_from, paths.in_project(cfg.log_dir)), cfg.strict)
        run.begin(task, trainer, datamodule)
        if trainer.is_global_zero:
            snapshot.restore_files(run.directory, entry.get("files", {}))

        # train
        loggers.begin(trainer, cfg, resumed=last is not None)
        after.push(partial(loggers.close, trainer))
        with explained(trainer, task):
            trainer.fit(task, datamodule=datamodule, ckpt_path=last, weights_only=True)
        if any(getattr(callback, "trains_nothing", False) for callback in chosen):
            return None  # it has shown what it is for, and ended the fit
        if not trainer.global_step:
            raise UserError("Nothing was trained; see trainer.max_epochs, max_steps, max_time and limit_train_batches.")
        if last and trainer.global_step == entry["step"]:  # nothing was left to train
            checkpoints.load(task, last)  # which may be an average of those that train
        results = records.metrics | {"weights_sha256": checkpoints.sha256(task.state_dict())}

        # test the best weights, or the last where none is best; not of a run that a search gives up
        best, metrics = keeper.best.get("checkpoint"), dict[str, float]()
        if keeper.pruned:
            run.pruned = f"the search gave it up after epoch {trainer.current_epoch}"
        elif cfg.get("test", True):
            if best:
                checkpoints.load(task, run.directory / best)
            metrics = build.evaluate(trainer, task, datamodule)
        results["test"] = {**metrics, "checkpoint": best} if metrics else {}

        # tell
        if trainer.is_global_zero:
            run.write_metrics(results)
            loggers.conclude(trainer, cfg, results)
        return keeper.best.get("objective")


if __name__ == "__main__":
    launch(train, "train")
