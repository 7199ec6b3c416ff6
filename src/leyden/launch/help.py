"""The text of --help: the groups with their options, the keys of a run, and examples. Hydra is not imported."""

import re
import textwrap
from pathlib import Path
from typing import Any

import yaml

EXAMPLES = {
    "train": "|model=resnet optimizer.lr=1e-3|trainer=ddp|-m model=cnn,mlp optimizer.lr=1e-3,1e-2|debug=fast",
    "eval": "run=latest|run=logs/train/exp1|run=latest split=val|run=latest trainer=gpu|run=latest exact=false",
    "predict": "run=latest input=photos output=found.csv|run=latest split=test top_k=3|run=latest input=a.png",
    "export": "run=latest|run=latest format=pt2|run=latest output=model.onnx",
    "benchmark": "|model=cnn data=digits|experiment=digits_cnn|trainer=gpu data.batch_size=256|rounds=3 steps=20",
}


def show_help(config: str, conf: Path) -> str:
    """What can be typed after `python src/<config>.py`, in 100 columns."""
    command = f"python src/{config}.py"
    groups, keys = read(config, conf)
    lines = [f"Usage: {command} [group=option ...] [key=value ...]", "", "Groups (*: where nothing is typed)"]
    for group, usual in groups.items():
        for folder in [conf / group, *sorted(path for path in (conf / group).rglob("*") if path.is_dir())]:
            chosen = [] if folder != conf / group else usual if isinstance(usual, list) else [usual]
            names = sorted(file.stem for file in folder.glob("[!_]*.yaml"))
            offer = " ".join(f"{name}*" if name in chosen else name for name in names)
            start = f"  {folder.relative_to(conf).as_posix():<14}"
            lines += textwrap.wrap(offer, 100, initial_indent=start, subsequent_indent=" " * 16)
    lines += ["", "Keys, typed as in checkpoint.monitor=val/loss; --cfg job shows those of the groups too"]
    lines += [f"  {line}" for line in keys] + ["", "Examples"]
    return "\n".join(lines + [f"  {command} {typed}".rstrip() for typed in EXAMPLES.get(config, "").split("|")])


def read(config: str, conf: Path) -> tuple[dict[str, Any], list[str]]:
    """Groups with their usual options and the lines of the keys: of a config, after those of the ones it inherits."""
    text = (conf / f"{config}.yaml").read_text(encoding="utf-8")
    groups: dict[str, Any] = {}
    keys: list[str] = []
    for entry in yaml.safe_load(text).get("defaults") or []:
        if isinstance(entry, dict):
            groups.update((name.split()[-1], option) for name, option in entry.items())
        elif entry != "_self_":
            more, inherited = read(entry, conf)
            groups, keys = groups | more, keys + inherited
    own = re.sub(r"\A[\s\S]*?^defaults:\n(?:[ -].*\n)*", "", text, flags=re.M)
    return groups, keys + own.strip().splitlines()
