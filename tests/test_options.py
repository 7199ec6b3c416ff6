"""An option at its defaults does not ruin the default run."""

import pytest

from leyden.run.run import Run

USUAL = 0.99  # test accuracy of the default run


@pytest.mark.slow
@pytest.mark.parametrize(
    "option",
    ["callbacks=[ema]", "callbacks=[freeze]", "model=mlp", "optimizer=rmsprop", "optimizer=sgd", "scheduler=plateau",
     "scheduler=step", "task/loss=focal"],
)  # fmt: skip
def test_an_option_at_its_defaults_is_as_good_as_the_default(trained, option):
    """Those that change the weights; what only watches, and the other options, came to 0.985 to 0.993, too."""
    run = trained(option.replace("/", "."), "trainer.max_epochs=20", option)
    assert Run(run).metrics["test"]["test/acc"] == pytest.approx(USUAL, abs=0.03)
