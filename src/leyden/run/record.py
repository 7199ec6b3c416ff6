"""What a run says of itself while it lives: run.json, train.log, and what it was built from."""

import logging
import os
import platform
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from leyden import UserError
from leyden.run.paths import PROJECT, in_words
from leyden.run.run import HEARTBEAT_S, Run, Status, now, process_start_time, slurm_job
from leyden.run.run_log import logging_to

PACKAGES = ("torch", "lightning", "torchvision", "torchmetrics", "hydra-core", "tensorboard", "onnx", "numpy")
log = logging.getLogger(__name__)
PATCH_LIMIT = 2**20  # bytes of an untracked file that changes.patch takes in


class Record:
    """run.json and train.log of a run that is being built and run; in ranks above 0 nothing.

    A run that goes on is left as it was until `begin`, so that a refusal changes nothing in it: neither its status, nor
    its log, which would get the traceback of a command that came to nothing.
    """

    def __init__(self, cfg: DictConfig):
        self.cfg, self.run, self.silent = cfg, Run(cfg.run_dir), int(os.environ.get("RANK", 0)) > 0
        self.end: dict[str, Any] = {"status": Status.FINISHED}  # what run.json says after a good end
        self.begun = False
        self.during = ExitStack()  # what lasts until the end
        self.release = self.during.enter_context(logging_to(None if self.silent else self.run.log_file))

    def start(self) -> None:
        """Say that the run runs, and write on from here."""
        self.begun = not self.silent
        if self.begun:
            old = self.cfg.get("resume") and self.run.record
            said = resumption(old) if old else origin(self.cfg)
            self.run.update(status=Status.RUNNING, reason=None, ended=None, **said)
            self.during.enter_context(beating(self.run))
            self.release()

    def begin(self, **fields: Any) -> None:
        """Store what the run is built from, once it is known: the tree with its facts, the changes, and `fields`."""
        if self.silent:
            return
        if not self.begun:
            self.start()
        prune(self.cfg)
        tree = self.cfg.copy()
        tree.update({key: None for key in ("run_dir", "resume", "rerun") if key in tree})  # of this start only
        OmegaConf.save(tree, self.run.config_file)
        if patch := changes():
            (self.run.directory / "changes.patch").write_text(patch, encoding="utf-8")
        self.run.update(**fields)

    def update(self, **fields: Any) -> None:
        """Change some fields of run.json."""
        if self.begun:
            self.run.update(**fields)


@contextmanager
def recording(cfg: DictConfig) -> Iterator[Record]:
    """Keep run.json true from the start to the end, and train.log with it."""
    record = Record(cfg)
    directory = record.run.directory
    with record.during:
        if not cfg.get("resume"):
            record.start()
        try:
            yield record
        except SystemExit as error:
            name = signal.Signals(error.code - 128).name if isinstance(error.code, int) and error.code > 128 else "exit"
            record.update(status=Status.STOPPED, reason=name, ended=now())
            if "resume" in cfg and not record.silent:
                swept = (directory.parent / "sweep.json").is_file()
                where = shlex.quote(str(in_words(directory.parent if swept else directory)))
                key = "sweep" if swept else "resume"
                log.warning("Stopped by %s; go on with: python src/train.py %s=%s", name, key, where)
            raise
        except BaseException as error:
            record.update(status=Status.FAILED, reason=f"{type(error).__name__}: {error}", ended=now())
            logging.getLogger("leyden.file").error("failed", exc_info=True)
            # Lightning's word and OmegaConf's for a user's mistake
            if type(error).__name__ == "MisconfigurationException" or isinstance(error, OmegaConfBaseException):
                raise UserError(" ".join(str(error).split())) from error
            raise
        record.update(**record.end, ended=now())


@contextmanager
def beating(run: Run) -> Iterator[None]:
    """Write a sign of life into run.json now and then, for readers on other machines."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(HEARTBEAT_S):
            run.update(heartbeat=now())

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def origin(cfg: DictConfig) -> dict[str, Any]:
    """Where a run comes from: command, seed, code, versions, machine."""
    return {
        "command": typed(),
        "overrides": overridden(Path(cfg.run_dir)),
        "started": now(),
        "seed": cfg.get("seed"),
        "tags": list(cfg.get("tags") or []),
        "note": cfg.get("note"),
        "rerun": cfg.get("rerun"),
        "init_from": cfg.get("init_from"),
        "resumes": [],
        **place(),
    }


def typed() -> str:
    return os.environ.get("LEYDEN_COMMAND") or shlex.join(["python", *sys.argv])


def overridden(directory: Path) -> list[str]:
    """What this run has of its own, as Hydra notes it: of a job of a sweep, its values."""
    file = directory / ".hydra" / "overrides.yaml"
    return yaml.safe_load(file.read_text(encoding="utf-8")) or [] if file.is_file() else []


def place() -> dict[str, Any]:
    """Which process on which machine runs which code."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "pid_born": process_start_time(os.getpid()),
        "heartbeat": now(),
        "slurm": slurm_job(),
        "commit": git("rev-parse", "--verify", "-q", "HEAD").strip() or None,
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
        "hardware": {"machine": platform.machine(), "system": platform.platform(), "cores": os.cpu_count()},
    }


def resumption(old: dict[str, Any]) -> dict[str, Any]:
    """What a run that goes on says in place of `origin`: where it is now, and that it was resumed."""
    here = place()
    after = old.get("reason") or {"finished": "its end"}.get(old.get("status", ""), "a kill")
    said = {"command": typed(), "at": now(), "after": after, "unlike": differences(old, here)}
    return here | {"resumes": [*old.get("resumes", []), said]}


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What is another commit, version, machine or data in two run.json, a line for each."""

    def flat(record: dict[str, Any]) -> dict[str, Any]:
        found = {"commit": record.get("commit")}
        found |= {"data": record["data_fingerprint"]} if "data_fingerprint" in record else {}
        return found | record.get("versions", {}) | record.get("hardware", {})

    was, now = flat(old), flat(new)
    return [f"{name} is {now[name]}, was {was[name]}" for name in was if name in now and now[name] != was[name]]


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def git(*arguments: str) -> str:
    """What a git command prints in the project; nothing where there is no git or no repository."""
    try:
        result = subprocess.run(
            ["git", "-C", str(PROJECT), *arguments], capture_output=True, text=True, errors="replace"
        )
    except OSError:
        return ""
    return result.stdout


def changes() -> str:
    """The uncommitted changes of the project as a patch, untracked files under src and conf with them."""
    untracked = git("ls-files", "--others", "--exclude-standard", "-z", "src", "conf").split("\0")
    files = [name for name in untracked if name and (PROJECT / name).is_file()]
    small = [name for name in files if (PROJECT / name).stat().st_size <= PATCH_LIMIT]
    return git("diff", "HEAD") + "".join(git("diff", "--no-index", "--", os.devnull, name) for name in small)


def tell(cfg: DictConfig, monitor: str, mode: str) -> None:
    """Say in the log what is about to be trained, and what a run that repeats another one has of its own."""
    found = Run(cfg.run_dir).record
    log.info(
        "%s of %s parameters on %s, %s, %s samples a step, seed %s, best by %s (%s)",
        cfg.get("model", cfg.task)._target_.split(".")[-1], f"{found['parameters']:,}", found["device"],
        found["precision"], found["effective_batch"] or "?", cfg.seed, monitor, mode,
    )  # fmt: skip
    if found["parts"]:
        frozen = found["parameters"] - found["trained"]
        parts = ", ".join(f"{name}: {part}" for name, part in found["parts"].items())
        log.info("%s%s", parts, f"; {frozen:,} are frozen" if frozen else "")
    if found["padding"]:
        log.info("%.1f%% of a training batch is padding", 100 * found["padding"])
    same = ["commit, versions, machine and data are the same"]
    for line in differences(Run(cfg.rerun).record, found) or same if cfg.rerun else ():
        log.info("rerun of %s: %s", in_words(Path(cfg.rerun)), line)


def prune(cfg: DictConfig) -> None:
    """Take out the groups that a task of the user's own has no use for, so that a run holds only what it is made of."""
    unused = []
    for name in ("scheduler", "optimizer", "model"):
        rest = {key: node for key, node in OmegaConf.to_container(cfg, resolve=False).items() if key != name}
        if name in cfg and not re.search(rf"\$\{{[^}}]*\b{name}\b", str(rest)):
            unused.append(name)
            with open_dict(cfg):
                del cfg[name]
    if unused:
        log.info("%s does not use the config's %s.", cfg.task._target_.split(".")[-1], " and ".join(sorted(unused)))
