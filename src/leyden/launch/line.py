"""A command line: its overrides, Hydra's own flags, --help, and the screen."""

import io
import re
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leyden import UserError, require
from leyden.launch import keys

# Hydra's flags: without a value, with one, by initials such as -cn
ALONE = ("--help", "--hydra-help", "--version", "--resolve", "--multirun")
VALUED = ("--cfg", "--info", "--package", "--config-name", "--config-dir", "--shell-completion")
SHORT = {"-" + "".join(re.findall(r"-(\w)", flag)): flag for flag in ALONE + VALUED}


@dataclass
class Line:
    """A command line, split. `keys`: its overrides, `typed`: with those that were taken out."""

    config: str
    keys: list[str] = field(default_factory=list)
    flags: dict[str, str] = field(default_factory=dict)  # by their long names
    multirun: bool = False
    typed: list[str] = field(default_factory=list)

    def take(self, *names: str) -> dict[str, str]:
        """Remove the overrides of these names; returns their values."""
        taken = [key for key in self.keys if name_of(key) in names and "=" in key and key[0] != "~"]
        self.keys = [key for key in self.keys if key not in taken]
        return {name_of(key): value_of(key) for key in taken}


def split(argv: list[str], config: str) -> Line:
    """UserError where there is no such flag, or its value is missing."""
    line, tokens = Line(config), iter(argv)
    for token in tokens:
        if not token.startswith("-"):
            line.keys.append(token)
            continue
        flag, _, value = token.partition("=")
        flag = SHORT.get(flag, flag)
        value = "" if flag in ALONE else value or next(tokens, "")

        if flag not in ALONE + VALUED:
            key = f"{flag.lstrip('-')}={value or '<value>'}"
            raise UserError(keys.elsewhere(key, config) or f"`{flag}` is no flag; keys are typed as in {key}.")
        require(flag in ALONE or value != "", flag, "followed by a value", value)
        line.flags[flag] = value

    line.typed = list(line.keys)
    line.config = line.flags.get("--config-name", config).removesuffix(".yaml")
    line.multirun = "--multirun" in line.flags or "hydra.mode=MULTIRUN" in line.keys
    return line


def name_of(override: str) -> str:
    """The key or group that an override is for."""
    return override.lstrip("+~").partition("=")[0]


def value_of(override: str) -> str:
    """The value of an override as text, without quotes."""
    return re.sub(r"^(['\"])(.*)\1$", r"\2", override.partition("=")[2])


def show_help(config: str, conf: Path) -> str:
    """Groups with their options, and keys with their comments."""
    text = (conf / f"{config}.yaml").read_text(encoding="utf-8")
    for name in re.findall(r"^  - (?!_self_)(\w+)$", text, re.M):  # inherited configs
        text = (conf / f"{name}.yaml").read_text(encoding="utf-8") + "\n" + text

    lines = [f"Usage: python src/{config}.py [group=option ...] [key=value ...]", "", "Groups"]
    for folder in sorted(path.relative_to(conf) for path in conf.rglob("*/")):
        options = " ".join(sorted(file.stem for file in (conf / folder).glob("[!_]*.yaml")))
        if re.search(rf"^  - (optional )?{folder.parts[0]}:", text, re.M):
            lines += textwrap.wrap(f"{folder.as_posix():<14}{options}", 100, subsequent_indent=" " * 14)

    return "\n".join([*lines, "", "Choices and keys, as in checkpoint.monitor=val/loss; --cfg job shows all", "", text])


class Pipe(io.FileIO):
    """A stream whose reader may go, as that of `| head` does."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:  # what is being done goes on
            return len(data)


def open_screens() -> None:
    """Let stdout and stderr show `?` for letters they lack, and outlive their readers."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or stream is not getattr(sys, f"__{name}__"):  # another's, or done before
            continue
        stream.reconfigure(errors="replace")
        if not stream.isatty():
            pipe = io.BufferedWriter(Pipe(stream.fileno(), "w", closefd=False))
            setattr(sys, name, io.TextIOWrapper(pipe, stream.encoding, "replace", line_buffering=True))


@contextmanager
def answering() -> Iterator[None]:
    """Let a user's mistake end in its sentence and status."""
    open_screens()
    try:
        yield
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(error.status)
