"""What only a GPU does: precisions, compile, process groups, memory, exact resume, and no wait of the host."""

import gc
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from omegaconf import OmegaConf, open_dict
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.profiler import ProfilerActivity, profile

from leyden import UserError
from leyden.resume import checkpoints
from leyden.run import build
from leyden.run.run import Run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
GPU = ["trainer.accelerator=gpu", "trainer.num_sanity_val_steps=0"]


def weights(run):
    return checkpoints.read(run / "checkpoints" / "last.ckpt")["state_dict"]


def finished(run):
    record = Run(run).record
    assert record["status"] == "finished" and record["device"].startswith("cuda")
    assert all(value.isfinite().all() for value in weights(run).values() if value.is_floating_point())
    return record


@pytest.fixture
def watched(monkeypatch):
    """More callbacks of a run, behind the keeper."""

    def add(*callbacks):
        watchers = build.watchers

        def more(cfg):
            keeper, *others = watchers(cfg)
            return [keeper, *callbacks, *others]

        monkeypatch.setattr(build, "watchers", more)

    return add


@pytest.mark.parametrize("precision", ["32-true", "16-mixed", "bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_each_precision_trains(train, precision, model):
    record = finished(train(*GPU, f"model={model}", f"trainer.precision={precision}"))
    assert record["precision"] == precision


def test_the_scaler_is_saved(train):
    run = train(*GPU, "trainer.precision=16-mixed")
    state = checkpoints.read(run / "checkpoints" / "last.ckpt")
    assert any("scale" in part for part in state.values() if isinstance(part, dict))


def test_tf32_is_used_when_asked(train):
    finished(train(*GPU, "matmul_precision=high"))
    assert torch.get_float32_matmul_precision() == "high"
    finished(train(*GPU, folder="highest"))
    assert torch.get_float32_matmul_precision() == "highest"


def test_the_cnn_works_in_channels_last(train, watched):
    seen = []

    class Look(Callback):
        def on_train_start(self, trainer, task):
            kernel = next(p for p in task.model.parameters() if p.ndim == 4 and p.shape[1] > 1)
            seen.append(kernel.is_contiguous(memory_format=torch.channels_last))

    watched(Look())
    finished(train(*GPU, "model=cnn"))
    assert seen == [True]


@pytest.mark.slow
def test_compile_comes_close_to_eager(train):
    keys = [*GPU, "model.dropout=0", "trainer.max_epochs=1"]
    eager, compiled = (weights(train(*keys, f"task.compile={on}", folder=on)) for on in ("false", "true"))
    assert set(eager) == set(compiled)
    for name, value in eager.items():
        torch.testing.assert_close(value, compiled[name], rtol=1e-2, atol=1e-3)


def grouped(configure, *keys):
    """A run in a process group of one, as it is with several devices."""
    from conftest import SMALL
    from train import train

    cfg = configure(*SMALL, "trainer.max_epochs=1", "trainer.num_sanity_val_steps=0", *keys)
    with open_dict(cfg):
        cfg.trainer.update(accelerator="gpu", devices=1)
    try:
        train(cfg)
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    return Path(cfg.run_dir)


def test_ddp_on_one_device_uses_nccl(configure, watched):
    seen = []

    class Look(Callback):
        def on_train_start(self, trainer, task):
            seen.append(torch.distributed.get_backend())

    watched(Look())
    finished(grouped(configure, "trainer=ddp"))
    assert seen == ["nccl"]


def test_fsdp_on_one_device(configure):
    finished(grouped(configure, "trainer=fsdp"))


def test_the_memory_callback(train):
    run = train(*GPU, "callbacks=[memory]", "callbacks.memory.empty_cache=true")
    board = EventAccumulator(str(run / "tensorboard")).Reload()
    peak, allocated = (board.Scalars(f"memory/train_{name}")[-1].value for name in ("peak", "allocated"))
    assert peak >= allocated > 0


def test_out_of_memory_leaves_a_summary_and_a_sentence(train, configure, monkeypatch):
    from lab.tasks.classification import Classification

    def fill(self, batch, batch_idx):
        return torch.empty(2**50, dtype=torch.int8, device=self.device).float().mean()

    monkeypatch.setattr(Classification, "training_step", fill)
    with pytest.raises(UserError, match=r"Out of memory .*data.batch_size=8 .*callbacks=.memory"):
        train(*GPU, "callbacks=[memory]")
    run = Path(configure().run_dir)
    assert "When it was full, memory held:" in (run / "train.log").read_text()
    gc.collect()


@pytest.mark.parametrize("fused", ["true", "false"])
def test_gradients_are_measured_after_unscaling(train, fused):
    """Under a loss scale of 2 ** 16 they have the norm that they have in float32."""
    norms = []
    for precision in ("32-true", "16-mixed"):
        run = train(*GPU, "callbacks=[gradients]", f"trainer.precision={precision}", f"optimizer.fused={fused}",
                    "model.dropout=0", "trainer.max_steps=1", folder=precision)  # fmt: skip
        board = EventAccumulator(str(run / "tensorboard")).Reload()
        norms.append(board.Scalars("gradients/norm/model.head.weight")[0].value)
    assert norms[0] == pytest.approx(norms[1], rel=0.1)


def test_clipping_comes_after_unscaling(train, watched):
    """What an optimizer of 16-mixed gets has the norm that was asked for, not one of scaled gradients."""
    norms = []

    class Look(Callback):
        def on_before_zero_grad(self, trainer, task, optimizer):
            grads = [p.grad for p in task.parameters() if p.grad is not None]
            norms.extend([float(torch.nn.utils.get_total_norm(grads))] if grads else [])

    watched(Look())
    finished(train(*GPU, "trainer.precision=16-mixed", "trainer.gradient_clip_val=0.01", "data.num_samples=400"))
    finite = [norm for norm in norms if norm < float("inf")]
    assert finite and all(norm <= 0.0101 for norm in finite) and max(finite) > 0.0099


def test_a_run_that_was_stopped_comes_to_the_same_bits(train, configure, watched, monkeypatch):
    from conftest import SMALL
    from train import train as start

    keys = [*SMALL, *GPU, "model=cnn", "model.dropout=0.2", "trainer.max_epochs=2", "trainer.deterministic=true",
            "trainer.precision=16-mixed", "checkpoint.every_n_steps=2"]  # fmt: skip
    whole = configure(*keys, folder="whole")
    start(whole)

    class Stopper(Callback):
        def on_train_batch_end(self, trainer, task, *_):
            if trainer.global_step == 7:
                raise InterruptedError

    broken = configure(*keys, folder="broken")
    with monkeypatch.context() as patch:
        watchers = build.watchers
        patch.setattr(build, "watchers", lambda cfg: [*(kept := watchers(cfg))[:1], Stopper(), *kept[1:]])
        with pytest.raises(InterruptedError):
            start(broken)
    again = OmegaConf.load(Path(broken.run_dir) / "config.yaml")
    again.run_dir = again.resume = broken.run_dir
    start(again)
    found = [Run(Path(cfg.run_dir)).metrics for cfg in (whole, broken)]
    for name in ("weights_sha256", "best", "train", "val", "test"):
        assert found[0][name] == found[1][name], name


def test_the_host_does_not_wait_in_a_step(train, watched):
    """Between two logged steps no copy to the host, and no synchronisation."""
    calls: list[str] = []

    class Look(Callback):
        def on_train_batch_start(self, trainer, task, batch, batch_idx):
            if trainer.global_step == 6:
                torch.cuda.synchronize()
                self.profiler = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
                self.profiler.start()

        def on_train_batch_end(self, trainer, task, *_):
            if trainer.global_step == 10:
                self.profiler.stop()
                calls.extend(event.name for event in self.profiler.events())

    watched(Look())
    train(*GPU, "data.num_samples=600", "trainer.max_epochs=1", "trainer.log_every_n_steps=1000")
    assert any("LaunchKernel" in name for name in calls)
    waits = [name for name in calls if "Synchronize" in name or name == "aten::_local_scalar_dense" or "DtoH" in name]
    assert len([name for name in waits if "DeviceSynchronize" not in name]) == 0, waits  # the profiler's own
