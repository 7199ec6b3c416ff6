import io
import json
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from conftest import SMALL
from leyden.debug.watch import COUNT, Mistakes


def trainer(folder):
    logger = TensorBoardLogger(folder, name="", version="")
    rank = {"world_size": 1, "global_rank": 0, "is_global_zero": True}
    return SimpleNamespace(loggers=[logger], datamodule=None, global_step=7, **rank)


def task(classes=("cat", "$a$b", "dog")):
    return SimpleNamespace(classes=list(classes), details={"confusion": [[1, 2, 0], [0, 3, 0], [0, 0, 0]]})


def test(mistakes, trainer, task, x, y, outputs, batch=4):
    mistakes.on_test_start(trainer, task)
    for part in zip(x.split(batch), y.split(batch), outputs.split(batch), strict=True):
        mistakes.on_test_batch_end(trainer, task, part[2], part[:2], 0)


test.__test__ = False


def samples(count=47, classes=3):
    source = torch.Generator().manual_seed(0)
    x = torch.rand(count, 3, 6, 6, generator=source)
    return x, torch.randint(classes, (count,), generator=source), torch.randn(count, classes, generator=source) * 3


@pytest.mark.parametrize("batch", [1, 4, 47])
def test_the_most_wrong_are_kept_the_worst_first(batch, tmp_path):
    x, y, outputs = samples()
    mistakes = Mistakes()
    test(mistakes, trainer(tmp_path), task(), x, y, outputs, batch)
    loss = nn.functional.cross_entropy(outputs, y, reduction="none")
    wrong = [i for i in loss.argsort(descending=True).tolist() if outputs[i].argmax() != y[i]][:COUNT]
    assert [row[1] for row in mistakes.worst] == wrong and len(wrong) == COUNT
    for (_, _, true, predicted, picture), i in zip(mistakes.worst, wrong, strict=True):
        assert torch.equal(picture, x[i]) and (true, predicted) == (y[i], outputs[i].argmax())


@pytest.mark.stress
def test_two_processes_find_what_one_finds(command, tmp_path):
    """Of the same weights: they hardly learn."""
    found = []
    for name, trainer in (("one", "cpu"), ("two", "ddp")):
        keys = [*SMALL, "optimizer.lr=1e-9", "trainer.max_epochs=1", f"trainer={trainer}", f"name={name}"]
        done = command("train.py", *keys)
        assert done.returncode == 0, done.stderr
        run = tmp_path / "logs" / "train" / name
        results = json.loads((run / "metrics.json").read_text())["test"]
        apart = {name: value for name, value in results.items() if name.count("/") > 1 or name == "confusion"}
        events = EventAccumulator(str(run / "tensorboard")).Reload()
        found.append((apart, events.Images("test/most_wrong")[0].encoded_image_string))
    assert found[0] == found[1]
    assert sum(map(sum, found[0][0]["confusion"])) == 18


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_tensorboard_gets_the_pictures_and_the_matrix(tmp_path, channels):
    x, y, outputs = samples()
    mistakes, run, model = Mistakes(), trainer(tmp_path), task()
    run.datamodule = SimpleNamespace(name=lambda split, index: f"{split}/{index}.jpg")
    test(mistakes, run, model, x.repeat(1, 2, 1, 1)[:, :channels], y, outputs)
    mistakes.on_test_end(run, model)
    mistakes.board.flush()
    events = EventAccumulator(str(tmp_path)).Reload()
    pictures, tables = {}, {}
    for tag in "test/most_wrong", "test/confusion":
        pictures[tag] = Image.open(io.BytesIO(events.Images(tag)[0].encoded_image_string))
        (text,) = events.Tensors(f"{tag}/text_summary")
        tables[tag] = text.tensor_proto.string_val[0].decode().splitlines()
        assert text.step == 7
    _, number, true, predicted, _ = mistakes.worst[0]
    row = [f"test/{number}.jpg", model.classes[true], model.classes[predicted]]
    assert tables["test/most_wrong"][2].replace("|", " ").split() == row
    assert len(tables["test/most_wrong"]) == COUNT + 2
    assert len(pictures["test/most_wrong"].convert("RGB").getcolors(10**6)) > 50  # something is drawn
    rows = [line.replace("|", " ").split() for line in tables["test/confusion"][0::3]]
    assert rows == [["true", "/", "predicted", "cat", "$a$b", "dog"], ["$a$b", "0", "3", "0"]]
    assert pictures["test/confusion"].size == (600, 600)
    assert pictures["test/confusion"].getpixel((300, 300)) == (0, 76, 153)  # all of the class


def test_data_of_another_kind_and_a_test_without_mistakes_leave_nothing(tmp_path):
    x, y, _ = samples()
    right = nn.functional.one_hot(y, 3).float()
    for number, (pictures, outputs) in enumerate([(x, right), (x.flatten(1), samples()[2])]):
        mistakes, run = Mistakes(), trainer(tmp_path / str(number))
        test(mistakes, run, task(), pictures, y, outputs)
        mistakes.on_test_end(run, SimpleNamespace())
        assert mistakes.worst == []
    for outputs, batch in ((None, {"a": 1}), (x, (x, x)), (right, [x, right]), (right, (x, y, y))):  # of a user's own
        mistakes.on_test_batch_end(run, SimpleNamespace(details=[], classes=None), outputs, batch, 0)
    mistakes.on_test_end(run, SimpleNamespace(details=[]))
