"""Write a run's model as one file that needs none of our code, once it gives the checkpoint's numbers."""

import logging
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from leyden import require
from leyden.launch.command import launch

log = logging.getLogger("leyden.export")


def export(cfg: DictConfig) -> str:
    """One file with raw input and meaning out; returns its path."""
    from leyden.deploy import formats, graph, predictor
    from leyden.run import build, process, record
    from leyden.run.run import Run
    from leyden.tasks.supervised import Supervised

    with process.restored(), record.recording(cfg) as own:
        require(cfg.format in formats.ENDINGS, "format", f"one of {', '.join(formats.ENDINGS)}", cfg.format)
        ending, run = formats.ENDINGS[cfg.format], Run(Path(cfg.run).parent.parent)
        usual = run.directory / "exports" / f"{Path(cfg.run).stem}{ending}"
        target = Path(cfg.output or usual).expanduser().absolute()
        require(target.suffix == ending, "output", f"a file that ends in {ending}", cfg.output)

        with predictor.writing(target, cfg.overwrite) as beside:
            process.set_global_torch_flags(cfg)
            task: Any = build.trained(cfg).float().eval()
            ours = isinstance(task, Supervised)
            module, metadata, cases = graph.from_data(cfg, task) if ours else graph.from_example(task)
            facts = vars(metadata) | {"run": run.directory.name, "checkpoint": Path(cfg.run).name}
            facts |= {"commit": run.record.get("commit"), "versions": record.environment()["versions"]}

            # the file takes its place if it gives the same
            formats.write(cfg.format, module, cases[0][0], facts, beside)
            report = formats.check(cfg.format, beside, module, metadata, cases)
        own.update(export={"file": str(target), "format": cfg.format} | report)

        log.info("%s takes %s and gives %s", target, metadata.inputs, metadata.outputs)
        log.info("max abs difference from the checkpoint: %(max_abs_diff).2g%(unit)s (limit %(tolerance)g)", report)
        return str(target)


if __name__ == "__main__":
    launch(export, "export")
