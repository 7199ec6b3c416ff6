"""Write a run's model as one file that needs none of our code, and compare it with the checkpoint before it counts."""

import logging
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from leyden import require
from leyden.launch.command import launch

log = logging.getLogger("leyden.export")


def export(cfg: DictConfig) -> str:
    """One file with raw input and meaning out; returns its path."""
    from leyden.deploy import formats, output, verify
    from leyden.resume import checkpoints
    from leyden.run import build, process, record
    from leyden.run.run import Run

    with process.restored(), record.recording(cfg) as own:
        require(cfg.format in formats.ENDINGS, "format", f"one of {', '.join(formats.ENDINGS)}", cfg.format)
        run = Run(Path(cfg.run).parent.parent)
        target = target_path(cfg, run.directory, formats.ENDINGS[cfg.format])
        with output.writing(target, cfg.overwrite) as beside:
            # the checkpoint's task, and what it makes of real samples
            process.set_global_torch_flags(cfg)
            task = build.task(cfg)
            checkpoints.load(task, Path(cfg.run))
            graph, metadata, cases = prepare(task.float().eval(), cfg)
            metadata.run, metadata.checkpoint = run.directory.name, Path(cfg.run).name
            metadata.commit, metadata.versions = run.record.get("commit"), record.origin(cfg)["versions"]

            # the file beside its place, which it takes only if it gives the same
            formats.write(cfg.format, graph, cases[0][0], metadata, beside)
            report = {"file": str(target), "format": cfg.format, "bytes": beside.stat().st_size}
            report |= verify.check(cfg.format, beside, graph, metadata, cases)
        own.update(export=report)

        unit = " standard deviations of the target" if metadata.target_std else ""
        difference = f"{report['max_abs_diff']:.2g}{unit} (limit {report['tolerance']:g})"
        log.info("%s takes %s and gives %s", target, metadata.inputs, metadata.outputs)
        log.info("max abs difference from the checkpoint: %s", difference)
        return str(target)


def prepare(task: Any, cfg: DictConfig) -> Any:
    """What is exported, its metadata, and what its file is checked on: real samples, or the example of an own task."""
    from leyden.deploy import graph, verify
    from leyden.run import build
    from leyden.tasks.supervised import Supervised

    if not isinstance(task, Supervised):
        return verify.from_example(task)
    tree: Any = OmegaConf.to_container(cfg, resolve=True)
    datamodule = build.data(cfg)
    return verify.from_data(task, datamodule, graph.metadata_of(tree["facts"] or {}, tree["data"], task.meaning))


def target_path(cfg: DictConfig, directory: Path, ending: str) -> Path:
    """Where the file goes: where the user says, or the run's exports/, by the name of the checkpoint."""
    if not cfg.output:
        return directory / "exports" / f"{Path(cfg.run).stem}{ending}"
    require(str(cfg.output).endswith(ending), "output", f"a file that ends in {ending}", cfg.output)
    return Path(cfg.output).expanduser().absolute()


if __name__ == "__main__":
    launch(export, "export")
