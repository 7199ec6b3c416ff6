import os
import random

import pytest
import torch

from leyden import UserError
from leyden.resume import checkpoints


def test_a_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "last.ckpt"
    io = checkpoints.AtomicIO()
    io.save_checkpoint({"step": 1, "state_dict": {}}, path)
    with pytest.raises(UserError, match="step is a function"):
        io.save_checkpoint({"step": lambda: 2}, path)
    assert checkpoints.read(path)["step"] == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file"):
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
    parts = dict.fromkeys(("loops", "callbacks", "optimizer_states", "lr_schedulers", "pytorch-lightning_version"))
    entry = {"resumable": resumable, "files": {}, "running": [], **entry}
    checkpoints.AtomicIO().save_checkpoint({**parts, "state_dict": {}, "leyden": entry}, path)


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
    put(tmp_path / "best.ckpt", resumable=False, before=False)
    assert checkpoints.newest(tmp_path) == (None, {})  # of a validation before the first last.ckpt
    (tmp_path / "last.ckpt").write_bytes(b"")
    with pytest.raises(UserError, match=r"delete that folder.*last\.ckpt is damaged.*best\.ckpt holds weights alone"):
        checkpoints.newest(tmp_path)
    (tmp_path / "last.ckpt").unlink()
    put(tmp_path / "best.ckpt", resumable=False, before=True)
    with pytest.raises(UserError, match=r"best\.ckpt holds weights alone; init_from="):
        checkpoints.newest(tmp_path)
    (tmp_path / "best.ckpt").write_bytes(b"x")
    with pytest.raises(UserError, match=r"best\.ckpt is damaged"):
        checkpoints.newest(tmp_path)


def test_the_first_file_is_read_back(tmp_path):
    io, path = checkpoints.AtomicIO(), tmp_path / "last.ckpt"
    for what in (Hostile(), lambda: 1):
        with pytest.raises(UserError, match=r"last\.ckpt could not be loaded again: callbacks\.Mine\.history\.1 is a "):
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
    torch.save({name: value * float("nan") for name, value in weights.items()}, path)
    with pytest.raises(UserError, match="not finite"):
        checkpoints.load(module, path)
