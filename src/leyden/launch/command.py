"""From argv to a running function."""

import errno
import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Iterator
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
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from leyden import UserError, said
from leyden.launch import cluster, ranks, sweeps
from leyden.launch.line import answering, name_of, open_screens, show_help
from leyden.launch.overrides import search_in
from leyden.launch.plan import Start, plan
from leyden.launch.ranks import Function
from leyden.run import configs, paths
from leyden.run.run import Run, Status


def launch(function: Function, config: str) -> None:
    """Run one command: a mistake of the user's ends in status 2, a signal in 128 + its number."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors through to here
    path = filter(None, [str(paths.PROJECT / "src"), os.environ.get("PYTHONPATH")])
    os.environ["PYTHONPATH"] = os.pathsep.join(path)  # for what Hydra's launchers start

    with answering():
        cluster.translate()
        if ranks.entered():
            ranks.enter(function)
        os.environ["LEYDEN_COMMAND"] = shlex.join(["python", *sys.argv])  # for run.json
        ranks.listen()
        try:
            if cluster.follows():
                cluster.join(function)
            elif not {"--help", "-h"}.isdisjoint(sys.argv):
                print(show_help(config, paths.CONF))
            else:
                with cluster.awaited(), tidied(plan(sys.argv[1:], config)) as start:
                    {"run": single, "multirun": sweep, "show": show}[start.mode](function, start, config)
        except (OmegaConfBaseException, HydraException) as error:
            raise UserError(f"The config does not fit together: {said(error)}.") from error
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT):
                raise
            what = f"{error.filename or 'A file'} cannot be written ({error.strerror})"
            raise UserError(f"{what}; set log_dir=<folder>.") from error


@contextmanager
def tidied(start: Start) -> Iterator[Start]:
    """Take a command's directory away where nothing has begun in it."""
    try:
        yield start
    finally:
        stopped = start.mode == "multirun" and isinstance(sys.exc_info()[1], SystemExit)  # sweep= goes on with it
        if start.fresh and not stopped and not any(start.directory.rglob("run.json")):
            shutil.rmtree(start.directory, ignore_errors=True)


def single(function: Function, start: Start, config: str) -> None:
    """Hand the composed config to Hydra's `run_job`, which writes .hydra/."""
    tree, directory = start.config.tree, start.directory
    tree.hydra.run.dir, tree.hydra.job.name = configs.literal(str(directory)), config
    if not start.fresh and tree.get("resume"):  # what Hydra noted when the run began stays
        tree.hydra.output_subdir = None

    context = HydraContext(start.config.loader, Callbacks(tree))
    job = partial(carry_out, function, os.path.abspath(sys.argv[0]), directory)
    with Run(directory).claim():
        done = run_job(job, tree, "hydra.run.dir", None, context, configure_logging=False)

    if done.status != JobStatus.COMPLETED:
        raise done._return_value  # `return_value` prints a line of Hydra's first


def show(function: Function, start: Start, config: str) -> None:
    """Let Hydra show its config, or that of a sweep's first job."""
    line, typed = start.config.line, start.config.choices | start.config.keys
    flags = [word for flag in line.flags.items() for word in flag if word not in ("", "--multirun")]
    sys.argv[1:] = flags + [str(values[0].input_line) for values in typed.values()]
    hydra.main(version_base="1.3", config_path=str(paths.CONF), config_name=line.config)(function)()


def sweep(function: Function, start: Start, config: str) -> None:
    """Run a sweep by its sweeper; the launcher composes each job."""
    directory, found, node = start.directory, start.config, start.config.tree.hydra
    typed: Any = OmegaConf.to_container(node.overrides.task)
    quoted = str(directory).replace("'", "\\'").replace("${", "\\${")
    node.sweep.dir = configs.literal(str(directory))
    node.overrides.hydra += [f"hydra.job.name={config}", "hydra/job_logging=none", f"hydra.sweep.dir='{quoted}'"]
    if node.runtime.choices["hydra/sweeper"] == "basic":
        node.sweeper._target_ = "hydra_plugins.search.Grid"

    if found.base is not None:  # the groups that are typed are in it
        (directory / ".hydra").mkdir(exist_ok=True)
        OmegaConf.save(found.base, directory / ".hydra" / "primary.yaml")
        search_in(found.loader, directory / ".hydra")
        node.job.config_name = "primary"
        typed = [key for key in typed if not (paths.CONF / name_of(key)).is_dir()]

    context = HydraContext(found.loader, Callbacks(found.tree))
    job = partial(start_job, function, os.path.abspath(sys.argv[0]))
    sweeper = Plugins.instance().instantiate_sweeper(hydra_context=context, task_function=job, config=found.tree)
    with sweeps.kept(directory, found.line):
        sweeper.sweep(typed)


def start_job(function: Function, script: str, cfg: DictConfig) -> Any:
    """A job of a sweep, if it is still to be done."""
    open_screens()  # of a launcher's process
    cluster.translate()
    if os.environ.get("SUBMITIT_EXECUTOR") == "slurm":  # whose handlers requeue before anything is saved
        ranks.listen()
    if cluster.follows():
        return cluster.join(function)

    directory = Path(HydraConfig.get().runtime.output_dir)
    with cluster.awaited():
        return sweeps.attempt(directory, cfg, partial(carry_out, function, script, directory))


def carry_out(function: Function, script: str, directory: Path, cfg: DictConfig, apart: bool = False) -> Any:
    """Fill in what the start knows, and run; `apart`: not in this process."""
    cfg.run_dir = str(directory)
    for key in ("root", "path"):  # count from where the command was typed
        if cfg.data.get(key) and not OmegaConf.is_interpolation(cfg.data, key):
            cfg.data[key] = os.path.abspath(os.path.expanduser(cfg.data[key]))
    if cfg.seed is None:
        cfg.seed = secrets.randbelow(2**31)

    if ranks.outside():
        return cluster.lead(function, cfg)
    cluster.take_gpu(cfg.trainer)
    processes = ranks.count(cfg.trainer)
    if processes == 1 and cfg.trainer.strategy == "ddp":
        cfg.trainer.update(strategy="auto", devices=1)  # no process group for the next job to inherit
    if processes == 1 and not apart:
        return function(cfg)

    run, before = Run(directory), Run(directory).record
    try:
        return ranks.start(script, cfg, directory, processes)
    except (ranks.RankError, SystemExit) as error:
        end = (Status.FAILED, str(error)) if isinstance(error, ranks.RankError) else (Status.STOPPED,)
        if not before or run.record != before:  # else a run that goes on had not begun
            run.end(*end)
        raise
