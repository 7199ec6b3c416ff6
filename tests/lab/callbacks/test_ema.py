import pytest
import torch

from lab.callbacks.ema import EMA, average
from leyden.resume import checkpoints


def test_the_average_follows_closely_at_first_and_then_by_its_decay():
    """After n updates the share of the old is min(decay, (1 + n) / (10 + n))."""
    found = expected = torch.zeros(3, dtype=torch.float64)
    for n in range(1, 60):
        share, new = min(0.8, (1 + n) / (10 + n)), torch.full((3,), float(n), dtype=torch.float64)
        found = average(found, new, torch.tensor(n), decay=0.8)
        expected = share * expected + (1 - share) * new
    assert torch.allclose(found, expected, rtol=1e-5)
    assert average(torch.tensor(3), torch.tensor(7), torch.tensor(5), 0.9) == 7  # what is counted is not averaged


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_type_of_the_weights_stays(dtype):
    assert average(torch.zeros(2, dtype=dtype), torch.ones(2, dtype=dtype), torch.tensor(1), 0.9).dtype == dtype


def test_it_updates_as_often_as_asked():
    assert [step for step in range(7) if EMA(update_every_n_steps=3).should_update(step)] == [0, 3, 6]


def test_the_number_of_updates_is_in_the_checkpoint(train):
    run = train("callbacks=[ema]")
    saved = checkpoints.read(run / "checkpoints" / "last.ckpt")
    assert saved["averaging_state"]["n_averaged"] == saved["global_step"] > 0
    assert not all(
        torch.equal(saved["state_dict"][name], saved["current_model_state"][name]) for name in saved["state_dict"]
    )
