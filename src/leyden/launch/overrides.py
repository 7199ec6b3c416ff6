"""The overrides of a command line; misspelt keys, unknown options and wrong types end here, before torch is there."""

import itertools
import re
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import hydra
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from leyden import UserError
from leyden.launch import keys
from leyden.launch.line import Line, name_of
from leyden.run import configs

QUOTE = "a list is 'key=[a,b]', a text with other signs than letters and digits 'key=\"a, b\"'"
GLOBAL = ("local", "experiment", "debug")  # groups whose files speak of the whole tree
ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError)  # of Hydra about a config
Options = dict[str, list[Override]]
Merge = Callable[[DictConfig, Any], DictConfig]  # puts the config of an old run in place of the composed one


class Composed(NamedTuple):
    """A composed config with Hydra's node; `base`: it without that node and the keys, where an old run is in it."""

    tree: DictConfig
    base: DictConfig | None
    loader: Any


def compose(line: Line, conf: Path, merge: Merge | None = None) -> Composed:
    """The tree of a command line with Hydra's node in it; of a sweep, that of the first job.

    Where a YAML asks for multirun, `line.multirun` is set. Raises UserError, with a line for each mistake.
    """
    folder = line.value("-cd", "--config-dir")
    if folder and not Path(folder).is_dir():
        raise UserError(f"There is no folder of configs {folder}.")
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(conf.absolute())):
        composition = Composition(line, folder)
        try:
            found = composition.composed(merge)
        except ERRORS as error:
            composition.mistakes["config"] = f"The config {line.config} cannot be composed: {in_one_line(error)}"
    if composition.mistakes:
        raise UserError("\n".join(dict.fromkeys(composition.mistakes.values())))
    return found


def in_one_line(error: Exception) -> str:
    """What Hydra says, without its advice."""
    text = re.split("To append|Either remove|(?:Config s|S)earch path", str(error))[0]
    return " ".join(f"{text} {error.__cause__ or ''}".split())


def search_in(loader: Any, folder: Path) -> None:
    """Let Hydra find configs in a further folder, before those of conf/."""
    path = loader.get_search_path()
    path.prepend("command-line", f"file://{folder.absolute()}", "schema")
    loader.repository.initialize_sources(path)


class Composition:
    """What is typed, in the configs that Hydra finds.

    `choices` and `keys`: what is typed of groups and of keys -> its values. `mistakes`: what is typed -> a sentence.
    """

    def __init__(self, line: Line, folder: str | None):
        self.line, self.mistakes = line, dict[str, str]()
        self.loader: Any = GlobalHydra.instance().config_loader()
        if folder:
            search_in(self.loader, Path(folder))
        self.parser: Any = OverridesParser.create(config_loader=self.loader)
        groups = self.loader.repository.get_group_options("", ObjectType.GROUP)
        self.groups = {group: self.options(group) for group in groups}
        self.choices: Options = {}
        self.keys: Options = {}
        for text in line.keys:
            self.read(text)

    def read(self, text: str) -> None:
        """Take in what is typed, of a group or of a key."""
        values = self.values(text)
        if values and self.options(values[0].key_or_group) and not isinstance(values[0].value(), dict):
            self.choices[text] = [each for each in values if self.is_option(each)]
        else:
            self.keys[text] = values

    def composed(self, merge: Merge | None) -> Composed:
        """The tree with all overrides, where nothing is mistaken."""
        line, tree = self.line, self.tree(self.choices)
        line.multirun |= getattr(tree.hydra.mode, "name", "") == "MULTIRUN"
        ranges, names = tree.hydra.sweeper.get("params"), [name_of(key) for key in line.keys]
        for key in map(str, ranges) if line.multirun and isinstance(ranges, DictConfig) else ():
            if name_of(key) not in names:  # a search's YAML types it
                line.keys.append(f"{key}={ranges[key]}")
                self.read(line.keys[-1])
        typed = self.choices | self.keys
        for text in typed:
            if name_of(text).startswith("hydra.sweeper.params"):
                self.mistakes[text] = f"{text}: type the key itself, as in optimizer.lr=1e-3,1e-2."
        for group in GLOBAL:
            if isinstance(tree.get(group), DictConfig):
                self.mistakes[group] = f"conf/{group}: its file needs the first line '# @package _global_'."
        for text, values in typed.items() if not line.multirun else ():
            if values and values[0].input_line != text:
                self.mistakes[text] = f"{text}: several values need -m; {QUOTE}."
                self.keys.pop(text, None)

        tree = merge(tree, self.loader) if merge else tree
        base = without_hydra(tree) if merge else None
        self.compare(tree)
        for text, options in self.choices.items():
            for option in options[1:]:  # of later jobs
                below = option.key_or_group.replace("/", ".") + "."
                if any(name_of(key).startswith(below) for key in self.keys):
                    self.compare(self.tree(self.choices | {text: [option]}), below, f" (With {option.input_line}.)")
        unused = configs.unused_groups(tree, " ".join(line.keys)) if "task" in tree else []
        for text in line.keys:
            group = re.split("[./]", name_of(text))[0]
            if group in unused and not text.startswith("~"):  # it would change nothing
                what = f"nothing in the config names ${{{group}}}; add {group}: ${{{group}}} to the YAML of the task"
                self.mistakes.setdefault(text, f"{text}: {what}.")
        if not self.mistakes:
            first = [values[0] for text, values in self.keys.items() if values and "interval(" not in text]
            ConfigLoaderImpl._apply_overrides_to_config(first, tree)

        if "--cfg" in line.flags or "-c" in line.flags:  # what is shown of a sweep is its first job
            line.keys = [str(values[0].input_line) for values in typed.values() if values]
        of_hydra = [text for text in line.keys if re.match("hydra[./]", name_of(text))]
        tree.hydra.overrides.update(hydra=of_hydra, task=[text for text in line.keys if text not in of_hydra])
        return Composed(tree, base, self.loader)

    def tree(self, choices: Options) -> DictConfig:
        """What Hydra composes of the first option of each choice, with its own node."""
        texts = [str(options[0].input_line) for options in choices.values() if options]
        return hydra.compose(self.line.config, texts, return_hydra_config=True)

    def values(self, text: str) -> list[Override]:
        """Each value of a sweep, the start of an interval, or the one value; none: it cannot be read."""
        try:
            override = self.parser.parse_overrides([text])[0]
        except HydraException:
            override = None
        if override is None or not override.key_or_group:
            self.mistakes[text] = keys.elsewhere(name_of(text)) or f"{text} cannot be read; {QUOTE}."
            return []
        if not override.is_sweep_override():
            return [override]
        interval = override.is_interval_sweep()
        texts = [f"{override.value().start:.15g}"] if interval else override.sweep_string_iterator()
        return [each for value in texts for each in self.values(f"{override.get_key_element()}={value}")]

    def options(self, group: str) -> list[str]:
        return [name for name in self.loader.repository.get_group_options(group) if not name.startswith("_")]

    def is_option(self, choice: Override) -> bool:
        """Whether a group has the option that is chosen, or all that are; if not, it is noted."""
        text, group, value = str(choice.input_line), choice.key_or_group, choice.value()
        many = group in keys.LISTS
        chosen = value if many and isinstance(value, list) else [value]
        for option in chosen if many or not choice.is_delete() else ():
            folder, _, name = f"{group}/{option}".rpartition("/")
            if name not in (known := self.options(folder)):
                near = get_close_matches(name, known, 5, 0.5)
                hint = f"; did you mean {near[0]}?" if near else "."
                must = f"one of {', '.join(near or known[:9])} (--help has all); got `{option}`{hint}"
                self.mistakes[text] = keys.elsewhere(f"{group}={option}") or f"`{group}` must be {must}"
        return text not in self.mistakes

    def compare(self, tree: DictConfig, below: str = "", beside: str = "") -> None:
        """Note what is wrong with keys, or those below a node, and their values in a tree."""
        flat = keys.flatten(OmegaConf.to_container(without_hydra(tree), resolve=False))
        for override in itertools.chain(*self.keys.values()):
            if override.key_or_group.startswith(below) and (what := keys.mistake(override, flat, self.groups)):
                self.mistakes.setdefault(str(override.input_line), what + beside)


def without_hydra(tree: DictConfig) -> DictConfig:
    return OmegaConf.create({key: node for key, node in tree.items_ex(resolve=False) if key != "hydra"})
