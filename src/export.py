"""Write a run's model as one file that needs none of our code, and compare it with the checkpoint before it counts."""

import logging
import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from leyden import UserError
from leyden.launch.command import launch

log = logging.getLogger("leyden.export")


def export(cfg: DictConfig) -> str:
    """One file with raw input and meaning out; returns its path."""
    from leyden.deploy import formats, output, verify
    from leyden.files import write_json
    from leyden.resume import checkpoints
    from leyden.run import build, process, record
    from leyden.run.run import Run

    with process.restored(), record.recording(cfg):
        if cfg.format not in formats.ENDINGS:
            raise UserError(f"`format` must be one of {', '.join(formats.ENDINGS)}; got `{cfg.format}`.")
        run = Run(Path(cfg.run).parent.parent)
        target = place(cfg, run.directory, formats.ENDINGS[cfg.format])

        with output.writing(target, cfg.overwrite) as beside:
            # build the checkpoint's task, and let it predict real samples
            process.set_global_torch_flags(cfg)
            task = build.task(cfg)
            checkpoints.load(task, Path(cfg.run))
            task.float().eval()
            example = example_of(task, cfg)
            about, cases, graph = example.metadata, example.cases(), example.graph()
            about.run, about.checkpoint = run.directory.name, Path(cfg.run).name
            about.commit = run.record.get("commit")
            about.versions = record.origin(cfg)["versions"]

            # write the file beside its place, which it takes only if it gives the same
            if cfg.format == "torchscript":
                log.info("TorchScript is deprecated by torch; format=pt2 is what takes its place.")
            start = time.perf_counter()
            formats.write(cfg.format, graph, example.raw(3), about, beside)
            report = {"file": target.name, "format": cfg.format, "bytes": beside.stat().st_size}
            report["seconds"] = round(time.perf_counter() - start, 2)
            if cfg.format == "state_dict":
                report |= verify.same_weights(beside, graph)
            else:
                report |= verify.check(cfg.format, beside, about, cases)
        log.info("%s\n%s", verify.in_words(report, about, example.source), target)

        # keep how it compares
        write_json(Path(cfg.run_dir) / "export.json", report | {"metadata": vars(about)})
        if target.parent == run.directory / "exports":
            run.update(exports=run.record.get("exports", {}) | {target.name: report})
        return str(target)


def example_of(task: Any, cfg: DictConfig) -> Any:
    """Real samples of the run's data for a task of ours, or the example that another task brings."""
    from leyden.deploy import examples, metadata
    from leyden.run import build
    from leyden.tasks.supervised import Supervised

    if not isinstance(task, Supervised):
        return examples.OwnExample(task)
    tree: Any = OmegaConf.to_container(cfg, resolve=True)
    datamodule = build.data(cfg)
    return examples.RealSamples(task, datamodule, metadata.of_run(tree["facts"] or {}, tree["data"], task.meaning))


def place(cfg: DictConfig, directory: Path, ending: str) -> Path:
    """Where the file goes: where the user says, or the run's exports/, by the name of the checkpoint."""
    if not cfg.output:
        return directory / "exports" / f"{Path(cfg.run).stem}{ending}"
    target = Path(cfg.output).expanduser().absolute()
    if target.suffix != ending and not target.is_dir():
        raise UserError(f"`output` must end in {ending}, as a file of format={cfg.format} does; got `{cfg.output}`.")
    return target


if __name__ == "__main__":
    launch(export, "export")
