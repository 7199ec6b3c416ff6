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
from leyden.debug.mistakes import Mistakes, shown


def trainer(folder, rank=0, world=1, **fields):
    logger = TensorBoardLogger(folder, name="", version="")
    return SimpleNamespace(
        loggers=[logger],
        datamodule=None,
        global_step=7,
        world_size=world,
        global_rank=rank,
        is_global_zero=True,
        **fields,
    )


def task(classes=("cat", "a|b", "犬")):
    return SimpleNamespace(classes=list(classes), details={"confusion": [[1, 2, 0], [0, 3, 0], [0, 0, 0]]})


def test(mistakes, trainer, task, x, y, outputs, batch=4):
    mistakes.on_test_start(trainer, task)
    for part in zip(x.split(batch), y.split(batch), outputs.split(batch), strict=True):
        mistakes.on_test_batch_end(trainer, task, part[2], part[:2], 0)


test.__test__ = False


def samples(count=37, classes=3):
    source = torch.Generator().manual_seed(0)
    x = torch.rand(count, 3, 6, 6, generator=source)
    return x, torch.randint(classes, (count,), generator=source), torch.randn(count, classes, generator=source) * 3


@pytest.mark.parametrize("batch", [1, 4, 16, 37])
def test_the_most_wrong_are_kept_the_worst_first(batch, tmp_path):
    x, y, outputs = samples()
    mistakes, run = Mistakes(count=5), trainer(tmp_path)
    test(mistakes, run, task(), x, y, outputs, batch)
    loss = nn.functional.cross_entropy(outputs, y, reduction="none")
    wrong = [i for i in loss.argsort(descending=True).tolist() if outputs[i].argmax() != y[i]][:5]
    found = mistakes.gathered(run)
    assert [row[1] for row in found] == wrong
    assert all(torch.equal(row[4], x[i]) and row[2] == y[i] for row, i in zip(found, wrong, strict=True))


@pytest.mark.slow
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
        found.append((apart, table(run / "tensorboard")))
    assert found[0] == found[1]
    assert sum(map(sum, found[0][0]["confusion"])) == 18 and "sample 1" in found[0][1]


def table(folder):
    events = EventAccumulator(str(folder)).Reload()
    return events.Tensors("test/most_wrong/text_summary")[0].tensor_proto.string_val[0].decode()


def test_tensorboard_gets_a_grid_a_table_and_the_matrix(tmp_path):
    x, y, outputs = samples()
    mistakes, run, model = Mistakes(), trainer(tmp_path), task()
    run.datamodule = SimpleNamespace(name=lambda split, index: f"{split}/{index}.jpg")
    test(mistakes, run, model, x, y, outputs)
    mistakes.on_test_end(run, model)
    run.loggers[0].experiment.flush()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert events.Tags()["images"] == ["test/most_wrong", "test/confusion"]
    for tag in events.Tags()["images"]:  # something is drawn
        with Image.open(io.BytesIO(events.Images(tag)[0].encoded_image_string)) as picture:
            assert len(picture.convert("RGB").getcolors(10**6)) > 50
    text = events.Tensors("test/most_wrong/text_summary")[0].tensor_proto.string_val[0].decode()
    assert text.count("\n") == 1 + len(mistakes.gathered(run)) and "a\\|b" in text and "犬" in text and "test/" in text
    assert events.Images("test/confusion")[0].step == 7


def test_data_of_another_kind_and_a_test_without_mistakes_leave_nothing(tmp_path):
    x, y, _ = samples()
    right = nn.functional.one_hot(y, 3).float()
    for number, (pictures, outputs) in enumerate([(x, right), (x.flatten(1), samples()[2])]):
        mistakes, run = Mistakes(), trainer(tmp_path / str(number))
        test(mistakes, run, task(), pictures, y, outputs)
        mistakes.on_test_end(run, SimpleNamespace())
        assert mistakes.gathered(run) == []
    for outputs, batch in ((None, {"a": 1}), (x, (x, x)), (right, [x, right]), (right, (x, y, y))):  # of a user's own
        mistakes.on_test_batch_end(run, SimpleNamespace(details=[], classes=None), outputs, batch, 0)
    mistakes.on_test_end(run, SimpleNamespace(details=[]))


def test_a_picture_is_shown_whatever_its_values():
    for x in (torch.rand(3, 4, 5), torch.randn(1, 4, 5), torch.zeros(2, 4, 5) - 1, torch.rand(5, 4, 5).bfloat16()):
        assert shown(x).shape == (4, 5, 3)
    assert shown(torch.tensor([[[0.0, 0.5, 1.0]]])).tolist() == [[[0.0] * 3, [0.5] * 3, [1.0] * 3]]
