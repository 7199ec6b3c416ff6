"""A SLURM job for each run of a sweep: submitit's launcher, with its numbers from the trainer."""

import contextlib
from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn, JobStatus

from leyden import require

with contextlib.suppress(ImportError):  # Hydra imports this at each start; hydra/launcher=slurm says what is missing
    from hydra_plugins.hydra_submitit_launcher.submitit_launcher import SlurmLauncher

    class Slurm(SlurmLauncher):
        """Nodes, tasks and GPUs are those of trainer.num_nodes and trainer.devices.

        Args:
            dry_run: print the sbatch script of the first job instead of submitting
            params: of submitit's launcher
        """

        def __init__(self, dry_run: bool = False, **params: Any):
            super().__init__(**params)
            self.dry_run = dry_run

        def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
            """Raises UserError where the jobs ask for different numbers."""
            load = self.hydra_context.config_loader.load_sweep_config
            numbers = [self.numbers(load(self.config, list(overrides)).trainer) for overrides in job_overrides]
            for other in numbers:
                require(other == numbers[0], "trainer", f"the same in all jobs of an array ({numbers[0]})", other)
            self.params |= numbers[0]
            if not self.dry_run:
                return super().launch(job_overrides, initial_job_idx)
            print(self.script())
            return [JobReturn(overrides=list(each), status=JobStatus.COMPLETED) for each in job_overrides]

        @staticmethod
        def numbers(trainer: Any) -> dict[str, int]:
            require(str(trainer.devices).isdecimal(), "trainer.devices", "a number under SLURM", trainer.devices)
            devices = int(trainer.devices)
            gpus = 0 if trainer.accelerator == "cpu" else devices
            return {"nodes": trainer.num_nodes, "tasks_per_node": devices, "gpus_per_node": gpus}

        def script(self) -> str:
            """What sbatch would be given."""
            from submitit.slurm import slurm

            named = slurm.SlurmExecutor._equivalence_dict()
            params = {str(named.get(key, key)): value for key, value in self.params.items() if value is not None}
            folder, _ = params.pop("submitit_folder"), params.pop("max_num_timeout")
            if "mem" in params:
                params["mem"] = f"{params['mem']}GB"
            command = f"python -u -m submitit.core._submit {folder}"
            return slurm._make_sbatch_string(command=command, folder=folder, **params)
