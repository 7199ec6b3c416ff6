"""What `import leyden` does to the imports that come after it."""

import subprocess
import sys

import pytest

CODE = """
import sys, leyden, lightning, torch
from torchmetrics.classification import MulticlassConfusionMatrix
from torchmetrics.utilities import imports
assert not {"scipy", "matplotlib"} & set(sys.modules)
assert imports._SCIPY_AVAILABLE and imports._MATPLOTLIB_AVAILABLE
metric = MulticlassConfusionMatrix(3)
metric.update(torch.tensor([0, 1, 2]), torch.tensor([0, 1, 1]))
figure, axes = metric.plot()
assert figure.axes and "matplotlib" in sys.modules
import scipy.signal
"""


@pytest.mark.slow
def test_torchmetrics_finds_scipy_and_matplotlib_when_it_uses_them():
    subprocess.run([sys.executable, "-c", CODE], check=True)
