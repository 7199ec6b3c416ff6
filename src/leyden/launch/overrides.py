"""The overrides of a command line; misspelt keys, unknown options and wrong types end here, before torch is there."""

import re
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import hydra
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_loader import ConfigLoader
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

QUOTE = "a list is 'key=[a,b]'; a text with commas, spaces, brackets, # or = or letters beyond a-z is 'key=\"a, b\"'"
GLOBAL = ("local", "experiment", "debug")  # groups whose files speak of the whole tree
ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError)  # of Hydra about a config
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
    folder = line.value("-cd", "--config-dir")
    for path in (conf, Path(folder or conf)):
        if not path.is_dir():
            raise UserError(f"There is no folder of configs {path}.")
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(conf.absolute())):
        composition = Composition(line, folder)
        try:
            found = composition.composed(merge)
        except ERRORS as error:
            composition.mistakes["config"] = f"The config {line.config} cannot be composed: {in_one_line(error)}"
    if composition.mistakes:
        raise UserError("\n".join(composition.mistakes.values()))
    return found


def in_one_line(error: Exception) -> str:
    """What Hydra says, without its advice."""
    text = re.split("To append|Either remove|(?:Config s|S)earch path", str(error))[0]
    return " ".join(f"{text} {error.__cause__ or ''}".split())


class Composition:
    """The groups and keys of a line, in the configs that Hydra finds; `mistakes`: what is typed -> a sentence."""

    def __init__(self, line: Line, folder: str | None):
        self.line, self.mistakes = line, dict[str, str]()
        self.loader: Any = GlobalHydra.instance().config_loader()
        if folder:
            search_path = self.loader.get_search_path()
            search_path.prepend("command-line", f"file://{Path(folder).absolute()}", "schema")
            self.loader.repository.initialize_sources(search_path)
        self.parser: Any = OverridesParser.create(config_loader=self.loader)
        self.search_path = [key for key in line.keys if name_of(key) == "hydra.searchpath"]
        # what `get_group_options` of the loader asks; that reads the config anew for each group
        _, self.files = self.loader._parse_overrides_and_create_caching_repo(line.config, self.search_path)
        self.groups = {group: self.options(group) for group in self.files.get_group_options("", ObjectType.GROUP)}

    def composed(self, merge: Merge | None) -> Composed:
        """The tree with all overrides, and as it was before the keys were applied; where nothing is mistaken."""
        line, typed = self.line, dict[str, list[Override]]()
        more: list[str] | None = line.keys
        while more is not None:
            typed |= {text: self.values(text) for text in more}
            choices = {text: values for text, values in typed.items() if values and self.is_choice(values[0])}
            options = [[each for each in values if self.is_option(each)] for values in choices.values()]
            composed = self.tree([each[0] for each in options if each])
            line.multirun |= getattr(composed.hydra.mode, "name", "") == "MULTIRUN"
            more = [text for text in self.ranges(composed) if text not in typed] or None
        for group in GLOBAL:
            if isinstance(composed.get(group), DictConfig):
                self.mistakes[group] = f"conf/{group}: its file needs the first line '# @package _global_'."
        for text, values in typed.items() if not line.multirun else ():
            if values and [text] != [each.input_line for each in values]:
                self.mistakes[text] = f"{text}: several values need -m; {QUOTE}."

        tree = merge(composed, self.loader) if merge else composed
        base = without_hydra(tree) if merge else None
        read = [values for text, values in typed.items() if text not in {*choices, *self.mistakes}]
        self.compare([each for values in read for each in values], tree)
        for number, option in [(number, option) for number, each in enumerate(options) for option in each[1:]]:
            node = option.key_or_group.replace("/", ".") + "."
            below = [each for values in read for each in values if each.key_or_group.startswith(node)]
            if below or option.key_or_group in ("task", *GLOBAL):
                others = [each[0] for each in (*options[:number], [option], *options[number + 1 :]) if each]
                other, beside = self.tree(others), f" (With {option.input_line}.)"
                self.compare(below, other, beside)
                self.refuse_unused(other, beside)
        for values in read if not self.mistakes else ():
            ConfigLoaderImpl._apply_overrides_to_config(values[:1], tree)
        self.refuse_unused(tree)
        firsts = [values[0] for values in typed.values() if values]
        if line.multirun and not {"--cfg", "-c"}.isdisjoint(line.flags):
            line.keys = [str(each.input_line) for each in firsts]  # what is shown is the first job
        tree.hydra.overrides.task = [each.input_line for each in firsts if not each.is_hydra_override()]
        return Composed(tree, base, self.loader)

    def ranges(self, tree: DictConfig) -> list[str]:
        """The lines of a search's YAML in whose place nothing is typed."""
        lines: Any = OmegaConf.select(tree, "hydra.sweeper.params") if self.line.multirun else None
        lines, typed = lines if isinstance(lines, DictConfig) else {}, [name_of(key) for key in self.line.keys]
        return [f"{key}={value}" for key, value in lines.items() if name_of(key) not in typed]

    def values(self, text: str) -> list[Override]:
        """Each value of a sweep, the start of an interval, or the one value; none: it cannot be read."""
        try:
            override = self.parser.parse_overrides([text])[0]
        except HydraException:
            self.mistakes[text] = f"{text} cannot be read; {QUOTE}."
            return []
        if not override.is_sweep_override():
            return [override]
        interval = override.is_interval_sweep()
        texts = [f"{override.value().start:.15g}"] if interval else override.sweep_string_iterator()
        return [each for value in texts for each in self.values(f"{override.get_key_element()}={value}")]

    def tree(self, choices: list[Override]) -> DictConfig:
        """What Hydra composes of these options, with its own node."""
        overrides = [*self.search_path, *(str(choice.input_line) for choice in choices)]
        return hydra.compose(self.line.config, overrides, return_hydra_config=True)

    def options(self, group: str) -> list[str]:
        found = self.files.get_group_options(group, ObjectType.CONFIG)
        return [option for option in found if not option.startswith("_")]

    def is_choice(self, override: Override) -> bool:
        return not isinstance(override.value(), dict) and bool(self.options(override.key_or_group))

    def is_option(self, choice: Override) -> bool:
        """Whether a group has the option that is chosen, or all that are; if not, this is a mistake."""
        group, value, many = choice.key_or_group, choice.value(), choice.key_or_group in keys.LISTS
        if many and (choice.is_delete() or value is None):
            self.mistakes[str(choice.input_line)] = f"`{group}` must be a list; type '{group}=[]' for none."
            return False
        for option in [] if choice.is_delete() else value if many and isinstance(value, list) else [value]:
            folder, _, name = f"{group}/{option}".rpartition("/")
            if name not in (known := self.options(folder)):
                must = f"must be {'some' if many else 'one'} of {', '.join(known)}; got `{option}`"
                near = "".join(f"; did you mean {guess}?" for guess in get_close_matches(name, known, 1, 0.5))
                self.mistakes[str(choice.input_line)] = f"`{group}` {must}{near or '.'}"
                return False
        return True

    def compare(self, overrides: list[Override], tree: DictConfig, beside: str = "") -> None:
        """Note what is wrong with keys and their values in a tree."""
        flat = keys.flatten(OmegaConf.to_container(without_hydra(tree), resolve=False))
        for override in overrides:
            if what := keys.mistake(override, flat, self.groups):
                self.mistakes.setdefault(str(override.input_line), what + beside)

    def refuse_unused(self, tree: DictConfig, beside: str = "") -> None:
        """Note what is typed of a group that nothing in a tree names, and so would change nothing."""
        unused = configs.unused_groups(tree, " ".join(self.line.keys)) if "task" in tree else []
        for text in self.line.keys:
            group = re.split("[./]", name_of(text))[0]
            if group in unused and not text.startswith("~"):
                what = f"nothing in the config names ${{{group}}}, so that it would change nothing; take it out, or add"
                self.mistakes.setdefault(text, f"{text}: {what} {group}: ${{{group}}} to the YAML of the task.{beside}")


def without_hydra(tree: DictConfig) -> DictConfig:
    return OmegaConf.create({key: node for key, node in tree.items_ex(resolve=False) if key != "hydra"})
