"""The overrides of a command line; misspelt keys, unknown options and wrong types end here, before torch is there."""

import itertools
import json
import re
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import hydra
import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from leyden import UserError
from leyden.launch.keys import LISTS, Typed, flatten, wrong
from leyden.launch.line import VALUED, Line

PLAIN = "-h --help --hydra-help --version --resolve -r --run -m --multirun"  # Hydra's own flags
QUOTE = "type key=value; quote brackets, spaces, letters beyond a-z, # or = inside and out, such as 'note=\"a, b\"'"
WHOLE = ("local", "experiment", "debug")  # groups whose files speak of the whole tree
Merge = Callable[[DictConfig, ConfigLoader], DictConfig]  # puts the config of an old run in place of the composed one


class Composed(NamedTuple):
    """A composed config: with the overrides and Hydra's node, and as it was before the keys were applied."""

    tree: DictConfig
    base: DictConfig | None  # None: what Hydra composes from conf/
    loader: ConfigLoader


def compose(line: Line, conf: Path, merge: Merge | None = None) -> Composed:
    """The tree of a command line with Hydra's node in it; of a sweep, that of the first job.

    The groups are composed, once; then each key is compared with the tree and applied to it. Where a YAML asks for
    multirun, `line.multirun` is set.

    Raises:
        UserError: a line for each mistake.
    """
    mistakes = {}
    for flag, value in itertools.pairwise([*line.flags, ""]):
        if re.match("--?[a-z]", flag) and flag not in PLAIN.split() and not (value and flag in VALUED.split()):
            mistakes[flag] = "there is no such flag, or its value is missing; options are typed as in optimizer.lr=1e-3"
    folders = [conf.absolute(), *(Path(folder).absolute() for folder in [line.value("-cd", "--config-dir")] if folder)]
    if missing := [folder for folder in folders if not folder.is_dir()]:
        raise UserError(f"There is no folder of configs {missing[0]}.")
    main = next((folder for folder in folders if (folder / f"{line.config}.yaml").is_file()), folders[0])
    folders.remove(main)
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(main)):
        try:
            composition = Composition(line, folders, mistakes)
            tree, base = composition.composed(merge)
        except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:  # what only Hydra finds
            mistakes[f"config {line.config}"] = hydras(error)
    if mistakes:
        raise UserError("\n".join(f"{typed}: {what}" for typed, what in mistakes.items()))
    return Composed(tree, base, composition.loader)


def hydras(error: Exception) -> str:
    """What Hydra says, in one line, without its advice."""
    text = re.split("To append|(?:Config s|S)earch path", str(error) or str(error.__cause__))[0]
    text = re.sub(r"Multiple values for (\S+)\..*", r"there is a choice of \1 already; leave out the +", text)
    return " ".join(text.split())


class Composition:
    """The groups and keys of a line, in the configs that Hydra finds; `mistakes`: typed -> what is wrong."""

    def __init__(self, line: Line, folders: list[Path], mistakes: dict[str, str]):
        self.line, self.mistakes, self.loader = line, mistakes, GlobalHydra.instance().config_loader()
        self.parser: Any = OverridesParser.create(config_loader=self.loader)
        self.path = [key for key in line.keys if key.startswith("hydra.searchpath=")][-1:]
        if folders:
            more = [folder for key in self.path for typed in self.read(key) for folder in typed.value]
            self.path = [f"hydra.searchpath={json.dumps([*map(Path.as_posix, folders), *more], ensure_ascii=False)}"]
        self.groups = self.loader.get_group_options("", ObjectType.GROUP, line.config, self.path)
        self.values: dict[str, list[Typed]] = {}  # override -> its values, of a key
        self.choices: dict[str, list[Typed]] = {}  # the same, of a group

    def composed(self, merge: Merge | None) -> tuple[DictConfig, DictConfig | None]:
        """The tree with all overrides, and as it was before the keys were applied, where it is not from conf/."""
        line = self.line
        for text in line.keys:
            self.add(text)
        good = {text: [t.text for t in each if t.text not in self.mistakes] for text, each in self.choices.items()}
        good = {text: options for text, options in good.items() if options}
        composed = self.compose([options[0] for options in good.values()])
        for name in WHOLE:
            if isinstance(composed.get(name), DictConfig):
                self.mistakes[f"conf/{name}"] = "its file needs the first line '# @package _global_', or it is not read"
        line.multirun |= getattr(composed.hydra.mode, "name", "") == "MULTIRUN"
        for key, values in self.ranges(composed).items() if line.multirun else ():
            if key not in {text.lstrip("+").partition("=")[0] for text in line.keys}:
                self.add(f"{key}={values}")
        tree = composed if merge is None else merge(composed, self.loader)
        base = without_hydra(tree) if merge else None
        self.check(tree, good)
        for text, each in self.values.items():
            if text in line.keys and each and not {text, each[0].text} & self.mistakes.keys():
                self.apply(tree, each[0])
        self.finish(tree)
        return tree, base

    def ranges(self, composed: DictConfig) -> dict[str, Any]:
        """Of a search, key -> its values as they would be typed: from its YAML, and those typed for its YAML."""
        found = composed.hydra.sweeper.get("params")
        start = "hydra.sweeper.params."
        typed = [text.lstrip("+").partition("=") for text in self.line.keys if text.lstrip("+").startswith(start)]
        return (dict(found) if OmegaConf.is_dict(found) else {}) | {key[len(start) :]: value for key, _, value in typed}

    def add(self, text: str) -> None:
        """Read an override; a choice of a group is compared with the options."""
        each = self.read(text)
        if not any(typed.key and not isinstance(typed.value, dict) and self.options(typed.key) for typed in each):
            self.values[text] = each
        elif text in self.line.keys:
            self.choices[text] = each
            self.mistakes |= {typed.text: what for typed in each if (what := self.wrong_option(typed))}

    def check(self, tree: DictConfig, choices: dict[str, list[str]]) -> None:
        """Compare each key with the tree, and those below a swept group with each of its options."""
        for text, each in (self.values | self.choices).items():
            if not self.line.multirun and each and [text] != [typed.text for typed in each]:
                list_of, quoted = text.replace("=", "=[", 1), '{}="{}"'.format(*text.split("=", 1))
                self.mistakes.setdefault(text, f"several values need -m; a list is '{list_of}]', a text '{quoted}'")
        values = [typed for text, each in self.values.items() for typed in each if text not in self.mistakes]
        firsts = [options[0] for options in choices.values()]
        self.compare(values, tree, firsts if self.line.multirun and any(o[1:] for o in choices.values()) else [])
        for place, options in enumerate(choices.values() if self.line.multirun else ()):
            node = options[0].lstrip("+").partition("=")[0].replace("/", ".")
            below = [typed for typed in values if typed.key.startswith(f"{node}.")]
            for option in options[1:] if below else ():
                others = [option if i == place else first for i, first in enumerate(firsts)]
                self.compare(below, self.compose(others), others)

    def compare(self, values: list[Typed], tree: DictConfig, options: list[str]) -> None:
        flat = flatten(OmegaConf.to_container(without_hydra(tree), resolve=False))
        for typed in values:
            if what := wrong(typed, flat, self.groups):
                self.mistakes.setdefault(typed.text, what + (f" (with {' '.join(options)})" if options else ""))

    def apply(self, tree: DictConfig, typed: Typed) -> None:
        """Set, add or delete a key, as Hydra does."""
        text, sign, key, value = typed
        parent, _, name = key.rpartition(".")
        try:
            if sign == "~":
                node = OmegaConf.select(tree, parent) if parent else tree
                if isinstance(node, DictConfig) and name in node:
                    with open_dict(tree):
                        del node[name]
                else:
                    self.mistakes[text] = f"there is no key {key} to take out"
            elif sign == "+" and not isinstance(value, dict | list) and OmegaConf.select(tree, key) is not None:
                self.mistakes[text] = f"{key} is there already; type {text.lstrip('+')}"
            else:
                OmegaConf.update(tree, key, value, merge=True, force_add=bool(sign))
        except (OmegaConfBaseException, ValueError) as error:
            self.mistakes[text] = hydras(error)

    def finish(self, tree: DictConfig) -> None:
        """Note in Hydra's node what was typed."""
        line, both = self.line, self.values | self.choices
        first = [both[text][0].text for text in line.keys if both[text]]
        tree.hydra.overrides.task = [text for text in first if not text.lstrip("+~").startswith("hydra")]
        if line.multirun and not {"--cfg", "-c"}.isdisjoint(line.flags):
            line.keys = first  # what is shown is the first job
        if "--resolve" in line.flags and tree.get("facts", "unset") is None:
            self.mistakes["--resolve"] = "the facts are known only with the data; type --cfg job without it"

    # what Hydra knows

    def read(self, text: str) -> list[Typed]:
        """The values of a sweep, the ends of an interval, or the one value; none: it cannot be read."""
        try:
            override = self.parser.parse_overrides([text])[0]
        except HydraException:
            self.mistakes[text] = QUOTE
            return []
        value, head = override.value(), override.get_key_element()
        if not override.is_sweep_override():
            return [Typed(text, text[: len(text) - len(text.lstrip("+~"))], override.key_or_group, value)]
        ends = [value.start, value.end] if override.is_interval_sweep() else []
        texts = [f"{end:.15g}" for end in ends] or override.sweep_string_iterator()
        return [typed for single in texts for typed in self.read(f"{head}={single}")]

    def compose(self, overrides: list[str]) -> DictConfig:
        """The tree with these overrides and Hydra's node."""
        return hydra.compose(self.line.config, [*self.path, *overrides], return_hydra_config=True)

    def options(self, group: str) -> list[str]:
        found = self.loader.get_group_options(group, config_name=self.line.config, overrides=self.path)
        return [option for option in found if not option.startswith("_")]

    def wrong_option(self, typed: Typed) -> str:
        """What is wrong with the choice of a group, or nothing."""
        text, sign, group, value = typed
        if sign == "~":
            return f"type '{group}=[]' for none" if group in LISTS else ""
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
        return f"type {text.lstrip('+')}" if sign == "++" else ""  # of + Hydra knows whether the group has a choice


def without_hydra(tree: DictConfig) -> DictConfig:
    return OmegaConf.create({key: node for key, node in tree.items_ex(resolve=False) if key != "hydra"})
