"""Where runs are: the project, its logs, and a run by what is typed."""

import os
from datetime import datetime
from pathlib import Path

from omegaconf import OmegaConf

from leyden import UserError
from leyden.run.run import Run, Status

PROJECT = Path(__file__).resolve().parents[3]
CONF = PROJECT / "conf"


def in_project(path: str | Path) -> Path:
    """A relative path from the project."""
    return PROJECT / Path(str(path)).expanduser()


def in_words(path: Path) -> Path:
    """A path as it is shown: in the project relative to it."""
    return path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path


def logs_folder(typed: str | None = None) -> Path:
    """The folder of all runs: as typed, or as conf/ says."""
    if typed is not None:
        return in_project(typed)

    local = CONF / "local" / f"{os.environ.get('LEYDEN_LOCAL', 'default')}.yaml"
    files = [file for file in (CONF / "train.yaml", local) if file.is_file()]
    try:
        return in_project(OmegaConf.merge(*map(OmegaConf.load, files)).log_dir)
    except Exception as error:  # of YAML or OmegaConf
        raise UserError("log_dir of conf/ cannot be read; type log_dir=<folder>.") from error


def create(folder: Path, name: str | None = None) -> Path:
    """Make a run directory that no other launch has, by a name or the time."""
    while True:
        path = folder / (name or datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f"))
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError as error:
            if name:
                raise UserError(f"There is a run {path} already; choose another name, or delete it.") from error
        except OSError as error:
            raise UserError(f"{path} cannot be made ({error.strerror}); type log_dir=<folder>.") from error


def of(path: Path) -> Run:
    """The run of a directory, or of a checkpoint in it."""
    return Run(path.parent.parent if path.suffix == ".ckpt" else path)


def find(asked: str, logs: Path, unfinished: bool = False, sweep: Path | None = None) -> Run:
    """A run by its path, a checkpoint in it, its name, or `latest`."""
    if asked == "latest":
        return latest(logs, unfinished, sweep)

    for run in map(of, (Path(asked).expanduser(), in_project(asked), logs / "train" / asked)):
        if run.config_file.is_file() or run.record:  # a new one has no config yet
            return Run(run.directory.resolve())
    raise UserError(f"{asked} is no run directory or checkpoint, nor a run in {logs / 'train'}; try latest.")


def latest(logs: Path, unfinished: bool, sweep: Path | None) -> Run:
    """The run that began last of those with a checkpoint, or of the `unfinished` ones that nobody runs.

    For a job of a `sweep` none of its other jobs: each would find another one.
    """
    jobs = [path for path in logs.glob("sweep/*/*/") if path.parent != sweep]
    closed = (Status.RUNNING, Status.FINISHED, Status.UNKNOWN)
    for run in sorted(map(Run, (*logs.glob("train/*/"), *jobs)), key=lambda run: run.started, reverse=True):
        if (run.status not in closed and run.config_file.is_file()) if unfinished else run.begun:
            return run

    kind = "unfinished run" if unfinished else "run with a checkpoint"
    raise UserError(f"There is no {kind} in {logs}; python src/train.py makes one.")


def sweeps(logs: Path) -> list[Path]:
    """The directories of sweeps, the newest first."""
    return sorted(logs.glob("sweep/*/"), key=lambda path: Run(path / "0").started or path.stat().st_mtime, reverse=True)


def weights(source: str, logs: Path) -> Path:
    """The file that `init_from=` means: itself, or the best or last checkpoint of a run."""
    file = Path(str(source)).expanduser()
    return file if file.is_file() else find(str(source), logs).checkpoint(source)
