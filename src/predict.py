"""Predict with a run's checkpoint: a row for each input, or for each sample of the run's own data."""

import logging
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from leyden import Failed, UserError, require
from leyden.launch.command import launch

log = logging.getLogger("leyden.predict")


def predict(cfg: DictConfig) -> int:
    """The rows of all inputs, in their order, in a file or on the screen; returns how many there are."""
    from leyden.deploy import output
    from leyden.run import build, process, record

    with process.restored(), record.recording(cfg):
        require((cfg.input is None) != (cfg.split is None), "input", "given, or else `split`, not both", cfg.input)
        require(isinstance(cfg.top_k, int) and cfg.top_k > 0, "top_k", "a whole number from 1 up", cfg.top_k)
        path = Path(cfg.output).expanduser().absolute() if cfg.output else None
        good = path is None or path.suffix.lower() in (".csv", ".jsonl")
        require(good, "output", "a .csv or .jsonl file", cfg.output)
        process.set_global_torch_flags(cfg)
        if path is None:  # stdout is the table
            logging.getLogger().handlers[0].setStream(sys.stderr)

        with output.writing(path, cfg.overwrite) if path else nullcontext() as beside:
            model, source = prepare(cfg)
            cfg.trainer.enable_progress_bar &= path is not None
            outputs: Any = build.trainer(cfg, []).predict(model, source)
            rows = output.save(outputs, path, beside, cfg.overwrite)
        if path:
            log.info("%d rows in %s", len(rows), path)
        if unreadable := rows["error"].count():
            message = f"{unreadable} of {len(rows)} inputs could not be read; see the column error."
            if cfg.strict or unreadable == len(rows):
                raise Failed(message)
            log.warning(message)
        return len(rows)


def prepare(cfg: DictConfig) -> tuple[Any, Any]:
    """The module that predicts, and its loader, or of a user's own task the datamodule. Raises UserError."""
    from lightning.pytorch.utilities.model_helpers import is_overridden
    from torch.utils.data import DataLoader

    from leyden.data.datamodule import SPLITS, DataModule, cores
    from leyden.deploy import graph, inputs, predictor
    from leyden.run import build
    from leyden.tasks.supervised import Supervised

    task: Any = build.trained(cfg)
    own = is_overridden("predict_step", task)
    if not (cfg.split if own else isinstance(task, Supervised)):
        needs = "a predict_step(batch, batch_idx) that returns a dict, and split=test in place of input"
        raise UserError(f"{type(task).__name__} needs {needs}.")
    cfg.data.update({key: cfg[key] for key in ("batch_size", "num_workers") if cfg[key] is not None})
    data: Any = build.data(cfg, cfg.split) if cfg.split else None
    if own:
        return task, predictor.to_predict(data, cfg.split)
    metadata = graph.metadata_of(cfg, task.meaning)
    model = predictor.Predictor(graph.Graph(task), metadata, cfg.top_k, cfg.all_probs)
    if data:
        good = cfg.split in SPLITS and isinstance(data, DataModule)
        require(good, "split", f"one of {', '.join(SPLITS)} of a datamodule of leyden", cfg.split)
        return model, predictor.of_split(cfg.split, data)
    samples: Any = inputs.of_path(str(cfg.input), metadata)
    transforms = [build.make(cfg, "data.eval_transforms", node) for node in cfg.data.get("eval_transforms") or []]
    workers = cfg.data.get("num_workers")
    if not isinstance(workers, int):  # for few pictures a process costs more than it saves
        workers = min(cores(), len(samples) // 100) if metadata.kind == "image" else 0
    size, collate = cfg.data.get("batch_size") or 64, partial(inputs.collate, metadata, transforms)
    return model, DataLoader(samples, batch_size=size, num_workers=workers, collate_fn=collate)


if __name__ == "__main__":
    launch(predict, "predict")
