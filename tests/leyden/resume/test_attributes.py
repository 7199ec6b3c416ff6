import io
from collections import Counter, OrderedDict, deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning import LightningModule
from lightning.pytorch.callbacks import Callback, EarlyStopping
from torch import nn

from leyden.resume.attributes import Attributes, decode, encode

CPU = torch.device("cpu")
PLAIN = [
    None, True, 3, 0.1, float("inf"), "a", [1, [2.0]], (1, "b"), {"a": [torch.ones(2)], 3: None}, {1, 2},
    OrderedDict(b=1, a=2), Counter("aab"),
    np.float32(0.1), np.arange(6).reshape(2, 3), [np.float64(2), {"x": np.zeros(2)}],
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_data_passes_through_a_checkpoint(value):
    torch.save(encode(value, {}), file := io.BytesIO())
    file.seek(0)
    found = decode(torch.load(file, weights_only=True), CPU)
    assert type(found) is type(value) and repr(found) == repr(value)


def test_a_copy_is_apart_and_without_a_graph():
    loss = torch.ones(2, requires_grad=True) * 2
    kept = encode([loss], {})
    with torch.no_grad():
        loss.add_(1)
    assert kept[0].tolist() == [2, 2] and not kept[0].requires_grad


@pytest.mark.parametrize("value", [object(), iter([]), [nn.ReLU()], lambda: 1, np.array(["a"]), deque([1])])
def test_what_is_no_plain_data(value):
    with pytest.raises(TypeError):
        encode(value, {})


class Average:
    def __init__(self):
        self.sum, self.count = 0.0, 0


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.register_buffer("running", torch.zeros(2), persistent=False)


class Task(LightningModule):
    def __init__(self):
        super().__init__()
        self.part, self.outputs, self.average, self.lr = Part(), [], Average(), 0.1
        self.best, self.stream, self.draw, self.opened = None, None, np.random.default_rng(0), None


class Watch(Callback):
    def __init__(self):
        self.history = []


class Saves(Callback):
    """What has a state_dict sees to itself."""

    calls = 0

    def state_dict(self):
        return {"calls": self.calls}


def start():
    task, watch, saves = Task(), Watch(), Saves()
    trainer = SimpleNamespace(callbacks=[EarlyStopping("val/loss"), watch, saves])
    attributes = Attributes(trainer, task)
    task.opened = open  # a hook of a start makes it, and makes it again when a run goes on
    return trainer, task, watch, attributes


def step(trainer, task):
    task.forward = task.forward  # which DDP leaves there
    task.outputs.append(torch.tensor(2.0))
    task.average.sum += 3
    task.part.calls += 1
    task.part.running += 1
    task.best = (1, "a")
    trainer.callbacks[0].wait_count += 1
    trainer.callbacks[1].history.append(0.5)
    trainer.callbacks[2].calls += 1


def test_what_has_changed_travels_and_nothing_else():
    trainer, task, _, attributes = start()
    attributes.restore()
    assert attributes.changed() == ({}, [])
    step(trainer, task)
    values, lost = attributes.changed()
    assert lost == []
    assert values.keys() == {
        ("task", "outputs"), ("task", "best"), ("task.average", "sum"), ("task.part", "calls"),
        ("task.part", "running"), ("Watch", "history"),
    }  # fmt: skip

    _, fresh, watch, after = start()
    fresh.lr = 0.2  # not changed in training: as the config says now
    after.to_restore = decode(values, CPU)
    fresh.outputs.append("of a hook of the start")
    after.restore()
    assert fresh.outputs == [torch.tensor(2.0)] and fresh.average.sum == 3 and fresh.average.count == 0
    assert fresh.part.calls == 1 and fresh.part.running.tolist() == [1, 1] and fresh.best == (1, "a")
    assert watch.history == [0.5] and fresh.lr == 0.2
    again, lost = after.changed()
    assert lost == [] and again.keys() == {*values, ("task", "lr")}  # so that a second stop loses nothing


def test_what_is_one_object_stays_one():
    trainer, task, watch, attributes = start()
    task.all = {"losses": task.outputs, "mean": (watch.history,)}
    step(trainer, task)
    torch.save(attributes.changed()[0], file := io.BytesIO())
    file.seek(0)
    _, fresh, watch, after = start()
    after.to_restore = decode(torch.load(file, weights_only=True), CPU)
    after.restore()
    assert fresh.all["losses"] is fresh.outputs == [torch.tensor(2.0)] and fresh.all["mean"][0] is watch.history


def test_what_changes_and_is_no_data_is_named():
    _, task, watch, attributes = start()
    attributes.restore()
    task.draw.random()
    task.stream = iter([1])
    task.opened = print
    watch.parts = [nn.ReLU()]
    values, lost = attributes.changed()
    assert values == {}
    assert {sentence.split(" changes")[0] for sentence in lost} == {
        "task.draw (Generator)", "task.stream (list_iterator)", "task.opened (builtin_function_or_method)",
        "Watch.parts (list)",
    }  # fmt: skip
