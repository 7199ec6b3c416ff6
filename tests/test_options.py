"""An option at its defaults does not ruin the default run."""

import pytest

from leyden.run.run import Run

ALIKE = [
    pytest.param(option, marks=pytest.mark.stress)
    for option in ("model=mlp", "optimizer=rmsprop", "scheduler=step", "task/loss=focal")
]
USUAL = 0.99  # test accuracy of the default run


@pytest.mark.slow
@pytest.mark.parametrize(
    "option",
    ["callbacks=[ema]", "callbacks=[freeze]", "optimizer=sgd", "scheduler=plateau", *ALIKE],
)
def test_an_option_at_its_defaults_is_as_good_as_the_default(trained, option):
    """Those that change the weights; what only watches, and the other options, came to 0.985 to 0.993, too."""
    run = trained(option.replace("/", "."), "trainer.max_epochs=20", option)
    assert Run(run).metrics["test"]["test/acc"] == pytest.approx(USUAL, abs=0.03)
