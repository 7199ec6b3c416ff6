"""From argv to a running function: which run, which directory, which ranks. The only place that catches UserError."""

import errno
import os
import secrets
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from leyden import UserError
from leyden.launch import cluster, overrides, parallel, ranks, stored, sweeps
from leyden.launch.help import show_help
from leyden.launch.readers import from_run, literal, logs
from leyden.run import runs

CONF = runs.CONF
SHOWS = ("--cfg", "-c", "--info", "-i", "--hydra-help", "--version", "--shell-completion", "-sc")  # nothing runs
READERS = ("eval", "predict", "export")  # commands that start from the config of a run
ALONE = ("predict", "export")  # commands of one process
ASKED = {  # overrides that are taken as they are typed
    "train": ("resume", "rerun", "sweep"),
    "eval": ("run",),
    "predict": ("run", "input", "output"),
    "export": ("run", "output"),
}


def launch(function: Callable[[DictConfig], Any], config: str) -> None:
    """Run one command: a mistake of the user's ends in a sentence and status 2, a signal in 128 + its number."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors through to here
    if not ranks.entered():
        os.environ["LEYDEN_COMMAND"] = shlex.join(["python", *sys.argv])  # as typed, for run.json
    old = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    src = str(runs.PROJECT / "src")  # for processes that a launcher of Hydra starts
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([src, *filter(None, old)]))
    cluster.translate()
    try:
        line = overrides.split(sys.argv[1:], config)
        if ranks.entered():
            ranks.enter(function)
        elif ranks.outside() and line.multirun:
            raise UserError("torchrun and srun start one run; type python in their place, or -m hydra/launcher=slurm.")
        elif ranks.outside() and cluster.rank() > 0:
            with interruptible():
                cluster.join(function)
        elif any(flag in sys.argv[1:] for flag in ("--help", "-h")):
            print(show_help(config, CONF))
        else:
            with cluster.awaited(), interruptible():
                run(function, line, config)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(error.status)
    except OmegaConfBaseException as error:
        print(f"The config does not fit together: {' '.join(str(error).split())}.", file=sys.stderr)
        sys.exit(2)


def run(function: Callable[[DictConfig], Any], line: overrides.Line, config: str) -> None:
    """Check the command line, choose the directory, and hand over to Hydra."""
    directory, tree = prepare(line, config)
    fresh = directory is not None and not any(directory.iterdir())  # made by this command
    config_path, config_name, settings = CONF, line.config, []
    if directory:
        line.keys += ["hydra.sweeper._target_=hydra_plugins.search.Grid"] * (line.multirun and line.sweeper == "basic")
        settings = [f"hydra.{'sweep' if line.multirun else 'run'}.dir={quote(directory)}"]
        if tree is not None and line.multirun:  # for the processes that a launcher starts
            config_path, config_name = directory / ".hydra", "primary"
            config_path.mkdir(exist_ok=True)
            OmegaConf.save(tree, config_path / "primary.yaml")
        elif tree is not None:
            config_name = "_primary"
            ConfigStore.instance().store(config_name, tree)
        if tree is not None and tree.get("resume"):  # what Hydra noted when the run began stays
            settings.append("hydra.output_subdir=null")
    sys.argv[1:] = [*line.flags, f"hydra.job.name={config}", "hydra/job_logging=none", *settings, *line.keys]
    mistakes: list[UserError] = []
    script = ranks.script(function)  # not known any more where a launcher has pickled the function

    def job(cfg: DictConfig) -> Any:
        try:
            return start(function, cfg, script)
        except UserError as error:
            mistakes.append(error)

    held: Any = runs.claim(directory) if directory and not line.multirun else nullcontext()
    if directory and line.multirun and config == "train":
        held = sweeps.kept(directory, line)
    try:
        with held:
            hydra.main(version_base="1.3", config_path=str(config_path), config_name=config_name)(job)()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EACCES, errno.EPERM, errno.EROFS, errno.EDQUOT):
            where = error.filename or directory
            raise UserError(f"{where} cannot be written ({error.strerror}); set log_dir=<folder>.") from error
        raise
    finally:
        stopped = line.multirun and isinstance(sys.exc_info()[1], SystemExit)  # a sweep that sweep= goes on with
        if directory and fresh and not stopped and not any(directory.rglob("run.json")):  # nothing has begun
            shutil.rmtree(directory, ignore_errors=True)
    for mistake in mistakes:  # of a single run, past Hydra, which would add lines of its own
        raise mistake


def prepare(line: overrides.Line, config: str) -> tuple[Path | None, DictConfig | None]:
    """The run directory, None where nothing runs, and the primary config, where it is none of conf/."""
    asked, old, sweep = overrides.take(line, *ASKED.get(config, ())), None, None
    if asked.get("sweep", "null") != "null":
        if other := next((name for name in ("resume", "rerun") if name in asked), None):
            raise UserError(f"sweep= and {other}= are two things to go on with; take one of them out.")
        sweep = sweeps.go_on(line, asked["sweep"], logs(line))
        asked = overrides.take(line, *ASKED["train"])
    if asked.get("resume"):
        return stored.go_on(line, asked["resume"], logs(line))
    if config in READERS:
        old = from_run(line, asked.get("run"))
        names = {"input", "output"} & asked.keys()
        old.update({name: literal(asked[name]) for name in names if asked[name] != "null"})
    elif asked.get("rerun"):
        old = stored.to_rerun(line, runs.find(asked["rerun"], logs(line)))
    tree = overrides.check(line, CONF, old)
    forbid(line)
    if any(flag in SHOWS for flag in line.flags):
        return None, None
    if config in ALONE and (ranks.outside() or ranks.count(tree.trainer) > 1):
        raise UserError(f"{config}.py runs in one process, without torchrun; type trainer.devices=1.")
    folder = runs.in_project(tree.log_dir) / ("sweep" if line.multirun else config)
    if line.multirun:
        return sweep or runs.create(folder), old
    name = tree.get("name") if config == "train" else None
    if name is not None and (folder / str(name)).exists():
        return stored.go_on_with_name(line, folder / str(name), tree) or (folder / str(name), old)
    return runs.create(folder, None if name is None else str(name)), old


def forbid(line: overrides.Line) -> None:
    """What would make two runs share a directory, or cannot be both.

    Raises:
        UserError: such an override or flag was given.
    """
    for key in line.keys:
        if key.lstrip("+").startswith(("hydra.run.dir=", "hydra.sweep.dir=", "hydra.sweep.subdir=", "run_dir=")):
            raise UserError(f"{key}: each run makes a directory of its own; type log_dir=<folder> or name=<name>.")
        if line.multirun and key.startswith("name="):
            raise UserError(f"{key}: a sweep has many runs, which cannot share a name; take it or -m out.")
    shown = [flag for flag in line.flags if flag in SHOWS]
    if shown and not {"-m", "--multirun"}.isdisjoint(line.flags):
        raise UserError(f"{shown[0]} shows one run; take -m out.")


def quote(path: Path) -> str:
    """As a quoted value of Hydra's grammar, where a backslash means something only before a quote."""
    return "'" + str(path).replace("'", "\\'").replace("${", "\\${") + "'"


def start(function: Callable[[DictConfig], Any], cfg: DictConfig, script: str) -> Any:
    """Run the function here, or the script in a process for each device; of a sweep, if there is anything to do."""
    cluster.translate()
    if ranks.outside() and cluster.rank() > 0:
        return cluster.join(function)
    directory = Path(HydraConfig.get().runtime.output_dir)
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        return sweeps.attempt(directory, cfg, partial(carry_out, function, script, directory))
    return carry_out(function, script, directory, cfg)


def carry_out(
    function: Callable[[DictConfig], Any], script: str, directory: Path, cfg: DictConfig, apart: bool = False
) -> Any:
    """Fill in what only the start knows, and run; `apart`: not in this process."""
    cfg.run_dir = str(directory)
    for key in ("data.root", "data.path"):  # the user's own files count from where the command was typed
        if (path := OmegaConf.select(cfg, key)) and not OmegaConf.is_interpolation(cfg.data, key[5:]):
            OmegaConf.update(cfg, key, os.path.abspath(os.path.expanduser(path)))
    if cfg.seed is None:
        cfg.seed = secrets.randbelow(2**31)
    if ranks.outside():
        cluster.fit(cfg.trainer)
        cluster.share(OmegaConf.to_yaml(cfg))
        return function(cfg)
    parallel.take_gpu(cfg.trainer)
    processes = ranks.count(cfg.trainer)
    if processes == 1 and cfg.trainer.strategy == "ddp":
        cfg.trainer.update(strategy="auto", devices=1)  # no process group that the next job would inherit
    if processes == 1 and not apart:
        return function(cfg)
    before = runs.read_json(directory / "run.json")
    try:
        return ranks.start(script, cfg, directory, processes)
    except (ranks.RankError, SystemExit) as error:
        end = (
            {"status": "failed", "reason": str(error)} if isinstance(error, ranks.RankError) else {"status": "stopped"}
        )
        if not before or runs.read_json(directory / "run.json") != before:  # else a run that goes on had not begun
            runs.update(directory, **end, ended=runs.now())
        raise


@contextmanager
def interruptible() -> Iterator[None]:
    """Make signals leave as SystemExit(128 + signal), wherever the command is."""

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    try:
        before = {number: signal.signal(number, leave) for number in ranks.SIGNALS}
    except ValueError:  # not in the main thread, where Python takes no handlers
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
