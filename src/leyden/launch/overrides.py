"""The overrides of a command line; misspelt keys, unknown options and wrong types end here, before torch is there."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from leyden import UserError, listed, require, said
from leyden.launch import keys
from leyden.launch.line import Line, name_of
from leyden.run import configs

QUOTE = "a list is 'key=[a,b]', text with other signs 'key=\"a, b\"'"
Options = dict[str, list[Override]]  # what is typed -> its values
Merge = Callable[[DictConfig], DictConfig]  # puts an old run in its place


def compose(line: Line, conf: Path, merge: Merge | None = None) -> "Composed":
    """The config of a command line, or of a sweep's first job; UserError with a line for each mistake."""
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(conf.absolute())):
        found = Composed(line)
        try:
            found.compose(merge)
        except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
            what = re.split(r"[.\s]+(?:Check that|Config search|Search path)", said(error.__cause__ or error))[0]
            found.mistakes["config"] = f"The config {line.config} cannot be composed: {what}."
    if found.mistakes:
        lines = [keys.elsewhere(text, line.config) or what for text, what in found.mistakes.items()]
        raise UserError("\n".join(dict.fromkeys(lines)))
    return found


def search_in(loader: Any, folder: str | Path) -> None:
    """Let Hydra look in a folder before conf/."""
    path = loader.get_search_path()
    path.prepend("command-line", f"file://{Path(folder).absolute()}", "schema")
    loader.repository.initialize_sources(path)


def without_hydra(tree: DictConfig) -> DictConfig:
    return OmegaConf.create({key: node for key, node in tree.items_ex(resolve=False) if key != "hydra"})


class Composed:
    """A command line in the configs that Hydra finds. `mistakes`: what is typed -> a sentence.

    `base`, where an old run is in it: the `tree` with the `choices`, without Hydra's node and the `keys`.
    """

    base: DictConfig | None = None

    def __init__(self, line: Line):
        self.line, self.mistakes = line, dict[str, str]()
        self.loader = GlobalHydra.instance().config_loader()
        if folder := line.flags.get("--config-dir"):
            require(Path(folder).is_dir(), "--config-dir", "a folder", folder)
            search_in(self.loader, folder)
        self.choices, self.keys = Options(), Options()
        for text in line.keys:
            self.read(text)

    def read(self, text: str) -> None:
        """Take in what is typed, of a group or of a key."""
        values = self.values(text)
        chooses = values and self.options(values[0].key_or_group) and not isinstance(values[0].value(), dict)
        if good := [each for each in values if not chooses or self.is_option(each)]:
            (self.choices if chooses else self.keys)[text] = good

    def compose(self, merge: Merge | None) -> None:
        """Make the tree; the keys are in it if nothing is mistaken."""
        line, tree = self.line, self.choose(self.choices)
        line.multirun |= tree.hydra.mode == RunMode.MULTIRUN
        ranges, names = tree.hydra.sweeper.get("params"), [name_of(key) for key in line.keys]
        for key in map(str, ranges) if line.multirun and isinstance(ranges, DictConfig) else ():
            if name_of(key) not in names:  # a search's YAML types it
                line.keys.append(f"{key}={ranges[key]}")
                self.read(line.keys[-1])

        for text in self.keys:
            if name_of(text).startswith("hydra.sweeper.params"):
                self.mistakes[text] = f"{text}: type the key itself, as in optimizer.lr=1e-3,1e-2."
        for group in ("local", "experiment", "debug"):  # of the whole tree
            if isinstance(tree.get(group), DictConfig):
                self.mistakes[group] = f"conf/{group}: its file needs the first line '# @package _global_'."
        if merge:
            tree = merge(tree)
            self.base = without_hydra(tree)

        flat = keys.flatten(OmegaConf.to_container(without_hydra(tree), resolve=False))
        groups = {group: self.options(group) for group in (*tree.hydra.runtime.choices, *keys.LISTS)}
        for override in [each for values in self.keys.values() for each in values]:
            if what := keys.mistake(override, flat, groups):
                self.mistakes[str(override.input_line)] = what

        for text, options in self.choices.items() if not self.mistakes else ():
            below = name_of(text).replace("/", ".") + "."
            if any(name_of(key).startswith(below) for key in self.keys):  # which a later job may lack
                for option in options[1:]:
                    self.choose(self.choices | {text: [option]} | self.keys)

        unused = configs.unused_groups(tree, " ".join(line.keys)) if "task" in tree else []
        for text, values in (self.choices | self.keys).items():
            group = re.split("[./]", name_of(text))[0]
            if group in unused and not text.startswith("~"):  # it would change nothing
                what = f"nothing in the config names ${{{group}}}; add {group}: ${{{group}}} to the YAML of the task"
                self.mistakes.setdefault(text, f"{text}: {what}.")
            if values[0].input_line != text and (not line.multirun or (merge and text in self.choices)):
                self.mistakes[text] = f"{text}: several values need -m, and with rerun= keys; {QUOTE}."
        if not self.mistakes:
            first = [values[0] for text, values in self.keys.items() if "interval(" not in text]
            ConfigLoaderImpl._apply_overrides_to_config(first, tree)
        of_hydra = [text for text in line.keys if re.match("hydra[./]", name_of(text))]
        tree.hydra.overrides.update(hydra=of_hydra, task=[text for text in line.keys if text not in of_hydra])
        self.tree = tree

    def choose(self, typed: Options) -> DictConfig:
        """What Hydra composes of the first value of each override, with its own node."""
        texts = [str(values[0].input_line) for values in typed.values()]
        return hydra.compose(self.line.config, texts, return_hydra_config=True)

    def values(self, text: str) -> list[Override]:
        """Each value of a sweep, of an interval the start; none: it cannot be read."""
        parse = OverridesParser.create(config_loader=self.loader).parse_overrides
        try:
            override = parse([text])[0]
            if not override.is_sweep_override():
                return [override]
            interval = override.is_interval_sweep()
            texts = [f"{override.value().start:.15g}"] if interval else override.sweep_string_iterator()
            return parse([f"{override.get_key_element()}={value}" for value in texts])
        except HydraException:
            self.mistakes[text] = f"{text} cannot be read; {QUOTE}."
            return []

    def options(self, group: str) -> list[str]:
        return [name for name in self.loader.repository.get_group_options(group) if not name.startswith("_")]

    def is_option(self, choice: Override) -> bool:
        """Whether a group has what is chosen, or note it."""
        text, group, value = str(choice.input_line), choice.key_or_group, choice.value()
        if choice.is_delete() and group not in keys.LISTS:
            return True

        for option in value if group in keys.LISTS and isinstance(value, list) else [value]:
            folder, _, name = f"{group}/{option}".rpartition("/")
            if name not in (known := self.options(folder)):
                must = f"one of {listed(known)} (--help has all); got `{option}`{keys.hint(name, known)}"
                self.mistakes[text] = f"`{group}` must be {must}"
        return text not in self.mistakes
