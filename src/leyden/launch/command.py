"""From argv to a running function."""

import errno
import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.callbacks import Callbacks
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobStatus, run_job
from hydra.errors import HydraException
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from leyden import UserError
from leyden.launch import cluster, overrides, ranks, sweeps
from leyden.launch.line import answering, name_of, open_screens, show_help
from leyden.launch.plan import Start, plan
from leyden.run import configs, paths
from leyden.run.run import Run, Status

Function = Callable[[DictConfig], Any]
NO_SPACE = (errno.ENOSPC, errno.EACCES, errno.EPERM, errno.EROFS, errno.EDQUOT)


def launch(function: Function, config: str) -> None:
    """Run one command: a mistake of the user's ends in a sentence and status 2, a signal in 128 + its number."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors through to here
    path = [str(paths.PROJECT / "src"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))  # for what Hydra's launchers start
    with answering():
        cluster.translate()
        if ranks.entered():
            ranks.enter(function)
        os.environ["LEYDEN_COMMAND"] = shlex.join(["python", *sys.argv])  # as typed, for run.json
        ranks.listen()
        if ranks.outside() and not {"-m", "--multirun"}.isdisjoint(sys.argv):
            raise UserError("torchrun and srun start one run; type python in their place, or -m hydra/launcher=slurm.")
        try:
            if cluster.follows():
                cluster.join(function)
            elif not {"--help", "-h"}.isdisjoint(sys.argv):
                print(show_help(config, paths.CONF))
            else:
                with cluster.awaited(), tidied(plan(sys.argv[1:], config)) as start:
                    {"run": single, "multirun": sweep, "show": show}[start.mode](function, start, config)
        except (OmegaConfBaseException, HydraException) as error:
            raise UserError(f"The config does not fit together: {overrides.in_one_line(error).rstrip('.')}.") from error


@contextmanager
def tidied(start: Start) -> Iterator[Start]:
    """Take the directory of a command away again where nothing has begun in it; UserError where one is not writable."""
    try:
        yield start
    except OSError as error:
        if error.errno in NO_SPACE:
            where = error.filename or start.directory
            raise UserError(f"{where} cannot be written ({error.strerror}); set log_dir=<folder>.") from error
        raise
    finally:
        stopped = start.mode == "multirun" and isinstance(sys.exc_info()[1], SystemExit)  # sweep= goes on with it
        if start.fresh and not stopped and not any(start.directory.rglob("run.json")):
            shutil.rmtree(start.directory, ignore_errors=True)


def single(function: Function, start: Start, config: str) -> None:
    """Hand the composed config to Hydra's `run_job`, which writes .hydra/; Hydra composes nothing again."""
    directory, tree = start.directory, start.config.tree
    with open_dict(tree):
        tree.hydra.run.dir, tree.hydra.job.name = configs.literal(str(directory)), config
        if not start.fresh and tree.get("resume"):  # what Hydra noted when the run began stays
            tree.hydra.output_subdir = None
    context = HydraContext(config_loader=start.config.loader, callbacks=Callbacks(tree))
    job = partial(carry_out, function, os.path.abspath(sys.argv[0]), directory)
    with Run(directory).claim():
        done = run_job(job, tree, "hydra.run.dir", None, context, configure_logging=False)
    if done.status != JobStatus.COMPLETED:
        raise done._return_value  # `return_value` prints a line of Hydra's first


def show(function: Function, start: Start, config: str) -> None:
    """Let Hydra show its config."""
    sys.argv[1:] = [*start.line.flags, *start.line.keys]
    hydra.main(version_base="1.3", config_path=str(paths.CONF), config_name=start.line.config)(function)()


def sweep(function: Function, start: Start, config: str) -> None:
    """Run a sweep by its sweeper; its launcher composes each job, and nothing else is composed again."""
    directory, (tree, base, loader) = start.directory, start.config
    quoted = str(directory).replace("'", "\\'").replace("${", "\\${")
    typed: Any = OmegaConf.to_container(tree.hydra.overrides.task)  # with its interpolations
    of_jobs = [f"hydra.job.name={config}", "hydra/job_logging=none", f"hydra.sweep.dir='{quoted}'"]
    with open_dict(tree):
        tree.hydra.sweep.dir = configs.literal(str(directory))
        tree.hydra.overrides.hydra.extend(of_jobs)
        if tree.hydra.runtime.choices["hydra/sweeper"] == "basic":
            tree.hydra.sweeper._target_ = "hydra_plugins.search.Grid"
        if base is not None:  # the groups that are typed are in it
            (directory / ".hydra").mkdir(exist_ok=True)
            OmegaConf.save(base, directory / ".hydra" / "primary.yaml")
            overrides.search_in(loader, directory / ".hydra")
            tree.hydra.job.config_name = "primary"
            typed = [key for key in typed if not (paths.CONF / name_of(key)).is_dir()]
    context = HydraContext(config_loader=loader, callbacks=Callbacks(tree))
    job = partial(start_job, function, os.path.abspath(sys.argv[0]))
    sweeper = Plugins.instance().instantiate_sweeper(hydra_context=context, task_function=job, config=tree)
    with sweeps.kept(directory, start.line):
        sweeper.sweep(typed)


def start_job(function: Function, script: str, cfg: DictConfig) -> Any:
    """A job of a sweep, if it is still to be done."""
    open_screens()  # of a launcher's process
    cluster.translate()
    if os.environ.get("SUBMITIT_EXECUTOR") == "slurm":  # whose handlers would requeue before anything is saved
        ranks.listen()
    if cluster.follows():
        return cluster.join(function)
    directory = Path(HydraConfig.get().runtime.output_dir)
    with cluster.awaited():
        return sweeps.attempt(directory, cfg, partial(carry_out, function, script, directory))


def carry_out(function: Function, script: str, directory: Path, cfg: DictConfig, apart: bool = False) -> Any:
    """Fill in what only the start knows, and run; `apart`: not in this process."""
    cfg.run_dir = str(directory)
    for key in ("root", "path"):  # the user's own files count from where the command was typed
        if cfg.data.get(key) and not OmegaConf.is_interpolation(cfg.data, key):
            cfg.data[key] = os.path.abspath(os.path.expanduser(cfg.data[key]))
    if cfg.seed is None:
        cfg.seed = secrets.randbelow(2**31)
    if ranks.outside():
        return cluster.lead(function, cfg)
    cluster.take_gpu(cfg.trainer)
    processes = ranks.count(cfg.trainer)
    if processes == 1 and cfg.trainer.strategy == "ddp":
        cfg.trainer.update(strategy="auto", devices=1)  # no process group that the next job would inherit
    if processes == 1 and not apart:
        return function(cfg)
    before = Run(directory).record
    try:
        return ranks.start(script, cfg, directory, processes)
    except (ranks.RankError, SystemExit) as error:
        why = str(error) if isinstance(error, ranks.RankError) else None
        if not before or Run(directory).record != before:  # else a run that goes on had not begun
            Run(directory).end(Status.FAILED if why else Status.STOPPED, why)
        raise
