"""Run directories written by hand, for what only reads them."""

import csv
import json
from pathlib import Path

import yaml

from leyden.report.results import read_all

TREE = {
    "name": None, "seed": 0, "objective": "val/acc", "facts": {"counts": [1, 2]}, "run_dir": None, "log_dir": "logs",
    "checkpoint": {"monitor": "${objective}", "mode": "${direction:${checkpoint.monitor}}"},
    "model": {"_target_": "lab.models.mlp.MLP", "hidden": [8, 8], "dropout": 0.1},
    "data": {"_target_": "lab.data.digits.Digits", "seed": "${seed}", "fold": None, "batch_size": 64},
    "task": {"_target_": "lab.tasks.classification.Classification", "model": "${model}", "compile": False},
    "optimizer": {"_target_": "torch.optim.AdamW", "lr": 0.001},
    "trainer": {"_target_": "lightning.Trainer", "max_epochs": 2, "strategy": "auto"},
}  # fmt: skip


def nested(keys: dict) -> dict:
    """A tree with these dotted keys in it."""
    tree = json.loads(json.dumps(TREE))
    for key, value in keys.items():
        node = tree
        *path, last = key.split(".")
        for name in path:
            node = node[name]
        node[last] = value
    return tree


def runs_in(*places):
    """What the report has to do with: a frame of the runs in some folders."""
    return read_all(places, Path("logs"))


def write(path: Path, value: float | None = 0.9, keys: dict | None = None, curve: list[float] = (), **record) -> Path:
    """A run with this best value; `curve` are its values by epoch, `record` what run.json has besides."""
    (path / ".hydra").mkdir(parents=True)
    tree, curve = nested(keys or {}), list(curve) or [0.1, value or 0.0]
    (path / "config.yaml").write_text(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), encoding="utf-8")
    (path / "run.json").write_text(json.dumps({"status": "finished", "commit": "abc", "versions": {}} | record))
    (path / ".hydra" / "hydra.yaml").write_text(yaml.safe_dump({"hydra": {"runtime": {"output_dir": str(path)}}}))
    monitor = tree["objective"]
    if value is not None:
        best = {"monitor": monitor, "value": value, "epoch": 1, "step": 20, "objective": value}
        test = {f"test/{monitor.partition('/')[2]}": value - 0.01, "samples": 9, "checkpoint": "checkpoints/best.ckpt"}
        metrics = {"val": {monitor: value, "val/loss": 0.5}, "train": {"train/loss": 0.1}, "best": best, "test": test,
                   "seconds": 2.0, "samples_per_second": 1000.0}  # fmt: skip
        (path / "metrics.json").write_text(json.dumps(metrics))
        with open(path / "metrics.csv", "w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["epoch", "step", monitor, "train/loss"])
            table.writerows([n, 10 * (n + 1), point, 1 / (n + 1)] for n, point in enumerate(curve))
    return path
