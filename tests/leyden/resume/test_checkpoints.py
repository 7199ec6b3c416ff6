import os
import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf, open_dict
from torch import nn

from conftest import SMALL
from foreign.habit import Habit
from leyden import UserError
from leyden.resume import checkpoints
from leyden.run.run import Run


def test_a_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "last.ckpt"
    io = checkpoints.AtomicIO()
    io.save_checkpoint({"step": 1, "state_dict": {}}, path)
    with pytest.raises(UserError, match=r"could not be loaded again.*lambda"):
        io.save_checkpoint({"step": lambda: 2}, path)
    assert checkpoints.read(path)["step"] == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/last\.ckpt cannot be written \([^;]*\)\.$"):
        checkpoints.AtomicIO().save_checkpoint({}, tmp_path / "file" / "last.ckpt")


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "object"])
def test_what_is_no_plain_checkpoint_is_refused(tmp_path, damage):
    path = tmp_path / "last.ckpt"
    torch.save({"x": torch.zeros(1000)} if damage != "object" else {"x": pytest.raises}, path)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:1000])
    elif damage != "object":
        path.write_text("" if damage == "empty" else "hello")
    with pytest.raises(UserError, match=r"last\.ckpt"):
        checkpoints.read(path)
    with pytest.raises(UserError, match=r"no checkpoint"):
        checkpoints.read(tmp_path / "none.ckpt")


def test_the_hash_sees_names_bits_and_not_the_order():
    a, b = torch.zeros(2), torch.ones(2, dtype=torch.bfloat16)
    first = checkpoints.sha256({"a": a, "b": b})
    assert first == checkpoints.sha256({"b": b, "a": a})
    assert first != checkpoints.sha256({"a": a, "c": b})
    assert first != checkpoints.sha256({"a": -a, "b": b})
    assert first != checkpoints.sha256({"a": a, "b": b.float()})


def test_each_flipped_bit_is_seen(tmp_path):
    """torch.load alone takes nine of ten flips for data."""
    path, draw = tmp_path / "last.ckpt", random.Random(0)
    content = {"state_dict": {name: torch.randn(100) for name in "ab"}, "leyden": {"step": 3}}
    checkpoints.AtomicIO().save_checkpoint(content, path)
    raw = path.read_bytes()
    for _ in range(300):
        flipped = bytearray(raw)
        flipped[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        try:
            found = checkpoints.read(path)
        except UserError:
            continue
        assert all(torch.equal(found["state_dict"][name], content["state_dict"][name]) for name in "ab")
        assert found["leyden"] == content["leyden"]


class Hostile:
    def __reduce__(self):
        return os.system, ("touch ran",)


def test_what_is_more_than_data_is_named_and_never_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": {}, "more": Hostile()}, "last.ckpt")
    with pytest.raises(UserError, match=r"last\.ckpt holds (posix|os)\.system, which is no plain data"):
        checkpoints.read("last.ckpt")
    assert not (tmp_path / "ran").exists()


def put(path, resumable=True, **entry):
    """A checkpoint as the run writes it, but for its content."""
    entry = {"resumable": resumable, **dict.fromkeys(checkpoints.NEEDED), **entry}
    checkpoints.AtomicIO().save_checkpoint({"state_dict": {}, "leyden": entry}, path)


def test_the_newest_whole_checkpoint_is_found(tmp_path, caplog):
    for name, resumable in (("best.ckpt", True), ("last.ckpt", True), ("other.ckpt", False)):
        put(tmp_path / name, resumable)
    assert checkpoints.newest(tmp_path)[0].name == "last.ckpt"
    with pytest.raises(UserError, match=r"init_from=.*other\.ckpt"):
        checkpoints.newest(tmp_path, str(tmp_path / "other.ckpt"))
    (tmp_path / "last.ckpt").write_bytes(b"")
    assert checkpoints.newest(tmp_path)[0].name == "best.ckpt" and "last.ckpt is damaged" in caplog.text


def test_checkpoints_that_cannot_be_read_are_never_passed_over(tmp_path):
    assert checkpoints.newest(tmp_path / "none") == checkpoints.newest(tmp_path) == (None, {})
    put(tmp_path / "best.ckpt", resumable=False, first=True)
    assert checkpoints.newest(tmp_path) == (None, {})  # of a validation before the first last.ckpt
    (tmp_path / "last.ckpt").write_bytes(b"")
    with pytest.raises(UserError, match=r"delete .* to start again.*last\.ckpt is damaged"):
        checkpoints.newest(tmp_path)
    (tmp_path / "last.ckpt").unlink()
    put(tmp_path / "best.ckpt", resumable=False)
    with pytest.raises(UserError, match=r"best\.ckpt holds weights alone; init_from="):
        checkpoints.newest(tmp_path)
    (tmp_path / "best.ckpt").write_bytes(b"x")
    with pytest.raises(UserError, match=r"best\.ckpt is damaged"):
        checkpoints.newest(tmp_path)


def test_the_first_file_is_read_back(tmp_path):
    io, path = checkpoints.AtomicIO(), tmp_path / "last.ckpt"
    for what, named in ((Hostile(), "system"), (lambda: 1, "lambda")):
        with pytest.raises(UserError, match=rf"last\.ckpt could not be loaded again.*{named}"):
            io.save_checkpoint({"state_dict": {}, "callbacks": {"Mine": {"history": [1, what]}}}, path)
        assert not list(tmp_path.iterdir())
    io.save_checkpoint({"state_dict": {}}, path)
    assert checkpoints.read(path) == {"state_dict": {}}


def test_weights_of_other_makes_are_taken(tmp_path):
    module, path = torch.nn.Sequential(torch.nn.Linear(2, 3)), tmp_path / "old.pth"
    weights = {f"module.{name}": torch.ones_like(value) for name, value in module.state_dict().items()}
    torch.save({"state_dict": weights | {"epoch": 3}}, path, _use_new_zipfile_serialization=False)
    checkpoints.load(module, path)
    assert all(torch.equal(value, torch.ones_like(value)) for value in module.state_dict().values())
    torch.save({"0.weight": torch.zeros(3, 2), "0.bias": torch.zeros(4), "1.bias": torch.zeros(3)}, path)
    with pytest.raises(UserError, match=r"0\.bias, 1\.bias are missing, too many, or of another shape"):
        checkpoints.load(module, path)
    checkpoints.load(module, path, strict=False)
    assert not module[0].weight.any() and module[0].bias.all()
    torch.save({"step": 1}, path)
    with pytest.raises(UserError, match="no weights that fit"):
        checkpoints.load(module, path, strict=False)


def test_plain_hyper_parameters_stay_and_objects_go():
    lr, conf = {"warmup": [1, 2.5, None, True]}, OmegaConf.create({"a": 1})
    given = {"width": 3, "lr": lr, "net": torch.nn.Linear(1, 1), "optimizer": partial(torch.optim.SGD), "conf": conf}
    given |= {"mixed": [1, partial(int)], "root": Path("x"), "mean": np.float64(1)}
    checkpoint = {"hyper_parameters": given, "hparams_type": type(conf), "datamodule_hyper_parameters": conf}
    assert sorted(checkpoints.leave_out_objects(checkpoint)) == ["mean", "mixed", "net", "optimizer", "root"]
    plain = {"width": 3, "lr": lr, "conf": {"a": 1}}
    assert checkpoint == {"hyper_parameters": plain, "datamodule_hyper_parameters": {"a": 1}}
    assert type(checkpoint["datamodule_hyper_parameters"]) is dict and "net" in given  # the module keeps its own


def test_a_module_that_saves_all_its_arguments_is_tested_and_goes_on(configure):
    from train import train

    cfg = configure(*SMALL, "trainer.max_epochs=1", "scheduler=constant")
    parts = {name: f"${{{source}}}" for name, source in
             (("net", "model"), ("optimizer", "optimizer"), ("scheduler", "scheduler"))}  # fmt: skip
    with open_dict(cfg):
        cfg.task = {"_target_": "foreign.habit.Habit", **parts, "width": 5}
    train(cfg)
    run = Path(cfg.run_dir)
    record, metrics = Run(run).record, Run(run).metrics
    assert record["status"] == "finished" and metrics["test"]["test/acc"] >= 0
    assert record["hyper_parameters_left_out"] == ["net", "optimizer", "scheduler"]
    assert (run / "train.log").read_text().count("The checkpoints hold no net, optimizer, scheduler") == 1

    best = run / "checkpoints" / "best.ckpt"
    loaded = Habit.load_from_checkpoint(best, net=instantiate(cfg.model), optimizer=None, scheduler=None)
    assert loaded.hparams.width == 5
    saved = checkpoints.read(best)["state_dict"]
    assert all(torch.equal(value, saved[name]) for name, value in loaded.state_dict().items())

    again = OmegaConf.load(run / "config.yaml")
    again.update({"run_dir": str(run), "resume": str(run), "trusted": ["foreign"]})
    again.trainer.max_epochs = 2
    train(again)
    assert checkpoints.read(run / "checkpoints" / "last.ckpt")["global_step"] == 2 * metrics["best"]["step"]


@pytest.mark.slow
def test_weights_of_a_compiled_part_fit_one_that_is_not(tmp_path):
    plain, compiled = (nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)) for _ in range(2))
    compiled[0] = torch.compile(compiled[0])
    for one, other in ((plain, compiled), (compiled, plain)):
        torch.save({"state_dict": one.state_dict()}, tmp_path / "a.ckpt")
        other[1].weight.data.zero_()
        checkpoints.load(other, tmp_path / "a.ckpt")
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
