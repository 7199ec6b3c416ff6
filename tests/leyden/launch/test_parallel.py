"""Jobs at a time."""

import os
import subprocess
import sys

from leyden.launch import parallel
from leyden.run import paths


def test_jobs_at_a_time():
    assert parallel.at_once({"n_jobs": 3}, 8) == 3 and parallel.at_once({"n_jobs": 8}, 2) == 2
    assert parallel.at_once({"n_jobs": -1}, 10**6) == os.cpu_count()
    assert (
        parallel.at_once({"_target_": "x.LocalLauncher"}, 5) == 5 and parallel.at_once({"_target_": "x.Slurm"}, 5) == 1
    )


TAKES = """
import os, sys
sys.path[:0] = [{src!r}]
from omegaconf import OmegaConf
from leyden.launch import parallel, ranks
ranks.gpus = lambda accelerator: 2
parallel.take_gpu(OmegaConf.create({{"devices": "auto", "accelerator": "auto"}}))
print(os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
sys.stdin.read()
"""


def test_jobs_at_a_time_have_a_gpu_each(tmp_path):
    env = os.environ | {"LEYDEN_PARALLEL": "3", "CUDA_VISIBLE_DEVICES": "4,7", "TMPDIR": str(tmp_path)}
    text = TAKES.format(src=str(paths.PROJECT / "src"))
    started, taken = [], []
    for _ in range(3):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([sys.executable, "-c", text], env=env, **pipes))
        taken.append(started[-1].stdout.readline().strip())
    for process in started:
        process.communicate()
    assert taken == ["4", "7", "4,7"]
