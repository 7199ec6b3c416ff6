"""Predict with a run's checkpoint: a row for each input, or for each sample of the run's own data."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from leyden import Failed, UserError
from leyden.launch.command import launch

log = logging.getLogger("leyden.predict")


def predict(cfg: DictConfig) -> int:
    """The rows of all inputs, in their order, in a file or on the screen; returns how many there are."""
    from leyden.deploy import predictor
    from leyden.run import build, process, record

    with process.restored(), record.recording(cfg):
        check(cfg)
        process.set_global_torch_flags(cfg)
        path = Path(cfg.output).expanduser().absolute() if cfg.output else None
        with predictor.writing(path, cfg.overwrite) as writer:  # each batch as it comes
            model, source = prepare(cfg)
            cfg.trainer.enable_progress_bar &= path is not None
            build.trainer(cfg, [writer]).predict(model, source, return_predictions=False)
        if path:
            log.info("%s row%s in %s", f"{writer.total:,}", "s" * (writer.total != 1), path)
        if writer.unreadable:
            log.warning("%d of %d inputs could not be read; see the column error.", writer.unreadable, writer.total)
        if writer.total and writer.unreadable == writer.total:
            raise Failed("None of the inputs could be read.")
        if writer.unreadable and cfg.strict:
            raise Failed(f"strict=true: {writer.unreadable} of {writer.total} inputs could not be read.")
        return writer.total


def check(cfg: DictConfig) -> None:
    """Raises UserError for an option that is none."""
    from leyden.deploy import predictor

    if (cfg.input is None) == (cfg.split is None):
        raise UserError(
            "What is to be predicted? Type input=<file, folder or pattern>, or split=test for the run's own data."
        )
    if cfg.split not in (None, "train", "val", "test", "predict"):
        raise UserError(f"`split` must be one of train, val, test, predict; got `{cfg.split}`.")
    if not isinstance(cfg.top_k, int) or cfg.top_k < 1:
        raise UserError(f"`top_k` must be a whole number from 1; got `{cfg.top_k}`.")
    if cfg.output and not str(cfg.output).lower().endswith(predictor.ENDINGS):
        raise UserError(f"`output` must end in {' or '.join(predictor.ENDINGS)}; got `{cfg.output}`.")


def prepare(cfg: DictConfig) -> tuple[Any, Any]:
    """The checkpoint's module that predicts, and its loader, or of a user's own task the datamodule.

    Raises:
        UserError: the task cannot predict what is asked for, or there is nothing to predict.
    """
    from lightning.pytorch.utilities.model_helpers import is_overridden
    from torch.utils.data import DataLoader

    from leyden.data.datamodule import DataModule, cores
    from leyden.data.samples import whole
    from leyden.deploy import graph, inputs, metadata, predictor
    from leyden.resume import checkpoints
    from leyden.run import build
    from leyden.tasks.supervised import Supervised

    task: Any = build.task(cfg)
    checkpoints.load(task, Path(cfg.run))
    name, own = type(task).__name__, is_overridden("predict_step", task)
    if not own and not isinstance(task, Supervised):
        raise UserError(
            f"{name} cannot predict; give it a predict_step(batch, batch_idx) that returns a dict of columns."
        )
    if own and not cfg.split:
        raise UserError(f"{name} is a task of your own, of which only its data knows the batches; type split=test.")
    data: Any = build.data(cfg, cfg.split) if cfg.split else None
    if own:
        return task, predictor.to_predict(data, cfg.split)
    tree: Any = OmegaConf.to_container(cfg, resolve=True)
    about = metadata.of_run(tree["facts"] or {}, tree["data"], task.meaning)
    if data:
        if not isinstance(data, DataModule) or cfg.split == "predict":
            raise UserError("`split` must be one of train, val, test of a datamodule of leyden; or type input=<path>.")
        source, prepared = partial(inputs.of_split, cfg.split, data), graph.Apply()
    else:
        nodes = cfg.data.get("eval_transforms") or []
        prepared = graph.Apply([build.make(cfg, "data.eval_transforms", node) for node in nodes])
        source = partial(inputs.of_path, str(cfg.input), about)
    if next(source(), None) is None:  # a mistake in the first one is told here
        raise UserError(f"There is nothing to predict in {f'split={cfg.split}' if data else f'input={cfg.input}'}.")
    workers = cfg.data.get("num_workers") if cfg.num_workers is None else cfg.num_workers
    if not isinstance(workers, int):
        workers = 0 if data or about.kind != "image" or str(cfg.input).endswith(inputs.BATCHES) else cores()
    stream = predictor.Batches(source, cfg.batch_size or cfg.data.get("batch_size") or 64, prepared)
    loader = DataLoader(stream, batch_size=None, num_workers=workers, collate_fn=whole)
    return predictor.Predictor(graph.GRAPHS[about.kind](task), about, cfg.top_k, cfg.all_probs), loader


if __name__ == "__main__":
    launch(predict, "predict")
