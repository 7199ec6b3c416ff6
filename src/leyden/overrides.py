"""What can be known before torch is imported: unknown keys and options, wrong types, numbers out of range."""

import ast
import copy
import functools
import importlib.util
import itertools
import json
import math
import os
import re
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import InterpolationKeyError, InterpolationResolutionError, OmegaConfBaseException

from leyden import UserError

if TYPE_CHECKING:  # Hydra is imported inside functions: --help does not wait for it
    from hydra.core.override_parser.types import Override

VALUE = "(?!-).+"
FLAGS = {  # Hydra's own, and the form of the value that may follow
    **dict.fromkeys(
        ("-h", "--help", "--hydra-help", "--version", "--resolve", "-r", "--run", "-m", "--multirun"), "(?!)"
    ),
    **dict.fromkeys(("-c", "--cfg", "-p", "--package", "-cn", "--config-name", "-cd", "--config-dir"), VALUE),
    **dict.fromkeys(("-cp", "--config-path"), VALUE),
    **dict.fromkeys(("-i", "--info"), "all|config|defaults|defaults-tree|plugins|searchpath"),
    **dict.fromkeys(("-sc", "--shell-completion"), "(install|uninstall|query)=.*"),
}
NEEDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", list: "a list", dict: "keys"}
WORDS = {  # what a key takes besides the type that its YAML shows
    **dict.fromkeys(("num_workers", "pin_memory", "drop_last", "fused"), "auto"),
    "deterministic": "warn",
    "devices": r"auto|\[.*\]|\d+(,\d+)+",
}
LIMITS = {  # type, least and largest value of keys with these last parts
    (
        int,
        1,
        math.inf,
    ): "batch_size threads accumulate_grad_batches log_every_n_steps check_val_every_n_epoch num_nodes "
    "every_n_steps num_samples num_classes layers heads width patch blocks row_limit line_count_restriction",
    (int, 0, math.inf): "num_workers seed split_seed warmup_steps patience min_epochs min_steps "
    "reload_dataloaders_every_n_epochs",
    (int, -1, math.inf): "max_epochs max_steps num_sanity_val_steps devices",
    (float, 0, math.inf): "lr min_lr weight_decay momentum gradient_clip_val l1 limit_*_batches overfit_batches "
    "val_check_interval",
    (float, 0, 1): "*_fraction dropout label_smoothing",
}
SPECIAL = {"_target_", "_partial_", "_recursive_", "_convert_", "_args_"}  # of Hydra, at every constructor
EXAMPLES = {
    "train": "|model=resnet optimizer.lr=1e-3|trainer=ddp|-m model=cnn,mlp optimizer.lr=1e-3,1e-2|debug=fast",
    "eval": "run=latest|run=logs/train/exp1|run=latest split=val|run=latest trainer=gpu|run=latest logger=csv",
}


def direction(metric: str) -> str:
    """`min` or `max`: whether a metric of this name is better when it is small or when it is large."""
    small = {"loss", "error", "mse", "mae", "rmse", "nll", "perplexity", "mape", "huber"}
    return "min" if small & set(metric.rpartition("/")[2].lower().split("_")) else "max"


OmegaConf.register_new_resolver("direction", direction, replace=True)


# the command line


@dataclass
class Line:
    """A command line, split."""

    config: str  # the primary config's name
    keys: list[str] = field(default_factory=list)  # overrides, in order: key=value, +key=value, ++key=value, ~key
    flags: list[str] = field(default_factory=list)  # Hydra's own flags with their values
    multirun: bool = False
    searchpath: list[str] = field(default_factory=list)  # further config folders, absolute

    def values(self, *spellings: str) -> list[str]:
        return [value for flag, value in itertools.pairwise(self.flags) if flag in spellings]


def split(argv: list[str], config: str) -> Line:
    """Overrides and flags of `sys.argv[1:]`; what is wrong with them is said by `check`."""
    line = Line(config)
    rest = [part for token in argv for part in (token.split("=", 1) if re.match("--?[a-z]", token) else [token])]
    while rest:
        token = rest.pop(0)
        (line.flags if token.startswith("-") else line.keys).append(token)
        if token.startswith("-") and rest and re.fullmatch(FLAGS.get(token, r"(?!-\D)[^=]*"), rest[0]):
            line.flags.append(rest.pop(0))
        elif token in ("-i", "--info"):
            line.flags.append("all")  # else argparse takes the next override for its value
    line.config = (line.values("-cn", "--config-name") or [config])[-1].removesuffix(".yaml")
    line.searchpath = [os.path.abspath(folder) for folder in line.values("-cd", "--config-dir")[-1:]]
    asked = dict(key.split("=", 1) for key in line.keys if key.startswith(("hydra.mode=", "hydra.searchpath=")))
    line.multirun = asked.get("hydra.mode") == "MULTIRUN" or not {"-m", "--multirun"}.isdisjoint(line.flags)
    for folder in re.findall(r"[^\[\]\s,'\"][^\[\],'\"]*", asked.get("hydra.searchpath", "")):
        line.searchpath.append(folder if folder.startswith("pkg:") else os.path.abspath(folder.removeprefix("file://")))
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

    `stored`, the tree of an old run, takes the place of composing: only key overrides change it. Where a YAML asks for
    multirun, `line.multirun` is set.

    Raises:
        UserError: a line for each mistake.
    """
    from hydra import initialize_config_dir

    conf, errors = conf.absolute(), []
    if stored is None:  # --config-path counts from the script
        conf = Path(__file__).parents[1].joinpath(conf, *line.values("-cp", "--config-path")[-1:])
    with initialize_config_dir(version_base="1.3", config_dir=str(conf)):
        try:
            tree = verify(line, Configs(line, conf, stored), errors)
        except UserError as error:  # nothing left to verify against
            errors.append(str(error))
    if errors:
        raise UserError("\n".join(dict.fromkeys(errors)))
    return tree


def verify(line: Line, configs: "Configs", errors: list[str]) -> DictConfig:
    """Compose each combination of options and try each value of each key on it; mistakes go to `errors`."""
    overrides = []
    for text in line.keys:
        try:
            overrides.append(parse(text))
        except UserError as error:
            errors.append(str(error))
    groups = [override for override in overrides if configs.is_group(override)]
    choices = [good for override in groups if (good := configs.choose(override, errors))]
    first = configs.compose(tuple(options[0] for options in choices), errors)
    line.multirun |= getattr(OmegaConf.select(first, "hydra.mode"), "name", "") == "MULTIRUN"
    several = [o for o in overrides if o.is_sweep_override() and (o.is_hydra_override() or not line.multirun)]
    keys = [configs.expand(o) for o in overrides if o not in groups and o not in several]

    found: dict[str, list[tuple[str, ...]]] = {}
    combinations = combine(choices) if line.multirun else [()]
    for options in combinations[::-1]:  # the first one last: it is returned
        tree = Tree(configs.compose(options, errors) if options else first, configs)
        for error in tree.apply(keys):
            found.setdefault(error, []).append(options)
    for error, where in found.items():
        some = [o for o in where[-1] if all(o in w for w in where) and not all(o in c for c in combinations)]
        errors.append(error + (f" (with {' '.join(some)})" if some else ""))
    errors += [tree.one_value(override) for override in several] + tree.wrong_flags(line)
    return tree.result()


def combine(choices: list[list[str]]) -> list[tuple[str, ...]]:
    """All combinations of the options; of more than 24, those that differ from the first in one group."""
    if math.prod(map(len, choices)) <= 24:
        return list(itertools.product(*choices))
    first = tuple(options[0] for options in choices)
    return [(*first[:i], option, *first[i + 1 :]) for i, options in enumerate(choices) for option in options]


# what Hydra finds


@contextmanager
def explained() -> Iterator[None]:
    """Turn what Hydra and YAML raise into a UserError that names the file."""
    from hydra.errors import HydraException

    try:
        yield
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        text = f"{mark.name}, line {mark.line + 1}: {error.problem}" if mark else str(error) or str(error.__cause__)
        raise UserError(" ".join(text.split("Config search path:")[0].split())) from error


def parse(text: str) -> "Override":
    """Read one override.

    Raises:
        UserError: it cannot be read.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise UserError(f"{text}: {unreadable(*text.partition('='))}") from error


def unreadable(key: str, equals: str, value: str) -> str:
    if not re.fullmatch(r"[+~]*[\w./@:$-]+", key):
        return "options are written key=value, such as optimizer.lr=1e-3"
    if not equals:
        return f"there is no value; type {key}=<value>"
    if any(value.count(left) != value.count(right) for left, right in ("[]", "{}", "()")):
        return f"a bracket is open; quote the whole, such as '{key}=[1,2]'"
    marks = "brackets, parentheses, spaces, #, = or letters beyond ASCII"
    return f"a value with {marks} needs quotes inside and out: '{key}=\"{value}\"'"


def defaults(primary: dict) -> dict[str, Any]:
    """Groups and options of a config's defaults list, without Hydra's."""
    entries = [entry for entry in primary.get("defaults") or [] if isinstance(entry, dict)]
    named = {str(key).split()[-1].lstrip("/").partition("@")[0]: entry[key] for entry in entries for key in entry}
    return {group: option for group, option in named.items() if not group.startswith("hydra/")}


class Configs:
    """The YAML files that a command line can reach; `stored`, if there is one, takes the place of composing.

    Raises:
        UserError: a folder or the primary config is not there, or cannot be read.
    """

    def __init__(self, line: Line, conf: Path, stored: DictConfig | None):
        name, folders = line.config, line.searchpath
        places = [conf, *(Path(folder) for folder in folders if not folder.startswith("pkg:"))]
        if lost := [place for place in places if not place.is_dir()]:
            raise UserError(f"There is no folder of configs {lost[0]}.")
        files = [file for place in places if (file := place / f"{name}.yaml").is_file()]
        self.name, self.stored, self.listing = name, stored, functools.cache(self._listing)
        with explained():
            primary = OmegaConf.load(files[0]) if files else OmegaConf.create()
            if not any(key.startswith("hydra.searchpath=") for key in line.keys):
                folders = folders + list(OmegaConf.select(primary, "hydra.searchpath") or [])
            self.defaults = defaults(OmegaConf.to_container(primary, resolve=False))
        self.path = [f"hydra.searchpath={json.dumps(folders, ensure_ascii=False)}"] if folders else []
        if not files and stored is None:
            raise UserError(f"There is no config {name}; type -cn with one of {', '.join(self.options(''))}.")

    def _listing(self, folder: str, kind: str) -> list[str]:
        from hydra.core.global_hydra import GlobalHydra
        from hydra.core.object_type import ObjectType

        loader = GlobalHydra.instance().config_loader()
        return loader.get_group_options(folder, ObjectType[kind], self.name, self.path)

    def options(self, group: str) -> list[str]:
        return [option for option in self.listing(group, "CONFIG") if not option.startswith("_")]

    def is_group(self, override: "Override") -> bool:
        folder, _, name = override.key_or_group.rpartition("/")
        known = override.key_or_group in self.defaults or name in self.listing(folder, "GROUP")
        return known and not isinstance(override.value(), dict)

    def expand(self, override: "Override") -> "list[Override]":
        """An override for each value of a sweep, for the two ends of an interval; else itself."""
        if not override.is_sweep_override():
            return [override]
        value, head = override.value(), override.input_line.partition("=")[0]
        if override.is_interval_sweep():
            texts = [value.start, value.end]
        elif hasattr(value, "filter"):  # a glob
            texts = value.filter(self.listing(override.key_or_group, "CONFIG"))
        else:
            texts = itertools.islice(override.sweep_string_iterator(), 100)
        return [parse(f"{head}={text}") for text in texts]

    def choose(self, override: "Override", errors: list[str]) -> list[str]:
        """The options of a group override that there are, as overrides."""
        wrong = {single.input_line: self.wrong_option(single) for single in self.expand(override)}
        errors += filter(None, wrong.values())
        return [text for text, error in wrong.items() if not error]

    def wrong_option(self, override: "Override") -> str:
        text, group, value = override.input_line, override.key_or_group, override.value()
        usual = self.defaults.get(group)
        if override.is_delete():
            return ""
        if value is None:
            return f"{text}: a group takes no null; type {f'{group}=[]' if isinstance(usual, list) else f'~{group}'}"
        if isinstance(value, list) and isinstance(usual, str):
            return f"{text}: group {group} takes one option, such as {group}={usual}"
        for option in value if isinstance(value, list) else [value]:
            folder, _, name = f"{group}/{option}".rpartition("/")
            options = self.options(folder)
            if name not in options:
                near = closest(name.lower(), {option: option for option in options}, 0.5)
                guess = f": did you mean {near}?" if near else "."
                offer = ", ".join(options) or "none yet"
                return f"{text}: no option '{option}' in group {group}{guess} It has {offer}."
        if override.is_force_add() or (override.is_add() and group in self.defaults and not override.package):
            return f"{text}: group {group} is there already; type {text.lstrip('+')}"
        return ""

    def compose(self, groups: tuple[str, ...], errors: list[str]) -> DictConfig:
        """The tree of these group overrides; what does not go with the rest is left out and said in `errors`."""
        if self.stored is not None:
            return self.stored
        try:
            return self._compose(groups)
        except UserError:
            tree, kept = self._compose(()), ()
        for text in sorted(groups, key=lambda text: text.partition("=")[0].count("/")):  # task before task/loss
            try:
                tree, kept = self._compose((*kept, text)), (*kept, text)
            except UserError as error:
                lacks = f"config {self.name} has no such group; it has {', '.join(self.defaults)}"
                errors.append(f"{text}: {lacks if 'Could not override' in str(error) else error}")
        return tree

    def _compose(self, groups: tuple[str, ...]) -> DictConfig:
        from hydra import compose

        with explained():
            return compose(self.name, [*groups, *self.path], return_hydra_config=True)


# what a tree takes


def closest(word: str, texts: dict[str, str], cutoff: float) -> str:
    """The first key whose text is most like the word, or nothing."""
    scores = {key: SequenceMatcher(None, text, word).ratio() for key, text in texts.items()}
    return max((key for key in scores if scores[key] >= cutoff), key=scores.get, default="")


def nearest(key: str, known: Iterable[str]) -> str:
    """The known key most like this one: a sibling, a namesake elsewhere, or one of similar spelling; or nothing."""
    parent, _, name = key.replace("/", ".").rpartition(".")
    names = {other: re.split("[./]", other)[-1] for other in known}
    inside = {other: names[other] for other in names if other.rpartition(".")[0] == parent}
    away = {other: other for other in names if other not in inside}
    same = {other: other for other in away if names[other] == name}
    guess = closest(name, inside, 0.6) or closest(key, same, 0) or closest(key, away, 0.7)
    return guess or closest(name, {other: names[other] for other in away}, 0.75)


def paths(node: dict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each dotted key of a nested dict with its value."""
    for name, child in node.items():
        yield f"{prefix}{name}", child
        yield from paths(child, f"{prefix}{name}.") if isinstance(child, dict) else ()


def walk(node: Any, parts: list[str]) -> tuple[Any, int, int]:
    """The deepest node on a way, its depth, and the depth of the last node with a `_target_` (-1: there is none)."""
    owner = -1
    for depth, part in enumerate([*parts, None]):
        children = node if isinstance(node, dict) else dict(enumerate(node)) if isinstance(node, list) else {}
        children = {str(name): child for name, child in children.items()}
        owner = depth if "_target_" in children else owner
        if part not in children:
            break
        node = children[part]
    return node, depth, owner


def wrong_value(text: str, key: str, usual: Any, value: Any) -> str:
    """What is wrong with a value where the YAML has its usual one, or nothing."""
    name = key.rpartition(".")[2]
    if value is None or "${" in str(value) or re.fullmatch(WORDS.get(name, "(?!)"), str(value)):
        return ""
    if key == "name" and re.search(r"[=:\s,/\\]|^\.|^$", str(value)):
        return f"{text}: a name holds no =, :, space, comma or slash and begins with no dot; type name=my-run"
    kind, low, high = None if usual in (None, "auto") else type(usual), -math.inf, math.inf
    limits = [limit for limit, names in LIMITS.items() if any(fnmatch(name, pattern) for pattern in names.split())]
    if limits and kind in (None, int, float) and value != usual:
        kind, low, high = (float if kind is float else limits[0][0]), *limits[0][1:]
    if kind and not fits(value, kind):
        return f"{text}: {key} needs {NEEDS[kind]}" + (f", such as {usual}" if usual not in ("", [], None) else "")
    if low > -math.inf and not low <= value <= high:
        return f"{text}: {key} must be " + (f"at least {low}" if high == math.inf else f"between {low} and {high}")
    if kind is list and usual and all(fits(item, float) for item in usual):
        number = int if all(fits(item, int) for item in usual) else float
        wrong = [item for item in value if not fits(item, number)]
        return f"{text}: {wrong[0]} is not {NEEDS[number]}; {key} needs a list such as {usual}" if wrong else ""
    return ""


def fits(value: Any, kind: type) -> bool:
    if kind is str:
        return not isinstance(value, (list, dict))
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    return isinstance(value, kind)


class Tree:
    """A composed tree that takes overrides as Hydra does, or says why it does not."""

    def __init__(self, base: DictConfig, configs: Configs):
        self.base, self.live, self.configs = base, copy.deepcopy(base), configs
        self.plain = OmegaConf.to_container(base, resolve=False)
        choices = self.plain.get("hydra", {}).get("runtime", {}).get("choices", ())
        groups = {*configs.defaults, *configs.listing("", "GROUP"), *choices}
        self.groups = sorted(group for group in groups if not group.startswith("hydra"))

    def apply(self, keys: "list[list[Override]]") -> list[str]:
        """Try all values of each override and take the first; the mistakes."""
        errors = []
        for singles in filter(None, keys):
            errors += [error for single in singles for error in self.wrong(single)] or self.take(singles[0])
        return errors or self.dangling()

    def result(self) -> DictConfig:
        with open_dict(self.live):
            self.live.pop("hydra", None)
        return self.live

    def take(self, override: "Override") -> list[str]:
        key, added = override.key_or_group, override.is_add() or override.is_force_add()
        parent, _, name = key.rpartition(".")
        try:
            with open_dict(self.live):
                if override.is_delete():
                    del (OmegaConf.select(self.live, parent) if parent else self.live)[name]
                else:
                    OmegaConf.update(self.live, key, override.value(), merge=True, force_add=added)
        except OmegaConfBaseException as error:
            return [f"{override.input_line}: {str(error).splitlines()[0]}"]
        self.plain = OmegaConf.to_container(self.live, resolve=False)
        return []

    def wrong(self, override: "Override") -> list[str]:
        """What is wrong with one override: its key, its sign or its value."""
        text, key, value = override.input_line, override.key_or_group, override.value()
        parts, added = key.split("."), override.is_add() or override.is_force_add()
        node, depth, owner = walk(self.plain, parts)
        error = ""
        if parts[0] == "hydra" and (added or "hydra" not in self.plain):
            error = ""
        elif depth < len(parts):
            error = self.wrong_key(override, parts, node, depth, owner)
        elif override.is_delete():
            usual = self.usual(key)
            error = f"{text}: {key} is {json.dumps(usual)}" if usual is None or value not in (None, usual) else ""
        elif isinstance(value, dict) and isinstance(node, dict):
            head = text.partition("=")[0]
            inner = [(f"{key}.{name}", item, f"{head}.{name}={item}") for name, item in value.items()]
            singles = [replace(override, key_or_group=k, _value=item, input_line=line) for k, item, line in inner]
            return [error for single in singles for error in self.wrong(single)]
        elif override.is_add() and node is not None and not isinstance(value, (dict, list)):
            error = f"{text}: {key} is there already; type {text[1:]}"
        elif text.endswith("="):
            error = f"{text}: nothing follows the =; type {key}=null for none"
        elif parts[0] != "hydra":
            error = wrong_value(text, key, self.usual(key), value)
        return [error] if error else []

    def wrong_key(self, override: "Override", parts: list[str], node: Any, depth: int, owner: int) -> str:
        """Why a key that is not in the tree cannot be set; nothing where `+` may add it."""
        text, key, inside = override.input_line, override.key_or_group, ".".join(parts[:depth])
        takes = self.takes(parts, node, depth, owner, override.value())
        free = not override.is_delete() and (takes is None or parts[depth] in takes | SPECIAL)
        if free and (override.is_add() or override.is_force_add()):
            return ""
        if free and (takes or parts[0] == "facts"):
            return f"{text}: {key} is not in the YAML; type +{text} to add it"
        near = nearest(key, [*self.known(), *(f"{inside}.{name}" for name in takes or ())])
        has = [str(name) for name in node if not str(name).startswith("_")] if depth and isinstance(node, dict) else []
        hint = f"{inside} has {', '.join(has)}" if has else f"python src/{self.configs.name}.py --help lists the keys"
        added = f"; if its constructor takes it type +{text}" if free else ""
        return f"{text}: there is no key {key}" + (f": did you mean {near}?" if near else f"; {hint}") + added

    def takes(self, parts: list[str], node: Any, depth: int, owner: int, value: Any) -> frozenset[str] | None:
        """Names that may be added to the node at this depth; None: any."""
        if parts[0] == "facts" or (-1 < owner < depth and (node is None or isinstance(node, dict))):
            return None  # what the data says, or data inside an argument
        if owner == depth:  # conf/trainer/default.yaml has all that a run can set
            target = str(node["_target_"])
            return frozenset() if re.fullmatch(r"lightning(\.pytorch)?\.Trainer", target) else arguments(target)
        made = parts[-1] == "_target_" or (isinstance(value, dict) and "_target_" in value)
        listed = isinstance(self.configs.defaults.get(parts[0]), list) and depth < 2
        return None if made and listed else frozenset()  # one more logger or callback

    def known(self) -> list[str]:
        """Keys and groups to guess from."""
        return [*(key for key, _ in paths(self.plain) if not key.rpartition(".")[2].startswith("_")), *self.groups]

    def usual(self, key: str) -> Any:
        """What the YAML says; None: nothing, or what is not known yet."""
        try:
            value = OmegaConf.select(self.base, key)
        except InterpolationResolutionError:
            return None
        return OmegaConf.to_container(value, resolve=False) if OmegaConf.is_config(value) else value

    def dangling(self) -> list[str]:
        """References to keys that are not there."""
        errors = []
        for key, value in paths({name: child for name, child in self.plain.items() if name != "hydra"}):
            try:
                if isinstance(value, str) and "${" in value:
                    OmegaConf.select(self.live, key)
            except InterpolationKeyError as error:
                errors.append(f"{key}={value}: {str(error).splitlines()[0]}")
            except InterpolationResolutionError:  # facts, the environment: known later
                continue
        return errors

    def one_value(self, override: "Override") -> str:
        """What to type instead of several values."""
        text, (head, _, value) = override.input_line, override.input_line.partition("=")
        if override.is_hydra_override():
            return f"{text}: Hydra's own keys take one value"
        usual = self.configs.defaults.get(head) if head in self.groups else self.usual(override.key_or_group)
        one = f"; a list is written '{head}=[{value}]'" if isinstance(usual, list) else ""
        return f"{text}: several values need -m; add it to try them one after the other{one}"

    def wrong_flags(self, line: Line) -> list[str]:
        errors = []
        for flag, value in itertools.pairwise([*line.flags, "-"]):
            if FLAGS.get(flag) == VALUE and value.startswith("-"):
                errors.append(f"{flag}: a value must follow")
            elif re.match(r"-\D", flag) and flag not in FLAGS:
                key = nearest(flag.strip("-").replace("-", "_"), self.known()) or "optimizer.lr"
                errors.append(f"{flag}: there is no such flag; options are written key=value, such as {key}=<value>")
        shown, package = line.values("-c", "--cfg"), line.values("-p", "--package")
        if "--resolve" in line.flags and shown != ["hydra"]:
            try:
                node = OmegaConf.select(self.result(), package[-1]) if package else self.result()
                OmegaConf.to_container(node, resolve=True)
            except (OmegaConfBaseException, ValueError):
                errors.append("--resolve: the facts are known only with the data; type --cfg job without it")
        return errors


# what a constructor takes, read from its source


def module(target: str) -> tuple[Path, list[str], list[str]]:
    """Source file of the module that a dotted path begins with, the module's names, and the names that follow.

    Raises:
        ImportError, ValueError, AttributeError: the first name is no installed package.
    """
    names = target.split(".")
    spec = importlib.util.find_spec(names[0])
    if not spec.submodule_search_locations:
        return Path(spec.origin), names[:1], names[1:]
    folder, depth = Path(list(spec.submodule_search_locations)[0]), 1
    while depth < len(names) and (folder / names[depth]).is_dir():
        folder, depth = folder / names[depth], depth + 1
    if depth < len(names) and (folder / f"{names[depth]}.py").is_file():
        return folder / f"{names[depth]}.py", names[: depth + 1], names[depth + 1 :]
    return folder / "__init__.py", names[:depth], names[depth:]


def definition(target: str, hops: int = 8) -> tuple[ast.stmt, str] | None:
    """The class or function behind a dotted path and the module where it stands; follows `from x import y`."""
    file, names, rest = module(target)
    if not hops or len(rest) != 1 or not file.is_file():
        return None
    package = names if file.name == "__init__.py" else names[:-1]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):  # outermost first
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == rest[0]:
            return node, ".".join(names)
        for alias in node.names if isinstance(node, ast.ImportFrom) else []:
            if alias.name == "*" or (alias.asname or alias.name) == rest[0]:
                start = package[: len(package) + 1 - node.level] if node.level else []
                name = rest[0] if alias.name == "*" else alias.name
                if found := definition(".".join([*start, *filter(None, [node.module]), name]), hops - 1):
                    return found
    return None


@functools.cache
def arguments(target: str) -> frozenset[str] | None:
    """Names of the arguments of a class or function; None: it takes any, or its source does not tell."""
    try:
        found = definition(target)
    except (ImportError, ValueError, AttributeError, SyntaxError, OSError):  # no package, or no Python source
        return None
    node, home = found or (None, "")
    if isinstance(node, ast.ClassDef):
        own = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
        if not own:
            plain = len(node.bases) == 1 and isinstance(node.bases[0], ast.Name) and not node.decorator_list
            return arguments(f"{home}.{node.bases[0].id}") if plain else None
        node = own[-1]
    if node is None or node.args.kwarg:
        return None
    return frozenset(arg.arg for arg in node.args.args + node.args.kwonlyargs) - {"self"}


# --help


def show_help(config: str, conf: Path) -> str:
    """The text of --help: the groups with their options, the keys with their comments, and examples."""
    text = (conf / f"{config}.yaml").read_text(encoding="utf-8")
    command = f"python src/{config}.py"
    rows = [f"Usage: {command} [group=option ...] [key=value ...]", "", "Groups (*: where nothing is typed)"]
    for group, usual in defaults(yaml.safe_load(text)).items():
        for folder in [conf / group, *sorted(path for path in (conf / group).rglob("*") if path.is_dir())]:
            chosen = usual if isinstance(usual, list) else [usual]
            names = sorted(file.stem for file in folder.glob("[!_]*.yaml"))
            offer = " ".join(f"{name}*" if name in chosen and folder == conf / group else name for name in names)
            rows += row(folder.relative_to(conf).as_posix(), offer, 16) if names else []
    rows += ["", f"Keys, from conf/{config}.yaml; --cfg job shows those of the groups too"]
    parents: list[tuple[int, str]] = []
    for indent, key, value, comment in re.findall(r"^( *)([\w.]+):[ ]*(.*?)(?:[ ]+#[ ]*(.*))?$", body(text), re.M):
        parents = [*(parent for parent in parents if parent[0] < len(indent)), (len(indent), key)]
        rows += row(f"{'.'.join(name for _, name in parents)}={value}", comment, 24) if value else []
    examples = EXAMPLES.get(config, "--cfg job").split("|")
    return "\n".join([*rows, "", "Examples", *(f"  {command} {example}".rstrip() for example in examples)])


def body(text: str) -> str:
    """A config without its defaults list."""
    return re.sub(r"^defaults:\n(?:[ -].*\n|\n)*", "", text, flags=re.M)


def row(name: str, text: str, width: int) -> list[str]:
    """Two columns, 100 wide."""
    return textwrap.wrap(f"  {name:<{width}}  {text}", 100, subsequent_indent=" " * (width + 4), break_long_words=False)
