"""A SLURM job for each run of a sweep, by submitit: its numbers are the trainer's, and SLURM says how it ended."""

import contextlib
import io
import pickle
import re
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus

from leyden import UserError, require
from leyden.launch import sweeps
from leyden.run import paths
from leyden.run.run import Run, Status

POLL = 5  # seconds
OVER = re.compile("BOOT_FAIL|CANCELLED|COMPLETED|DEADLINE|FAILED|NODE_FAIL|OUT_OF_MEMORY|PREEMPTED|TIMEOUT|UNKNOWN")
KEYS = {  # what sbatch says when it refuses, and what to change then
    "gres|generic resource": "type trainer=cpu (or trainer.accelerator=cpu) where there are no GPUs, or fewer devices",
    "account": "set hydra.launcher.account",
    "partition": "set hydra.launcher.partition; `sinfo` lists them",
    "time limit": "set hydra.launcher.timeout_min",
    "memory": "set hydra.launcher.mem_gb",
    "node|cpu|processor": "set trainer.devices, trainer.num_nodes or hydra.launcher.cpus_per_task",
    "": "hydra.launcher.dry_run=true shows the script",
}

with contextlib.suppress(ImportError):  # Hydra imports this at each start; hydra/launcher=slurm says what is missing
    from hydra_plugins.hydra_submitit_launcher.submitit_launcher import SlurmLauncher

    class Slurm(SlurmLauncher):
        """Nodes, tasks and GPUs are those of trainer.num_nodes and trainer.devices.

        Args:
            dry_run: print the sbatch script of the first job instead of submitting
            wait: for the ends of the jobs
            params: of submitit's launcher
        """

        def __init__(self, dry_run: bool = False, wait: bool = True, **params: Any):
            super().__init__(**params)
            self.dry_run, self.wait = dry_run, wait
            self.folder = Path(self.params.pop("submitit_folder"))
            limit = f"export LEYDEN_REQUEUES={self.params.pop('max_num_timeout')}"
            self.params["setup"] = [limit, *(self.params.get("setup") or [])]

        def setup(self, *, config: Any, **others: Any) -> None:
            """Raises UserError where jobs follow from others, for which nobody would wait."""
            super().setup(config=config, **others)
            follow = config.hydra.sweeper.get("n_trials") or config.hydra.sweeper.get("max_batch_size")
            must = "true for Optuna, or with hydra.sweeper.max_batch_size, as jobs follow from the ends of others"
            require(self.wait or not follow, "hydra.launcher.wait", must, False)

        def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
            """Raises UserError where the jobs ask for different numbers, or SLURM does not take them."""
            from submitit.slurm import slurm

            assert self.hydra_context and self.config
            load = self.hydra_context.config_loader.load_sweep_config
            cfgs = [load(self.config, list(overrides)) for overrides in job_overrides]
            numbers = [self.numbers(cfg.trainer) for cfg in cfgs]
            for other in numbers:
                require(other == numbers[0], "trainer", f"the same in all jobs of an array ({numbers[0]})", other)
            names, wanted = slurm.SlurmExecutor._equivalence_dict(), self.params | numbers[0]
            params = {str(names.get(key, key)): value for key, value in wanted.items() if value is not None}
            params |= {"mem": f"{params['mem']}GB"} if "mem" in params else {}
            done = [JobReturn(overrides=list(each), status=JobStatus.COMPLETED) for each in job_overrides]
            if self.dry_run:
                command = f"python -u -m submitit.core._submit {self.folder}"
                print(slurm._make_sbatch_string(command=command, folder=self.folder, **params))
                return done
            jobs, root = self.submit(params, job_overrides, initial_job_idx), Path(self.config.hydra.sweep.dir)
            print(f"SLURM has {len(jobs)} jobs, from {jobs[0].job_id} to {jobs[-1].job_id}", flush=True)
            if not self.wait:
                where = shlex.quote(str(paths.in_words(root)))
                print(f"squeue shows what they do, and this the table: python src/report.py {where}")
                raise SystemExit(0)
            folders = [root / str(cfg.hydra.sweep.subdir) for cfg in cfgs]
            returned = self.watch(dict(zip(jobs, folders, strict=True)))
            return [returned.get(job, lost) for job, lost in zip(jobs, done, strict=True)]

        @staticmethod
        def numbers(trainer: Any) -> dict[str, int]:
            require(str(trainer.devices).isdecimal(), "trainer.devices", "a number under SLURM", trainer.devices)
            devices = int(trainer.devices)
            gpus = 0 if trainer.accelerator == "cpu" else devices
            return {"nodes": trainer.num_nodes, "tasks_per_node": devices, "gpus_per_node": gpus}

        def submit(self, params: dict[str, Any], overrides: Sequence[Sequence[str]], first: int) -> list[Any]:
            """submitit's jobs; UserError, and no file of them, where sbatch refuses them."""
            from submitit.slurm import slurm

            count, said = len(overrides), io.StringIO()
            numbers = range(first, first + count)
            columns: list[Any] = [list(map(list, overrides)), ["hydra.sweep.dir"] * count, numbers, map(str, numbers)]
            try:
                executor = slurm.SlurmExecutor(self.folder)
                executor.update_parameters(**params)
                with contextlib.redirect_stderr(said):
                    return executor.map_array(self, *columns, [Singleton.get_state()] * count)
            except (RuntimeError, ValueError) as error:  # of submitit
                for path in self.folder.parent.glob("*"):
                    if path.suffix in (".pkl", ".sh") and not path.is_symlink():
                        path.unlink()
                lines = re.findall(r"^sbatch: (?:error: )?(?:Batch job .*?: )?(.*)", said.getvalue(), re.M)
                what = "; ".join(lines) or str(error).splitlines()[0]
                do = next(do for words, do in KEYS.items() if re.search(words, what, re.I))
                raise UserError(f"SLURM does not take the jobs: {what}; {do}.") from error

        def watch(self, waiting: dict[Any, Path]) -> dict[Any, JobReturn]:
            """Wait for the ends of jobs, job -> run directory, and let a run without an end say SLURM's reason."""
            array, returned = next(iter(waiting)).job_id.partition("_")[0], {}
            over: dict[Any, list[str]] = {}  # at the last look: SLURM's number and state
            while waiting:
                time.sleep(POLL)
                command = ["squeue", "-rht", "all", "-o", "%i %A %T", "-j", array]
                asked = subprocess.run(command, capture_output=True, text=True)
                if asked.returncode and "Invalid job id" not in asked.stderr:  # which it says of what is long over
                    continue
                now = {name: words for name, *words in map(str.split, asked.stdout.splitlines())}
                states = {job: now.get(job.job_id, ["", "UNKNOWN"]) for job in waiting}
                before, over = over, {job: words for job, words in states.items() if OVER.match(words[1])}
                for job in before.keys() & over.keys():  # its result would be seen by now
                    run, (number, state) = Run(waiting.pop(job)), before[job]
                    mine = (run.record.get("slurm") or {}).get("job") == number
                    if job.paths.result_pickle.exists():
                        outcome, result = pickle.loads(job.paths.result_pickle.read_bytes())
                        if outcome == "success":
                            returned[job] = result
                        else:
                            sweeps.fail(run.directory, result.strip().splitlines()[-1])
                    elif not run.record or (mine and run.record["status"] == Status.RUNNING):
                        see = f"see {job.paths.stderr}"
                        sweeps.fail(run.directory, f"{sweeps.LOST} {state} of its job {job.job_id}; {see}")
            return returned
