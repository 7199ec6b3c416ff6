"""A SLURM job for each run of a sweep: submitit's launcher, with its numbers from the trainer."""

import contextlib
from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn, JobStatus

from leyden import UserError

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
            """Raises UserError where the jobs, or the launcher and the trainer, ask for different numbers."""
            load = self.hydra_context.config_loader.load_sweep_config
            found = [self.numbers(load(self.config, list(overrides)).trainer) for overrides in job_overrides]
            if different := [numbers for numbers in found if numbers != found[0]]:
                raise UserError(f"The jobs of one SLURM array need equal numbers, not {found[0]} and {different[0]}.")
            for name, number in found[0].items():
                if self.params.get(name) not in (None, number):
                    raise UserError(
                        f"hydra.launcher.{name}={self.params[name]}, but the trainer says {number}; take it out."
                    )
            self.params |= found[0]
            if not self.dry_run:
                return super().launch(job_overrides, initial_job_idx)
            print(self.script())
            return [JobReturn(overrides=list(each), status=JobStatus.COMPLETED) for each in job_overrides]

        @staticmethod
        def numbers(trainer: Any) -> dict[str, int]:
            if not str(trainer.devices).isdecimal():
                raise UserError(f"trainer.devices={trainer.devices}: SLURM needs a number; type trainer.devices=2.")
            devices = int(trainer.devices)
            gpus = 0 if trainer.accelerator == "cpu" else devices
            return {"nodes": trainer.num_nodes, "tasks_per_node": devices, "gpus_per_node": gpus}

        def script(self) -> str:
            """What sbatch would be given."""
            from submitit.slurm import slurm

            named = slurm.SlurmExecutor._equivalence_dict() | {"nodes": "nodes"}
            params = {str(named.get(key, key)): value for key, value in self.params.items() if value is not None}
            folder, _ = params.pop("submitit_folder"), params.pop("max_num_timeout")
            if "mem" in params:
                params["mem"] = f"{params['mem']}GB"
            return slurm._make_sbatch_string(
                command=f"python -u -m submitit.core._submit {folder}", folder=folder, **params
            )
