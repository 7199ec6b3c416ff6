"""Predict with a run's checkpoint: a row for each input, or for each sample of the run's own data."""

import logging
from contextlib import nullcontext
from pathlib import Path

from omegaconf import DictConfig

from leyden import Failed, require
from leyden.launch.command import launch

log = logging.getLogger("leyden.predict")


def predict(cfg: DictConfig) -> int:
    """The rows of all inputs, in their order, in a file or on the screen; returns their number."""
    from leyden.deploy import predictor
    from leyden.run import build, process, record

    with process.restored(), record.recording(cfg, table=not cfg.output):
        require((cfg.input is None) != (cfg.split is None), "input", "given, or else `split`, not both", cfg.input)
        require(isinstance(cfg.top_k, int) and cfg.top_k > 0, "top_k", "a whole number from 1 up", cfg.top_k)
        path = Path(cfg.output).expanduser().absolute() if cfg.output else None
        require(path is None or path.suffix.lower() in (".csv", ".jsonl"), "output", "a .csv or .jsonl file", path)
        process.set_global_torch_flags(cfg)
        cfg.trainer.enable_progress_bar &= path is not None

        with predictor.writing(path, cfg.overwrite) if path else nullcontext() as beside:
            model, source = predictor.of_command(cfg)
            rows = predictor.save(build.trainer(cfg, []).predict(model, source), path, beside, cfg.overwrite)
        if path:
            log.info("%d rows in %s", len(rows), path)

        if unreadable := rows["error"].count():
            said = f"{unreadable} of {len(rows)} inputs could not be read; see the column error."
            if cfg.strict or unreadable == len(rows):
                raise Failed(said)
            log.warning(said)
        return len(rows)


if __name__ == "__main__":
    launch(predict, "predict")
