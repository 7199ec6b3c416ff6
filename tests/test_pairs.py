"""Every data set with every model: it runs, or says in a sentence why it does not."""

import csv
import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leyden import UserError, runs
from test_conf import OPTIONS

PICTURES, SEQUENCES, TABLES = ("digits", "fake", "image_folder"), ("ink", "sequence_folder"), ("diabetes", "table")
MODELS = {
    "mlp": PICTURES + TABLES,
    "cnn": PICTURES,
    "resnet": PICTURES,
    "vit": PICTURES,
    "torchvision": PICTURES,
    "rnn": SEQUENCES,
    "transformer": SEQUENCES,
}
DOWNLOADED = ("mnist", "fashion_mnist", "cifar10", "cifar100")  # pictures too; tests/data reads their real files


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A table and folders of sequences and of pictures, and the keys that name them."""
    folder, draw = tmp_path_factory.mktemp("files"), random.Random(0)
    with open(folder / "table.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["size", "colour", "kind"])
        writer.writerows([draw.random(), draw.choice(["red", "green"]), draw.choice(["a", "b"])] for _ in range(60))
    for name in ("short", "long"):
        (folder / "sequences" / name).mkdir(parents=True)
        for i in range(20):
            (folder / "pictures" / name).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (60, 40), (10 * i, 200, 90)).save(folder / "pictures" / name / f"{i}.jpg")
            np.save(folder / "sequences" / name / f"{i}.npy", np.random.default_rng(i).random((3 + i, 2)))
    return {
        "table": [f"data.path={folder / 'table.csv'}", "data.target=kind"],
        "sequence_folder": [f"data.root={folder / 'sequences'}"],
        "image_folder": [f"data.root={folder / 'pictures'}", f"data_dir={folder / 'data'}", "data.size=32"],
        "diabetes": ["task=regression"],
        "fake": ["data.num_samples=100"],
    }


def test_the_lists_are_complete():
    assert set(MODELS) == set(OPTIONS["model"])
    assert {*PICTURES, *SEQUENCES, *TABLES, *DOWNLOADED} == set(OPTIONS["data"])


@pytest.mark.parametrize("data", PICTURES + SEQUENCES + TABLES)
@pytest.mark.parametrize("model", MODELS)
def test_pair(configure, files, data, model):
    from train import train

    cfg = configure(f"data={data}", f"model={model}", "data.batch_size=16", "debug=fast", *files.get(data, []))
    if data in MODELS[model]:
        train(cfg)
        metrics = runs.read_json(Path(cfg.run_dir) / "metrics.json")
        assert metrics["test"]["samples"] > 0 and metrics["best"]
    else:
        with pytest.raises(UserError, match="model"):
            train(cfg)


@pytest.mark.parametrize(
    ("data", "task"), [("diabetes", "classification"), ("digits", "regression"), ("ink", "regression")]
)
def test_a_task_that_does_not_fit_the_data_is_named(configure, data, task):
    from train import train

    other = "regression" if task == "classification" else "classification"
    with pytest.raises(UserError, match=f"task={other}"):
        train(configure(f"data={data}", f"task={task}", f"model={'rnn' if data == 'ink' else 'mlp'}", "debug=fast"))
