import pytest
import torch

from leyden import UserError, checkpoints


def test_a_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "last.ckpt"
    io = checkpoints.AtomicIO()
    io.save_checkpoint({"step": 1, "state_dict": {}}, path)
    with pytest.raises(Exception, match="pickle"):
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
