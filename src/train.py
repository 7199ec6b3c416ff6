"""Train a model, then test its best weights."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path

from omegaconf import DictConfig

from leyden import UserError
from leyden.launch.command import launch


def train(cfg: DictConfig) -> float | None:
    """One run, from the config to its results; returns the best value of the objective."""
    from leyden.debug import failures
    from leyden.resume import checkpoints, moment
    from leyden.run import build, loggers, paths, process, record

    directory = Path(cfg.run_dir)
    with process.restored(), record.recording(cfg) as run, ExitStack() as after:
        # build
        process.switches(cfg)
        datamodule, task = build.parts(cfg)
        keeper, *others = build.watchers(cfg)
        trainer = build.trainer(cfg, [keeper, *others])

        # from the start, from other weights, or from where the run was stopped; up to here a refusal changes nothing
        last, entry = checkpoints.newest(run.run.checkpoints, cfg.resume) if cfg.resume else (None, {})
        keeper.check(trainer, datamodule, entry)
        if cfg.init_from and not last:
            checkpoints.load(task, paths.weights(cfg.init_from, paths.in_project(cfg.log_dir)), cfg.strict)
        run.begin(**build.summary(task, trainer, datamodule))
        if trainer.is_global_zero:
            record.tell(cfg, keeper.monitor, keeper.mode)
            moment.restore_files(directory, entry.get("files", {}))

        # train
        loggers.begin(trainer, cfg, resumed=last is not None)
        after.push(partial(loggers.close, trainer))
        with failures.explained(trainer, task):
            trainer.fit(task, datamodule=datamodule, ckpt_path=last, weights_only=True)
        if any(getattr(callback, "trains_nothing", False) for callback in others):
            return None  # it has shown what it was chosen for, and ended the fit
        if trainer.global_step == 0:
            raise UserError("Nothing was trained; see trainer.max_epochs, max_steps, max_time and limit_train_batches.")
        file = run.run.last if keeper.write else None
        weights = checkpoints.read(file)["state_dict"] if file else task.state_dict()
        results = run.run.metrics | {"weights_sha256": checkpoints.sha256(weights)}

        # test the best weights, or the last ones where none are known to be best; not of a run that a search gives up
        best = keeper.best.get("checkpoint")
        if keeper.guard.pruned:
            run.end |= {"status": "pruned", "reason": f"the search gave it up after epoch {trainer.current_epoch}"}
        tested = directory / best if best else file
        metrics = {} if keeper.guard.pruned else build.evaluate(trainer, task, datamodule, tested)
        results["test"] = {**metrics, "checkpoint": best} if metrics else {}

        # tell
        if trainer.is_global_zero:
            run.run.write_metrics(results)
            loggers.conclude(trainer, cfg, results)
        return keeper.best.get("objective")


if __name__ == "__main__":
    launch(train, "train")
