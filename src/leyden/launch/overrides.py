"""The overrides of a command line; misspelt keys, unknown options and wrong types end here, before torch is there."""

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from leyden import UserError, require
from leyden.launch import keys
from leyden.launch.line import Line, name_of
from leyden.run import configs

QUOTE = "a list is 'key=[a,b]', a text with other signs than letters and digits 'key=\"a, b\"'"
GLOBAL = ("local", "experiment", "debug")  # groups whose files speak of the whole tree
ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError)  # of Hydra about a config
Merge = Callable[[DictConfig], DictConfig]  # puts the config of an old run in place of the composed one


def compose(line: Line, conf: Path, merge: Merge | None = None) -> "Composed":
    """The config of a command line; of a sweep, that of the first job. Where a YAML asks for it, `multirun` is set.

    Raises UserError, with a line for each mistake.
    """
    folder = line.flags.get("--config-dir", ".")
    require(Path(folder).is_dir(), "--config-dir", "a folder", folder)
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(conf.absolute())):
        found = Composed(line)
        try:
            found.compose(merge)
        except ERRORS as error:
            found.mistakes["config"] = f"The config {line.config} cannot be composed: {in_one_line(error)}"
    if found.mistakes:
        said = [keys.elsewhere(text, line.config) or what for text, what in found.mistakes.items()]
        raise UserError("\n".join(dict.fromkeys(said)))
    return found


def in_one_line(error: Exception) -> str:
    """What Hydra says, without its advice."""
    text = re.split("To append|Either remove|(?:Config s|S)earch path", str(error))[0]
    return " ".join(f"{text} {error.__cause__ or ''}".split())


def search_in(loader: Any, folder: str | Path) -> None:
    """Let Hydra find configs in a further folder, before those of conf/."""
    path = loader.get_search_path()
    path.prepend("command-line", f"file://{Path(folder).absolute()}", "schema")
    loader.repository.initialize_sources(path)


class Composed:
    """What is typed, in the configs that Hydra finds.

    `tree`: with Hydra's node. `base`: without it and what is typed of keys, where an old run is in it.
    `choices` and `keys`: what is typed of groups and of keys -> its values. `mistakes`: what is typed -> a sentence.
    """

    tree: DictConfig
    base: DictConfig | None = None

    def __init__(self, line: Line):
        self.line, self.mistakes = line, dict[str, str]()
        self.loader: Any = GlobalHydra.instance().config_loader()
        if "--config-dir" in line.flags:
            search_in(self.loader, line.flags["--config-dir"])
        self.parser: Any = OverridesParser.create(config_loader=self.loader)
        groups = self.loader.repository.get_group_options("", ObjectType.GROUP)
        self.groups = {group: self.options(group) for group in groups}
        self.choices, self.keys = dict[str, list[Override]](), dict[str, list[Override]]()
        for text in line.keys:
            values = self.values(text)
            if values and self.options(values[0].key_or_group) and not isinstance(values[0].value(), dict):
                values = [each for each in values if self.is_option(each)]
                self.choices |= {text: values} if values else {}
            elif values:
                self.keys[text] = values

    def compose(self, merge: Merge | None) -> None:
        """Make the tree with all overrides, if nothing is mistaken."""
        line, typed = self.line, self.choices | self.keys
        tree = self.tree = self.choose(self.choices)
        line.multirun |= tree.hydra.mode == RunMode.MULTIRUN
        for group in GLOBAL:
            if isinstance(tree.get(group), DictConfig):
                self.mistakes[group] = f"conf/{group}: its file needs the first line '# @package _global_'."
        if merge:
            tree = self.tree = merge(tree)
            self.base = without_hydra(tree)

        self.compare(tree, [each for values in self.keys.values() for each in values])
        for text, options in self.choices.items():
            for option in options[1:]:  # of later jobs
                below = option.key_or_group.replace("/", ".") + "."
                if here := [each[0] for each in self.keys.values() if each[0].key_or_group.startswith(below)]:
                    self.compare(self.choose(self.choices | {text: [option]}), here, f" (With {option.input_line}.)")
        unused = configs.unused_groups(tree, " ".join(line.keys)) if "task" in tree else []
        for text, values in typed.items():
            group = re.split("[./]", name_of(text))[0]
            if group in unused and not text.startswith("~"):  # it would change nothing
                what = f"nothing in the config names ${{{group}}}; add {group}: ${{{group}}} to the YAML of the task"
                self.mistakes.setdefault(text, f"{text}: {what}.")
            if values[0].input_line != text and not line.multirun:
                self.mistakes[text] = f"{text}: several values need -m; {QUOTE}."
        if not self.mistakes:
            ConfigLoaderImpl._apply_overrides_to_config([values[0] for values in self.keys.values()], tree)

        if "--cfg" in line.flags:  # what is shown of a sweep is its first job
            line.keys = [str(values[0].input_line) for values in typed.values()]
        of_hydra = [text for text in line.keys if re.match("hydra[./]", name_of(text))]
        tree.hydra.overrides.update(hydra=of_hydra, task=[text for text in line.keys if text not in of_hydra])

    def choose(self, choices: dict[str, list[Override]]) -> DictConfig:
        """What Hydra composes of the first option of each choice, with its own node."""
        texts = [str(options[0].input_line) for options in choices.values()]
        return hydra.compose(self.line.config, texts, return_hydra_config=True)

    def values(self, text: str) -> list[Override]:
        """Each value of a sweep, the start of an interval, or the one value; none: it cannot be read."""
        try:
            override = self.parser.parse_overrides([text])[0]
        except HydraException:
            override = None
        if override is None or not override.key_or_group:
            self.mistakes[text] = f"{text} cannot be read; {QUOTE}."
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
                self.mistakes[text] = f"`{group}` must be {must}"
        return text not in self.mistakes

    def compare(self, tree: DictConfig, typed: Iterable[Override], beside: str = "") -> None:
        """Note what is wrong with keys and their values in a tree."""
        flat = keys.flatten(OmegaConf.to_container(without_hydra(tree), resolve=False))
        for override in typed:
            if what := keys.mistake(override, flat, self.groups):
                self.mistakes.setdefault(str(override.input_line), what + beside)


def without_hydra(tree: DictConfig) -> DictConfig:
    return OmegaConf.create({key: node for key, node in tree.items_ex(resolve=False) if key != "hydra"})
