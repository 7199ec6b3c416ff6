"""A command line: its overrides and Hydra's own flags."""

import itertools
import re
from dataclasses import dataclass, field

VALUED = "-c --cfg -p --package -cn --config-name -cd --config-dir -i --info -sc --shell-completion"


@dataclass
class Line:
    """A command line, split."""

    config: str  # the primary config's name
    keys: list[str] = field(default_factory=list)  # overrides, in order: key=value, +key=value, ++key=value, ~key
    flags: list[str] = field(default_factory=list)  # Hydra's own flags with their values
    multirun: bool = False
    typed: list[str] = field(default_factory=list)  # the overrides before any was taken out

    def value(self, *spellings: str) -> str | None:
        """What follows a flag; None: it is not there."""
        return next((value for flag, value in itertools.pairwise(self.flags) if flag in spellings), None)

    def take(self, *names: str) -> dict[str, str]:
        """Remove the plain overrides of these names and return them as typed, without the quotes around them."""
        taken = {}
        for text in list(self.keys):
            name, equals, value = text.partition("=")
            if equals and name in names:
                self.keys.remove(text)
                quoted = re.fullmatch(r"(['\"])(.*)\1", value)
                taken[name] = quoted[2].replace("\\" + quoted[1], quoted[1]) if quoted else value
        return taken


def split(argv: list[str], config: str) -> Line:
    """Overrides and flags of `sys.argv[1:]`; what is wrong with them is said by `compose`."""
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
