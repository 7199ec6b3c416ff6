"""Lightning's profilers, with a table in the log of what took longest."""

import io
import logging
import pstats
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.profilers import AdvancedProfiler, PyTorchProfiler, SimpleProfiler

log = logging.getLogger(__name__)
LINES = 40  # of a table in the log; the whole is in the run directory


def tell(profiler: Any, text: str) -> None:
    """Say the head of a table, on rank 0."""
    if profiler.local_rank == 0 and text:
        head = text.strip().splitlines()
        where = "" if len(head) <= LINES else f"\n... all in {profiler._prepare_filename()}"
        log.info("\n%s%s", "\n".join(head[:LINES]), where)


class Simple(SimpleProfiler):
    """Lightning's hooks, by their whole time."""

    def summary(self) -> str:
        text = super().summary()
        tell(self, text)
        return text


class Advanced(AdvancedProfiler):
    """Python's functions: for each hook in the file, and in the log those of all hooks, by the time of their own."""

    def summary(self) -> str:
        if self.profiled_actions:
            stream = io.StringIO()
            stats = pstats.Stats(*self.profiled_actions.values(), stream=stream)
            stats.strip_dirs().sort_stats("tottime").print_stats(LINES - 10)
            tell(self, stream.getvalue())
        return super().summary()


class PyTorch(PyTorchProfiler):
    """Torch's operators, by their time on the GPU where there is one; a Chrome trace of a few steps of each stage.

    The trace marks each step (`ProfilerStep#`) and each wait for the loader (`train_dataloader_next`).
    """

    def __init__(self, dirpath: str, filename: str, **keywords: Any):
        on_gpu = torch.cuda.is_available()
        sort = {"sort_by_key": "cuda_time_total" if on_gpu else "cpu_time_total"}
        super().__init__(dirpath=dirpath, filename=filename, on_trace_ready=self.keep, **(sort | keywords))

    def keep(self, profiler: Any) -> None:
        """Write `<stage>.pt.trace.json`, the name that TensorBoard's viewer looks for."""
        stage = str(getattr(self._stage, "value", self._stage))
        name = {"fit": "train", "validate": "val"}.get(stage, stage)
        if stage == "fit" and self._schedule and self._schedule._current_action and self._schedule.is_validating:
            name = "val"
        rank = f"-rank{self.local_rank}" if self.local_rank else ""
        path = Path(str(self.dirpath), f"{name}{rank}.pt.trace.json")
        profiler.export_chrome_trace(str(path))

    def summary(self) -> str:
        text = super().summary()
        tell(self, text)
        return text
