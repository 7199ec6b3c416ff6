"""Write a run's model as one file that needs none of our code, and compare it with the checkpoint before it counts."""

import logging
import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from leyden import UserError
from leyden.command import launch

log = logging.getLogger("leyden.export")


def export(cfg: DictConfig) -> str:
    """One file with raw input and meaning out; returns its path."""
    from leyden import build, checkpoints, process, ranks, record, same_data
    from leyden.deploy import examples, formats, output, verify

    if ranks.outside() or ranks.count(cfg.trainer) > 1:
        raise UserError("An export takes one process; start it without torchrun, with trainer.devices=1.")
    with process.restored(), record.recording(cfg):
        if cfg.format not in formats.ENDINGS:
            raise UserError(f"format={cfg.format} is none; choose one of {', '.join(formats.ENDINGS)}.")
        if cfg.precision not in ("fp32", "fp16"):
            raise UserError(f"precision={cfg.precision} is none; choose fp32 or fp16.")
        if cfg.benchmark and cfg.format == "state_dict":
            raise UserError("benchmark=true times a file that runs; a state_dict holds weights only.")
        target = place(cfg, formats.ENDINGS[cfg.format])
        output.refuse(target, cfg.overwrite)

        # build the checkpoint's task, and have it tell what comes out for real samples
        process.switches(cfg)
        task = build.task(cfg)
        checkpoints.load(task, Path(cfg.run))
        task.float().eval()
        tree: Any = OmegaConf.to_container(cfg, resolve=True)
        shown = examples.of(task, lambda: build.data(cfg), tree["facts"] or {}, tree["data"])
        same_data.check(cfg, getattr(shown, "datamodule", None))
        shown.card |= origin(cfg)
        cases = shown.cases()

        # write it beside its place, and let it take that only when it gives the same
        if cfg.format == "torchscript":
            log.info("TorchScript is deprecated by torch; format=pt2 is what takes its place.")
        start = time.perf_counter()
        with output.writing(target, cfg.overwrite) as beside:
            graph = shown.graph(half=cfg.precision == "fp16")
            formats.write(cfg.format, graph, shown.raw(3), shown.card, beside)
            seconds, size = time.perf_counter() - start, beside.stat().st_size
            limit = verify.tolerance(shown.card, cfg.precision)
            if cfg.format == "state_dict":
                report = verify.same_weights(beside, graph, shown.card)
            else:
                report = verify.check(beside, shown.card, cases, limit)
        report |= {"file": target.name, "format": cfg.format, "seconds": round(seconds, 2), "bytes": size}
        log.info("%s", verify.text(shown.card, report, shown.source))
        if cfg.benchmark:
            report["milliseconds"] = verify.speed(target, shown.raw, shown.graph())
            log.info("%s", verify.times(cfg.format, report["milliseconds"]))
        store(cfg, target, report, shown.card)
        log.info("%s", target)
        return str(target)


def place(cfg: DictConfig, ending: str) -> Path:
    """Where the file goes: where the user says, or the run's exports/, by the name of the checkpoint."""
    if cfg.output:
        target = Path(cfg.output).expanduser().absolute()
        if target.suffix != ending and not target.is_dir():
            raise UserError(f"output={cfg.output} does not end in {ending}, as a file of format={cfg.format} does.")
        return target
    checkpoint = Path(cfg.run)
    half = "-fp16" * (cfg.precision == "fp16")
    return checkpoint.parent.parent / "exports" / f"{checkpoint.stem}{half}{ending}"


def store(cfg: DictConfig, target: Path, report: dict[str, Any], card: dict[str, Any]) -> None:
    """Keep how the file compares: in the export's own directory, and for a file of exports/ in the run's run.json."""
    from leyden import runs

    runs.write_json(Path(cfg.run_dir) / "export.json", report | {"card": card})
    directory = Path(cfg.run).parent.parent
    if target.parent == directory / "exports":
        told = runs.read_json(directory / "run.json").get("exports", {})
        runs.update(directory, exports=told | {target.name: report})


def origin(cfg: DictConfig) -> dict:
    """Where the file comes from: run, checkpoint, the commit that trained it, and the versions that wrote it."""
    from leyden import record, runs

    checkpoint = Path(cfg.run)
    told = runs.read_json(checkpoint.parent.parent / "run.json")
    words = {"run": checkpoint.parent.parent.name, "checkpoint": checkpoint.name, "commit": told.get("commit")}
    return words | {"precision": cfg.precision, "versions": record.origin(cfg)["versions"]}


if __name__ == "__main__":
    launch(export, "export")
