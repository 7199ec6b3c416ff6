"""Each model trains, and so does each data set; where the two do not fit, one sentence says so."""

import csv
import random
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf
from PIL import Image

from leyden import UserError
from leyden.run import build
from leyden.run.run import Run
from test_conf import CONF, OPTIONS

TRAINED = {  # each model and each data set at least once
    "digits": ["resnet", "torchvision"],
    "fake": ["vit"],
    "image_folder": ["cnn"],
    "ink": ["rnn"],
    "sequence_folder": ["transformer"],
    "diabetes": ["mlp"],
    "table": ["mlp"],
    "arrays": ["cnn"],
}
THERE = {*OPTIONS["data"], *OPTIONS["model"]}  # a copy may have deleted some
PAIRS = [(data, model) for data, models in TRAINED.items() for model in models if {data, model} <= THERE]
DOWNLOADED = ("mnist", "fashion_mnist", "cifar10", "cifar100")  # pictures too; tests/lab/data reads their real files
REFUSED = {  # one data set of each kind, with the models that cannot take it
    "digits": ["rnn", "transformer"],
    "ink": ["mlp", "cnn", "resnet", "vit", "torchvision"],
    "diabetes": ["cnn", "resnet", "vit", "torchvision", "rnn", "transformer"],
}


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
    (folder / "arrays").mkdir()
    np.save(folder / "arrays" / "x.npy", np.random.default_rng(0).integers(0, 256, (100, 8, 8), dtype=np.uint8))
    np.save(folder / "arrays" / "y.npy", np.arange(100) % 3)
    return {
        "arrays": [f"data.path={folder / 'arrays'}", f"data_dir={folder / 'data'}"],
        "table": [f"data.path={folder / 'table.csv'}", "data.target=kind"],
        "sequence_folder": [f"data.root={folder / 'sequences'}"],
        "image_folder": [f"data.root={folder / 'pictures'}", f"data_dir={folder / 'data'}", "data.size=32"],
        "diabetes": ["task=regression"],
        "fake": ["data.num_samples=100"],
    }


@pytest.mark.slow
@pytest.mark.parametrize(("data", "model"), PAIRS)
def test_a_pair_trains(configure, files, data, model):
    from train import train

    cfg = configure(f"data={data}", f"model={model}", "data.batch_size=16", "debug=fast", *files.get(data, []))
    train(cfg)
    metrics = Run(Path(cfg.run_dir)).metrics
    assert metrics["test"]["samples"] > 0 and metrics["best"]


@pytest.mark.parametrize("data", sorted(THERE.intersection(REFUSED)))
def test_a_model_that_does_not_fit_is_refused_by_the_facts(configure, files, data):
    cfg = configure(f"data={data}", *files.get(data, []))
    build.facts(cfg, build.data(cfg))
    for model in THERE.intersection(REFUSED[data]):
        cfg.model = OmegaConf.load(CONF / "model" / f"{model}.yaml")
        with pytest.raises(UserError, match="model="):
            build.task(cfg)
