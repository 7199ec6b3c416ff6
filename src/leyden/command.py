"""From argv to a running function: which run, which directory, which ranks. The only place that catches UserError."""

import errno
import os
import re
import secrets
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from leyden import UserError, overrides, ranks, runs, stored
from leyden.help import show_help
from leyden.readers import from_file, from_run, literal, logs

CONF = runs.CONF
SHOWS = ("--cfg", "-c", "--info", "-i", "--hydra-help", "--version", "--shell-completion", "-sc")  # nothing runs
READERS = ("eval", "predict", "export")  # commands that start from the config of a run
ASKED = {  # overrides that are taken as they are typed
    "train": ("resume", "rerun"),
    "eval": ("run",),
    "predict": ("run", "model", "input", "output"),
    "export": ("run", "output"),
}


def launch(function: Callable[[DictConfig], Any], config: str) -> None:
    """Run one command: a mistake of the user's ends in a sentence and status 2, a signal in 128 + its number."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors through to here
    if not ranks.entered():
        os.environ["LEYDEN_COMMAND"] = shlex.join(["python", *sys.argv])  # as typed, for run.json
    try:
        if ranks.entered():
            ranks.enter(function)
        elif any(flag in sys.argv[1:] for flag in ("--help", "-h")):
            print(show_help(config, CONF))
        else:
            with interruptible():
                run(function, config)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(error.status)
    except OmegaConfBaseException as error:
        print(f"The config does not fit together: {' '.join(str(error).split())}.", file=sys.stderr)
        sys.exit(2)


def run(function: Callable[[DictConfig], Any], config: str) -> None:
    """Check the command line, choose the directory, and hand over to Hydra."""
    line = overrides.split(sys.argv[1:], config)
    directory, tree = prepare(line, config)
    config_path, config_name, settings = CONF, line.config, []
    if directory:
        settings = [f"hydra.{'sweep' if line.multirun else 'run'}.dir={quote(directory)}"]
        if tree is not None:
            config_path, config_name = directory / ".hydra", "primary"
            config_path.mkdir(exist_ok=True)
            OmegaConf.save(tree, config_path / "primary.yaml")
    sys.argv[1:] = [*line.flags, f"hydra.job.name={config}", "hydra/job_logging=none", *settings, *line.keys]
    mistakes: list[UserError] = []

    def job(cfg: DictConfig) -> Any:
        try:
            return start(function, cfg)
        except UserError as error:
            mistakes.append(error)
            if line.multirun:  # fails this job only; Hydra raises the first one after the last job
                print(f"job {HydraConfig.get().job.num}: {error}", file=sys.stderr)
                raise

    try:
        hydra.main(version_base="1.3", config_path=str(config_path), config_name=config_name)(job)()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT):
            raise UserError(f"{directory} cannot be written ({error.strerror}); set log_dir=<folder>.") from error
        raise
    finally:
        if directory and not any(directory.rglob("run.json")):  # nothing has begun
            shutil.rmtree(directory, ignore_errors=True)
    for mistake in mistakes:  # of a single run, past Hydra, which would add lines of its own
        raise mistake


def prepare(line: overrides.Line, config: str) -> tuple[Path | None, DictConfig | None]:
    """The run directory, None where nothing runs, and the primary config, where it is none of conf/."""
    typed, asked = list(line.keys), overrides.take(line, *ASKED.get(config, ()))
    old = None
    if asked.get("resume"):
        return go_on(line, asked["resume"])
    if config in READERS:
        old = from_file(line, asked) if "model" in asked else from_run(line, asked.get("run"))
        names = {"input", "output"} & asked.keys()
        old.update({name: literal(asked[name]) for name in names if asked[name] != "null"})
    elif asked.get("rerun"):
        old = stored.to_rerun(line, runs.find(asked["rerun"], logs(line)))
    tree = overrides.check(line, CONF, old)
    forbid(line)
    if any(flag in SHOWS for flag in line.flags):
        return None, None
    folder = runs.in_project(tree.log_dir) / ("sweep" if line.multirun else config)
    name = tree.get("name") if config == "train" and not line.multirun else None
    if name is not None and (folder / str(name)).exists():
        return go_on_with_name(line, folder / str(name), typed, tree) or (folder / str(name), old)
    return runs.create(folder, None if name is None else str(name)), old


def go_on(line: overrides.Line, run: str) -> tuple[Path, DictConfig]:
    """The directory and the tree of a run that goes on; leaves where it is complete.

    Raises:
        UserError: there is no such run, or what is typed does not go with it.
    """
    if line.multirun:
        raise UserError(f"resume={run} goes on with one run; take -m out.")
    longer = any(stored.name_of(key) in stored.GROWING for key in line.keys)
    directory = runs.find(run, logs(line), unfinished=not longer)
    if stored.complete(directory, line):
        print(f"The run {runs.in_words(directory)} is complete; python src/eval.py run={directory} tests it again.")
        raise SystemExit(0)
    checkpoint = directory / "checkpoints" / Path(run).name if run.endswith(".ckpt") else directory
    print(f"going on with {runs.in_words(directory)}")
    return directory, stored.to_resume(line, directory, str(checkpoint))


def go_on_with_name(
    line: overrides.Line, directory: Path, typed: list[str], tree: DictConfig
) -> tuple[Path, DictConfig] | None:
    """As `go_on`, for a command that is typed again; None for a run that was killed before it had begun.

    The packages that the command itself builds from may be trusted.

    Raises:
        UserError: the run was started with other overrides.
    """
    if not (directory / "config.yaml").is_file():
        return None
    if set(typed) != set(before := stored.typed_before(directory)):
        now, then = (" ".join(sorted(set(a) - set(b))) or "nothing" for a, b in ((typed, before), (before, typed)))
        raise UserError(
            f"There is a run {directory} of other overrides: now {now}, then {then}; type another name, or go on with "
            f"it by resume={directory}."
        )
    line.keys = []
    directory, old = go_on(line, str(directory))
    old.trusted = sorted(set(re.findall(r"_target_: (\w+)\.", OmegaConf.to_yaml(tree))))
    return directory, old


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
    if line.multirun and (shown := [flag for flag in line.flags if flag in SHOWS]):
        raise UserError(f"{shown[0]} shows one run; take -m out.")


def quote(path: Path) -> str:
    """As a quoted value of Hydra's grammar, where a backslash means something only before a quote."""
    return "'" + str(path).replace("'", "\\'") + "'"


def start(function: Callable[[DictConfig], Any], cfg: DictConfig) -> Any:
    """Run the function here, or in a process for each device."""
    directory = Path(HydraConfig.get().runtime.output_dir)
    cfg.run_dir = str(directory)
    for key in ("data.root", "data.path"):  # the user's own files count from where the command was typed
        if (path := OmegaConf.select(cfg, key)) and not OmegaConf.is_interpolation(cfg.data, key[5:]):
            OmegaConf.update(cfg, key, os.path.abspath(os.path.expanduser(path)))
    if cfg.seed is None:
        cfg.seed = secrets.randbelow(2**31)
    processes = 1 if ranks.outside() else ranks.count(cfg.trainer)
    if processes == 1:
        if cfg.trainer.strategy == "ddp" and not ranks.outside():
            # one device: no process group that the next job would inherit
            cfg.trainer.update(strategy="auto", devices=1)
        with runs.claim(directory) if int(os.environ.get("RANK", 0)) == 0 else nullcontext():
            return function(cfg)
    try:
        with runs.claim(directory):
            return ranks.start(function, cfg, directory, processes)
    except ranks.RankError as error:
        runs.update(directory, status="failed", reason=str(error), ended=runs.now())
        raise
    except SystemExit:
        runs.update(directory, status="stopped", ended=runs.now())
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
