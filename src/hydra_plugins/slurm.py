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
ENDED = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
)
KEYS = {  # what sbatch says when it refuses, and what is to be changed then
    "gres|generic resource": "type trainer=cpu (or trainer.accelerator=cpu) where there are no GPUs, or fewer devices",
    "partition": "set hydra.launcher.partition; `sinfo` lists them",
    "account": "set hydra.launcher.account",
    "time limit": "set hydra.launcher.timeout_min",
    "memory": "set hydra.launcher.mem_gb",
    "node configuration|node count|cpu count|processors": (
        "set trainer.devices, trainer.num_nodes or hydra.launcher.cpus_per_task"
    ),
    "": "set it by hydra.launcher.additional_parameters; hydra.launcher.dry_run=true shows the script",
}

with contextlib.suppress(ImportError):  # Hydra imports this at each start; hydra/launcher=slurm says what is missing
    from hydra_plugins.hydra_submitit_launcher.submitit_launcher import SlurmLauncher

    class Slurm(SlurmLauncher):
        """Nodes, tasks and GPUs are those of trainer.num_nodes and trainer.devices.

        Args:
            dry_run: print the sbatch script of the first job instead of submitting
            wait: for the jobs' ends; false: submit them, and end
            params: of submitit's launcher
        """

        def __init__(self, dry_run: bool = False, wait: bool = True, **params: Any):
            super().__init__(**params)
            self.dry_run, self.wait = dry_run, wait
            limit = f"export LEYDEN_REQUEUES={self.params.pop('max_num_timeout')}"
            self.params["setup"] = [limit, *(self.params.get("setup") or [])]

        def setup(self, *, config: Any, **others: Any) -> None:
            """Raises UserError where a sweeper has to see results, but would not wait for them."""
            super().setup(config=config, **others)
            batches = config.hydra.sweeper.get("max_batch_size") or config.hydra.sweeper.get("n_trials")
            if batches and not self.wait:
                what = "a search with Optuna, or by hydra.sweeper.max_batch_size,"
                raise UserError(f"{what} must wait for its jobs; take hydra.launcher.wait=false out.")

        def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
            """Raises UserError where the jobs ask for different numbers, or SLURM does not take them."""
            assert self.hydra_context and self.config
            load = self.hydra_context.config_loader.load_sweep_config
            cfgs = [load(self.config, list(overrides)) for overrides in job_overrides]
            numbers = [self.numbers(cfg.trainer) for cfg in cfgs]
            for other in numbers:
                require(other == numbers[0], "trainer", f"the same in all jobs of an array ({numbers[0]})", other)
            self.params |= numbers[0]
            done = [JobReturn(overrides=list(each), status=JobStatus.COMPLETED) for each in job_overrides]
            if self.dry_run:
                print(self.script())
                return done
            jobs = self.submit([list(each) for each in job_overrides], initial_job_idx)
            root = Path(self.config.hydra.sweep.dir)
            print(f"SLURM has the jobs {jobs[0].job_id} to {jobs[-1].job_id}", flush=True)
            if not self.wait:
                where = shlex.quote(str(paths.in_words(root)))
                print(f"squeue shows what they do, and this the table: python src/report.py {where}")
                raise SystemExit(0)
            self.watch(jobs, [root / str(cfg.hydra.sweep.subdir) for cfg in cfgs])
            return done

        @staticmethod
        def numbers(trainer: Any) -> dict[str, int]:
            require(str(trainer.devices).isdecimal(), "trainer.devices", "a number under SLURM", trainer.devices)
            devices = int(trainer.devices)
            gpus = 0 if trainer.accelerator == "cpu" else devices
            return {"nodes": trainer.num_nodes, "tasks_per_node": devices, "gpus_per_node": gpus}

        def submit(self, overrides: list[list[str]], first: int) -> list[Any]:
            """submitit's jobs; UserError, and no file of them, where sbatch refuses them."""
            import submitit

            common = ("timeout_min", "cpus_per_task", "gpus_per_node", "tasks_per_node", "mem_gb", "nodes", "name")
            params = {key if key in common else f"slurm_{key}": value for key, value in self.params.items()}
            folder = Path(params.pop("slurm_submitit_folder"))
            number = range(first, first + len(overrides))
            columns = [overrides, ["hydra.sweep.dir"] * len(number), number, map(str, number)]
            said = io.StringIO()
            try:
                executor = submitit.AutoExecutor(folder, cluster="slurm")
                executor.update_parameters(**params)
                with contextlib.redirect_stderr(said):
                    return executor.map_array(self, *columns, [Singleton.get_state()] * len(number))
            except (RuntimeError, ValueError, NameError) as error:  # of submitit
                for path in folder.parent.glob("*"):
                    if path.suffix in (".pkl", ".sh") and not path.is_symlink():
                        path.unlink()
                lines = re.findall(
                    r"^sbatch: (?:error: )?(?:Batch job submission failed: )?(.*)", said.getvalue(), re.M
                )
                what = "; ".join(lines) or str(error).partition(". Valid")[0]
                do = next(do for words, do in KEYS.items() if re.search(words, what, re.I))
                raise UserError(f"SLURM does not take the jobs: {what}; {do}.") from error

        def watch(self, jobs: list[Any], folders: list[Path]) -> None:
            """Wait until all jobs have left a result, or have ended without one, which their runs then say."""
            waiting, known = dict(zip(jobs, folders, strict=True)), {}
            said = {"None", "Resources", "Priority", "BeginTime", "JobArrayTaskLimit"}  # which end by themselves
            gone: list[Any] = []  # at the last look
            while waiting:
                time.sleep(POLL)
                line = ["squeue", "-rht", "all", "-o", "%i %A %r %T", "-j", jobs[0].job_id.partition("_")[0]]
                asked = subprocess.run(line, capture_output=True, text=True)
                now = {each.split()[0]: each.split()[1:] for each in asked.stdout.splitlines()}
                known |= now
                for reason in {reason for _, reason, state in now.values() if state == "PENDING"} - said:
                    print(f"SLURM lets jobs wait: {reason}", flush=True)
                    said.add(reason)
                for job, folder in list(waiting.items()):
                    if job.paths.result_pickle.exists():
                        outcome, result = pickle.loads(job.paths.result_pickle.read_bytes())
                        if outcome == "error":
                            sweeps.fail(folder, result.strip().splitlines()[-1])
                        del waiting[job]
                if asked.returncode and "Invalid job id" not in asked.stderr:  # SLURM does not answer
                    continue
                over = [job for job in waiting if now.get(job.job_id, ENDED)[-1] in ENDED]
                for job in set(over) & set(gone):  # its result would be there by now
                    number, _, state = known.get(job.job_id, ["", "", "UNKNOWN"])
                    run = Run(waiting.pop(job))
                    mine = (run.record.get("slurm") or {}).get("job") == number
                    if not run.record or (mine and run.record["status"] == Status.RUNNING):
                        sweeps.fail(
                            run.directory, f"{sweeps.LOST} {state} of its job {job.job_id}; see {job.paths.stderr}"
                        )
                gone = over

        def script(self) -> str:
            """What sbatch would be given."""
            from submitit.slurm import slurm

            named = slurm.SlurmExecutor._equivalence_dict()
            params = {str(named.get(key, key)): value for key, value in self.params.items() if value is not None}
            folder = params.pop("submitit_folder")
            if "mem" in params:
                params["mem"] = f"{params['mem']}GB"
            command = f"python -u -m submitit.core._submit {folder}"
            return slurm._make_sbatch_string(command=command, folder=folder, **params)
