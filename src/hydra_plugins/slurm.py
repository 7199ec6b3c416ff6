"""A SLURM job for each run of a sweep, by submitit, with the trainer's numbers."""

import contextlib
import io
import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.singleton import Singleton

from leyden import UserError, require
from leyden.launch import sweeps
from leyden.run import paths
from leyden.run.run import Run, Status

OVER = re.compile("BOOT_FAIL|CANCELLED|COMPLETED|DEADLINE|FAILED|NODE_FAIL|OUT_OF_MEMORY|PREEMPTED|TIMEOUT|UNKNOWN")
KEYS = {  # what sbatch says when it refuses -> what to type then
    "gres|generic resource": "trainer=cpu, or fewer trainer.devices",
    "account": "hydra.launcher.account",
    "partition": "hydra.launcher.partition",
    "time limit": "hydra.launcher.timeout_min",
    "memory": "hydra.launcher.mem_gb",
    "node|cpu|processor": "trainer.devices, trainer.num_nodes or hydra.launcher.cpus_per_task",
    "": "hydra.launcher.dry_run=true to see the script",
}

try:
    from hydra_plugins.hydra_submitit_launcher.submitit_launcher import SlurmLauncher as Base
except ImportError:  # Hydra imports this at each start
    Base = BasicLauncher  # type: ignore[misc, assignment]


class Slurm(Base):
    """A job for each run, all in one array."""

    def __init__(self, dry_run: bool = False, wait: bool = True, **params: Any):
        if Base is BasicLauncher:
            raise UserError("hydra/launcher=slurm needs submitit: type pip install -e '.[launchers]'")
        super().__init__(**params)
        self.dry_run, self.wait = dry_run, wait
        self.folder = Path(self.params.pop("submitit_folder"))
        limit = f"export LEYDEN_REQUEUES={self.params.pop('max_num_timeout')}"
        self.params["setup"] = [limit, *(self.params.get("setup") or [])]

    def launch(self, job_overrides: list[list[str]], initial_job_idx: int) -> list[Any]:
        """Submit the runs; UserError where jobs ask for different numbers, or SLURM refuses them."""
        from submitit.slurm import slurm

        assert self.hydra_context and self.config
        hydra = self.config.hydra
        waits = self.wait or not (hydra.sweeper.get("n_trials") or hydra.sweeper.get("max_batch_size"))
        require(waits, "hydra.launcher.wait", "true, as jobs follow from others' ends", False)

        load = self.hydra_context.config_loader.load_sweep_config
        cfgs = [load(self.config, list(overrides)) for overrides in job_overrides]
        size, *others = [size_of(cfg.trainer) for cfg in cfgs]
        for other in others:
            require(other == size, "trainer", f"the same in all jobs of an array ({size})", other)

        names: Any = slurm.SlurmExecutor._equivalence_dict()
        params = {names.get(key, key): each for key, each in (self.params | size).items() if each is not None}
        if "mem" in params:
            params["mem"] = f"{params['mem']}GB"

        if self.dry_run:
            command = f"python -u -m submitit.core._submit {self.folder}"
            print(slurm._make_sbatch_string(command=command, folder=self.folder, **params))
        else:
            jobs, root = self.submit(params, job_overrides, initial_job_idx), Path(hydra.sweep.dir)
            print(f"SLURM has {len(jobs)} jobs, from {jobs[0].job_id} to {jobs[-1].job_id}", flush=True)
            if not self.wait:
                print(f"squeue shows them, and python src/report.py {shlex.quote(str(paths.in_words(root)))} the table")
                raise SystemExit(0)
            watch({job: root / str(cfg.hydra.sweep.subdir) for job, cfg in zip(jobs, cfgs, strict=True)})

        return []  # each run says itself what came of it

    def submit(self, params: dict[str, Any], jobs: list[list[str]], first: int) -> list[Any]:
        """The jobs; UserError, and no file of them, where sbatch refuses them."""
        from submitit.slurm import slurm

        rows = [(list(job), "hydra.sweep.dir", i, str(i), Singleton.get_state()) for i, job in enumerate(jobs, first)]
        try:
            executor = slurm.SlurmExecutor(self.folder)
            executor.update_parameters(**params)
            with contextlib.redirect_stderr(io.StringIO()):  # the error says it, too
                return executor.map_array(self, *zip(*rows, strict=True))
        except (RuntimeError, ValueError) as error:  # of submitit
            for path in self.folder.parent.glob("*"):
                if path.is_file() and not path.is_symlink():  # as those of earlier jobs are
                    path.unlink()

            lines = re.findall(r"^sbatch: (?:error: )?(?:Batch job .*?: )?(.*)", str(error), re.M)
            what = "; ".join(lines) or str(error).splitlines()[0]
            key = next(key for words, key in KEYS.items() if re.search(words, what, re.I))
            raise UserError(f"SLURM refuses the jobs: {what}; type {key}.") from error


def size_of(trainer: Any) -> dict[str, int]:
    """What a job asks SLURM for: a task for each device."""
    require(str(trainer.devices).isdecimal(), "trainer.devices", "a number under SLURM", trainer.devices)
    each = int(trainer.devices)
    return {"nodes": trainer.num_nodes, "tasks_per_node": each, "gpus_per_node": each * (trainer.accelerator != "cpu")}


def watch(waiting: dict[Any, Path]) -> None:
    """Wait for the ends of jobs, job -> run directory; SLURM says that of a run that could not."""
    over: dict[Any, list[str]] = {}  # at the last look, as files may be late: SLURM's number and state
    command = ["squeue", "-rht", "all", "-o", "%i|%A|%T", "-j", next(iter(waiting)).job_id.partition("_")[0]]

    while waiting:
        time.sleep(5)
        asked = subprocess.run(command, capture_output=True, text=True)
        if asked.returncode and "Invalid job id" not in asked.stderr:  # which it says of what is long over
            continue
        now = {name: words for name, *words in (line.split("|") for line in asked.stdout.splitlines())}
        states = {job: now.get(job.job_id, ["", "UNKNOWN"]) for job in waiting}

        before, over = over, {job: words for job, words in states.items() if OVER.match(words[1])}
        for job in before.keys() & over.keys():
            number, state = before[job]
            folder = waiting.pop(job)
            record = Run(folder).record

            mine = (record.get("slurm") or {}).get("job") == number  # not another sweep's
            if not record or (mine and record["status"] == Status.RUNNING):
                sweeps.fail(folder, UserError(f"SLURM says {state} of its job {job.job_id}; see {job.paths.stderr}"))
