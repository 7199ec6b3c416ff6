"""What can be known before torch is imported: unknown keys and options, wrong types, numbers out of range."""

import itertools
import json
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from leyden import UserError
from leyden.launch.keys import LISTS, Typed, direction, flatten, wrong
from leyden.run import runs

PLAIN = "-h --help --hydra-help --version --resolve -r --run -m --multirun"  # Hydra's own flags
VALUED = "-c --cfg -p --package -cn --config-name -cd --config-dir -cp --config-path -i --info -sc --shell-completion"
QUOTE = "type key=value; quote brackets, spaces, letters beyond a-z, # or = inside and out, such as 'note=\"a, b\"'"


def label(run_dir: str | None) -> str | None:
    """The name of a run among all: of a job of a sweep with the sweep's."""
    path = Path(run_dir or "")
    return (f"{path.parent.name}-{path.name}" if path.name.isdecimal() else path.name) or None


def mode(metric: str, monitor: str = "", mode_of_monitor: str | None = None) -> str | None:
    """`min` or `max`: as is said of the monitor, where the metric is that one, else as the name says; None: unknown."""
    return mode_of_monitor if metric == monitor else direction(metric)


RESOLVERS: dict[str, Any] = {"direction": mode, "label": label, "in_project": runs.in_project}
for name, function in RESOLVERS.items():
    OmegaConf.register_new_resolver(name, function, replace=True)


@dataclass
class Line:
    """A command line, split."""

    config: str  # the primary config's name
    keys: list[str] = field(default_factory=list)  # overrides, in order: key=value, +key=value, ++key=value, ~key
    flags: list[str] = field(default_factory=list)  # Hydra's own flags with their values
    multirun: bool = False
    sweeper: str = ""  # the chosen one
    typed: list[str] = field(default_factory=list)  # the overrides before any was taken out

    def value(self, *spellings: str) -> str | None:
        """What follows a flag; None: it is not there."""
        return next((value for flag, value in itertools.pairwise(self.flags) if flag in spellings), None)


def split(argv: list[str], config: str) -> Line:
    """Overrides and flags of `sys.argv[1:]`; what is wrong with them is said by `check`."""
    line, tokens = Line(config), iter(argv)
    for token in tokens:
        flag, equals, value = token.partition("=")
        if not token.startswith("-"):
            line.keys.append(token)
        elif flag in VALUED.split():
            line.flags += [flag, value] if equals else [flag, *itertools.islice(tokens, 1)]
        else:
            line.flags.append(flag)
    line.typed = list(line.keys)
    line.config = (line.value("-cn", "--config-name") or config).removesuffix(".yaml")
    line.multirun = not {"-m", "--multirun"}.isdisjoint(line.flags) or "hydra.mode=MULTIRUN" in line.keys
    return line


def take(line: Line, *names: str) -> dict[str, str]:
    """Remove the plain overrides of these names and return them: as typed, without the quotes around them."""
    taken = {}
    for text in list(line.keys):
        name, equals, value = text.partition("=")
        if equals and name in names:
            line.keys.remove(text)
            quoted = re.fullmatch(r"(['\"])(.*)\1", value)
            taken[name] = quoted[2].replace("\\" + quoted[1], quoted[1]) if quoted else value
    return taken


def check(line: Line, conf: Path, stored: DictConfig | None = None) -> DictConfig:
    """The tree of a command line with its overrides; of a sweep, the first.

    `stored`, the tree of an old run, takes the place of the primary config. Where a YAML asks for multirun,
    `line.multirun` is set.

    Raises:
        UserError: a line for each mistake.
    """
    mistakes = {}
    for flag, value in itertools.pairwise([*line.flags, ""]):
        if re.match("--?[a-z]", flag) and flag not in PLAIN.split() and not (value and flag in VALUED.split()):
            mistakes[flag] = "there is no such flag, or its value is missing; options are typed as in optimizer.lr=1e-3"
    folders = [conf.absolute() / (line.value("-cp", "--config-path") or "")]
    folders += [Path(folder).absolute() for folder in [line.value("-cd", "--config-dir")] if folder]
    if missing := [folder for folder in folders if not folder.is_dir()]:
        raise UserError(f"There is no folder of configs {missing[0]}.")
    main = next((folder for folder in folders if (folder / f"{line.config}.yaml").is_file()), folders[0])
    folders.remove(main)
    if stored is not None:
        ConfigStore.instance().store("_stored", stored)
    with initialize_config_dir(version_base="1.3", config_dir=str(main)):
        try:
            tree = verify(line, Configs(line.config if stored is None else "_stored", folders, line.keys), mistakes)
        except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:  # what only Hydra finds
            text = re.split("To append|(?:Config s|S)earch path", str(error) or str(error.__cause__))[0]
            mistakes[f"config {line.config}"] = " ".join(text.split())
    if mistakes:
        raise UserError("\n".join(f"{typed}: {what}" for typed, what in mistakes.items()))
    return tree


def verify(line: Line, configs: "Configs", mistakes: dict[str, str]) -> DictConfig:
    """Compose the chosen options and compare each key with the tree; adds to mistakes: typed -> what is wrong."""
    values = {text: configs.read(text, mistakes) for text in line.keys + configs.ranges(line.keys)}
    groups = [text for text, singles in values.items() if any(map(configs.is_group, singles))]
    mistakes |= {typed.text: what for text in groups for typed in values[text] if (what := configs.wrong_option(typed))}
    good = [[typed.text for typed in values[text] if typed.text not in mistakes] for text in groups]
    choices = [texts for texts in good if texts]

    tree, hydra = configs.compose([choice[0] for choice in choices])
    line.multirun |= getattr(hydra.mode, "name", "") == "MULTIRUN"
    line.sweeper = hydra.runtime.choices["hydra/sweeper"]
    several = [] if line.multirun else [text for text, singles in values.items() if [text] != [t.text for t in singles]]
    for text in several:
        mistakes.setdefault(
            text, f"several values need -m; a list is '{text.replace('=', '=[', 1)}]', a text '{quoted(text)}'"
        )
    rounds = max(map(len, choices), default=1) if line.multirun else 1
    for i in range(rounds):  # each option has its turn
        options = [choice[i % len(choice)] for choice in choices]
        tree = configs.compose(options)[0] if i else tree
        flat = flatten(OmegaConf.to_container(tree, resolve=False))
        for typed in (typed for text in values if text not in [*groups, *several] for typed in values[text]):
            if what := wrong(typed, flat, configs.groups):
                mistakes.setdefault(typed.text, what + (f" (with {' '.join(options)})" if rounds > 1 else ""))

    for name in ("local", "experiment", "debug"):  # their files speak of the whole tree
        if isinstance(tree.get(name), DictConfig):
            mistakes[f"conf/{name}"] = "its file needs the first line '# @package _global_', or its keys go nowhere"
    first = [singles[0].text for singles in values.values() if singles]
    tree, _ = configs.compose([text for text in first if text not in mistakes])
    if line.multirun and not {"--cfg", "-c"}.isdisjoint(line.flags):
        line.keys = first  # what is shown is the first job
    for key in ("checkpoint", "callbacks.early_stopping", "scheduler") if "run" not in tree and not mistakes else ():
        node = OmegaConf.select(tree, key)
        if OmegaConf.is_dict(node) and "mode" in node and node.mode is None:
            watched = node.get("monitor") or OmegaConf.select(tree, "task.monitor")
            mistakes[f"{key}.mode"] = (
                f"must be min or max, as {watched} does not say which is better; type {key}.mode=min or {key}.mode=max"
            )
            break
    if "--resolve" in line.flags and tree.get("facts", "unset") is None:
        mistakes["--resolve"] = "the facts are known only with the data; type --cfg job without it"
    return tree


def quoted(text: str) -> str:
    key, _, value = text.partition("=")
    return f'{key}="{value}"'


class Configs:
    """The configs that Hydra finds: a primary one, and the groups in its folder, in further ones and on the path."""

    def __init__(self, name: str, folders: list[Path], keys: list[str]):
        self.name, self.loader = name, GlobalHydra.instance().config_loader()
        self.parser: Any = OverridesParser.create(config_loader=self.loader)
        self.path = [key for key in keys if key.startswith("hydra.searchpath=")][-1:]
        if folders:
            more = [folder for key in self.path for typed in self.read(key, {}) for folder in typed.value]
            self.path = [f"hydra.searchpath={json.dumps([*map(Path.as_posix, folders), *more], ensure_ascii=False)}"]
        self.groups = self.loader.get_group_options("", ObjectType.GROUP, name, self.path)

    def read(self, text: str, mistakes: dict[str, str]) -> list[Typed]:
        """The values of a sweep, the ends of an interval, or the one value; none: it cannot be read."""
        try:
            override = self.parser.parse_overrides([text])[0]
        except HydraException:
            mistakes[text] = QUOTE
            return []
        value, head = override.value(), override.get_key_element()
        if not override.is_sweep_override():
            return [Typed(text, text[: len(text) - len(text.lstrip("+~"))], override.key_or_group, value)]
        ends = [value.start, value.end] if override.is_interval_sweep() else []
        texts = [f"{end:.15g}" for end in ends] or override.sweep_string_iterator()
        return [typed for single in texts for typed in self.read(f"{head}={single}", mistakes)]

    def compose(self, overrides: list[str]) -> tuple[DictConfig, DictConfig]:
        """The tree with these overrides, and Hydra's own."""
        tree = compose(self.name, [*self.path, *overrides], return_hydra_config=True)
        OmegaConf.set_struct(tree, False)
        return tree, tree.pop("hydra")

    def ranges(self, keys: list[str]) -> list[str]:
        """The ranges of a search's YAML, as they would be typed; those that are typed come in their place."""
        chosen = [key for key in keys if key.lstrip("+").startswith(("search=", "experiment=", "debug=", "hydra"))]
        try:
            found = self.compose(chosen)[1].sweeper.get("params") if chosen else None
        except HydraException:  # which `verify` finds, too
            return []
        typed = {key.lstrip("+").partition("=")[0] for key in keys}
        return (
            [f"{key}={value}" for key, value in found.items() if key not in typed] if OmegaConf.is_dict(found) else []
        )

    def options(self, group: str) -> list[str]:
        found = self.loader.get_group_options(group, config_name=self.name, overrides=self.path)
        return [option for option in found if not option.startswith("_")]

    def is_group(self, typed: Typed) -> bool:
        chooses = typed.key and typed.sign != "~" and not isinstance(typed.value, dict)
        return bool(chooses and self.options(typed.key))

    def wrong_option(self, typed: Typed) -> str:
        """What is wrong with the choice of a group, or nothing."""
        text, sign, group, value = typed
        if value is None:
            hint = f"{group}=[] for none" if group in LISTS else f"{group}=<{' or '.join(self.options(group))}>"
            return f"a group takes no null; type {hint}"
        if isinstance(value, list) and group not in LISTS:
            return f"{group} is one option; each in a run of its own: -m {group}={','.join(map(str, value))}"
        for option in value if isinstance(value, list) else [value]:
            folder, _, name = f"{group}/{option}".rpartition("/")
            if name not in (options := self.options(folder)):
                near = "".join(f": did you mean {guess}?" for guess in get_close_matches(name, options, 1, 0.5))
                return f"there is no option {option} in group {group} ({', '.join(options)}){near}"
        if sign == "++" or (sign == "+" and group in self.compose([])[1].runtime.choices):
            return f"there is a choice of {group} already; type {text.lstrip('+')}"
        return ""
