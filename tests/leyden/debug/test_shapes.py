import re
from pathlib import Path

import pytest

from leyden.run.run import Run


@pytest.mark.parametrize("model", ["mlp", "resnet", "vit"])
def test_the_table_of_layers(train, model):
    run = train("debug=shapes", f"model={model}")
    text = (run / "train.log").read_text()
    record = Run(run).record
    assert record["status"] == "finished" and "epoch 1" not in text and not (run / "metrics.json").exists()
    total = re.search(r"^sum +([\d,]+) +([\d,]+) +[\d.]+$", text, re.M)
    assert int(total[1].replace(",", "")) == record["parameters"] and int(total[2].replace(",", "")) > 0


def test_the_numbers_of_a_linear_layer(train):
    text = (train("debug=shapes", "model.hidden=[32]") / "train.log").read_text()
    row = re.search(r"^model.head +Linear +16 x 32 +16 x 10 +([\d,]+) +([\d,]+)", text, re.M)
    assert (row[1], row[2]) == ("330", f"{2 * 16 * 32 * 10:,}")


def test_sequences(configure):
    from train import train

    cfg = configure("debug=shapes", "data=ink", "model=rnn", "data.batch_size=8")
    train(cfg)
    text = (Path(cfg.run_dir) / "train.log").read_text()
    assert re.search(r"^model\.\S+ +GRU +8 x ", text, re.M), text
