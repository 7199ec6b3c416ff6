"""Predict with a run, or with a file that export.py wrote: a row for each input."""

import gc
import logging
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from leyden import Failed, UserError
from leyden.command import launch

log = logging.getLogger("leyden.predict")


def predict(cfg: DictConfig) -> int:
    """The rows of all inputs, in their order, in a file or on the screen; returns how many there are."""
    from leyden import build, process, record
    from leyden.deploy import output, rows

    with process.restored(), record.recording(cfg), rows.Spool(cfg.run_dir) as spool:
        target = checked(cfg)
        process.switches(cfg)
        cfg.trainer.enable_progress_bar &= target is not None
        trainer = build.trainer(cfg, [spool])

        # what predicts, and what it reads
        if isinstance(cfg.get("model"), str):
            model, data = of_file(cfg, trainer)
        else:
            model, data = of_run(cfg, trainer)

        # each rank keeps its rows; the first one puts them in order
        keep = {"datamodule": data} if hasattr(data, "predict_dataloader") else {"dataloaders": data}
        trainer.predict(model, return_predictions=False, **keep)
        trainer.strategy.barrier()
        if not trainer.is_global_zero:
            return 0
        found = rows.merged(cfg.run_dir, trainer.world_size)
        if target is None:
            if spool.arrays:
                raise UserError(f"{', '.join(spool.arrays)} of predict_step need a file; type output=<file>.csv.")
            total, bad = rows.write(found, None, "")
        else:
            with output.writing(target, cfg.overwrite) as beside:
                total, bad = rows.write(found, beside, target.suffix.lower())
                if spool.arrays:
                    with output.writing(target.with_suffix(".npz"), cfg.overwrite) as arrays:
                        rows.save_arrays(spool.arrays, arrays)
            log.info("%s row%s in %s", f"{total:,}", "s" * (total != 1), target)

        # tell
        if bad:
            log.warning("%s of %s inputs could not be read; see the column error.", f"{bad:,}", f"{total:,}")
        if total and bad == total:
            raise Failed("None of the inputs could be read.")
        if bad and cfg.strict:
            raise Failed(f"strict=true: {bad} of {total} inputs could not be read.")
        return total


def checked(cfg: DictConfig) -> Path | None:
    """Where the rows go.

    Raises:
        UserError: an option is none, or the output may not be written.
    """
    from leyden.deploy import output, rows

    if (cfg.input is None) == (cfg.split is None):
        raise UserError(
            "What is to be predicted? Type input=<file, folder or pattern>, or split=test for the run's own data."
        )
    if cfg.split not in (None, "train", "val", "test", "predict"):
        raise UserError(f"split={cfg.split} is none; choose test, val or train.")
    if not isinstance(cfg.top_k, int) or cfg.top_k < 1:
        raise UserError(f"top_k={cfg.top_k} must be at least 1.")
    if cfg.output is None:
        return None
    target = Path(cfg.output).expanduser().absolute()
    if target.suffix.lower() not in rows.ENDINGS:
        raise UserError(f"output={cfg.output} does not end in {' or '.join(rows.ENDINGS)}, which says its format.")
    output.refuse(target, cfg.overwrite)
    return target


def of_file(cfg: DictConfig, trainer: Any) -> tuple[Any, Any]:
    """The model and the loader of inputs, from an exported file alone."""
    from leyden.deploy.predictor import Predictor, Program

    if cfg.split:
        raise UserError("split= is of a run's own data; with model= type input=<file, folder or pattern>.")
    program = Program(cfg.model)
    card = program.session.card
    return Predictor(program, card, cfg.top_k, cfg.all_probs), loader(cfg, trainer, card, [])


def of_run(cfg: DictConfig, trainer: Any) -> tuple[Any, Any]:
    """The model of a run's checkpoint, and the loader of inputs or of the run's own data."""
    from lightning.pytorch.utilities.model_helpers import is_overridden

    from leyden import build, checkpoints, same_data
    from leyden.deploy import card as cards
    from leyden.deploy.graph import KINDS
    from leyden.deploy.predictor import Predictor, of_split
    from leyden.tasks.supervised import Supervised

    task = build.task(cfg)
    checkpoints.load(task, Path(cfg.run))
    if not isinstance(task, Supervised) or is_overridden("predict_step", task):
        name = type(task).__name__
        if not is_overridden("predict_step", task):
            raise UserError(
                f"{name} cannot predict: give it a predict_step(batch, batch_idx) that returns a dict of columns."
            )
        if not cfg.split:
            raise UserError(f"{name} is a task of your own, of which only its data knows the batches; type split=test.")
        if trainer.world_size > 1:
            raise UserError(f"The rows of {name} would be out of order on several devices; type trainer.devices=1.")
        datamodule = build.data(cfg)
        same_data.check(cfg, datamodule, cfg.split)
        return task, of_split(datamodule, cfg.split)
    tree: Any = OmegaConf.to_container(cfg, resolve=True)
    card = cards.make(tree["facts"] or {}, tree["data"], task.meaning)
    graph = KINDS[card["kind"]](task)
    transforms = [build.make(cfg, "data.eval_transforms", node) for node in cfg.data.get("eval_transforms") or []]
    data = build.data(cfg) if cfg.split else None
    same_data.check(cfg, data, cfg.split)
    return Predictor(graph, card, cfg.top_k, cfg.all_probs), loader(cfg, trainer, card, transforms, data)


def loader(cfg: DictConfig, trainer: Any, card: dict, transforms: list, data: Any = None) -> Any:
    """Batches of the inputs, or of a split of the data, for this rank."""
    from torch.utils.data import DataLoader

    from leyden.data.datamodule import cores
    from leyden.data.samples import whole
    from leyden.deploy import inputs

    source = partial(inputs.own, cfg.split, data) if data else partial(inputs.samples, str(cfg.input), card)
    if next(source(), None) is None:  # the first one is looked at here, where a mistake can be told
        raise UserError(f"There is nothing to predict in {f'split={cfg.split}' if data else f'input={cfg.input}'}.")
    stream = inputs.Stream(
        source, cfg.batch_size or cfg.data.get("batch_size") or 64, trainer.global_rank, trainer.world_size
    )
    stream.transforms = [] if data else transforms
    pictures = card["kind"] == "image" and not data and not str(cfg.input).endswith(inputs.BATCHES)
    asked = cfg.num_workers if cfg.num_workers is not None else cfg.data.get("num_workers")
    workers = asked if isinstance(asked, int) else cores() if pictures else 0
    if workers:
        gc.freeze()  # the workers share this process's memory for as long as their collectors leave it alone
    return DataLoader(stream, batch_size=None, num_workers=workers, collate_fn=whole)


if __name__ == "__main__":
    launch(predict, "predict")
