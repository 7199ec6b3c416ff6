import torch

from leyden.resume import checkpoints


def states(run):
    return [checkpoints.read(run / "checkpoints" / name)["state_dict"] for name in ("first.ckpt", "last.ckpt")]


def test_the_body_waits_and_the_head_learns(train, monkeypatch):
    from leyden.resume.keeper import Keeper

    save = Keeper.save

    def each_epoch(self, trainer, name):
        save(self, trainer, "first.ckpt" if trainer.current_epoch == 0 and name == "last.ckpt" else name)

    monkeypatch.setattr(Keeper, "save", each_epoch)
    run = train("model=cnn", "model.channels=[8]", "callbacks=[freeze]", "callbacks.freeze.until_epoch=1", "seed=3")
    from lightning import seed_everything

    from lab.models.cnn import CNN

    first, last = states(run)
    seed_everything(3, verbose=False)
    fresh = CNN([1, 8, 8], 10, channels=[8]).state_dict()
    body = [name for name in fresh if not name.startswith("head")]
    assert all(torch.equal(first[f"model.{name}"], fresh[name]) for name in body)  # running statistics too
    assert not torch.equal(first["model.head.weight"], fresh["head.weight"])
    assert not torch.equal(last["model.body.0.weight"], first["model.body.0.weight"])
