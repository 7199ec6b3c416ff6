import subprocess
import sys

import pytest
import torch

from lab.data.digits import Digits

READ = """
import sys
import lightning
before = set(sys.modules)
from lab.data.digits import Digits, Ink
for data in Digits(), Ink():
    data.facts
print([name for name in set(sys.modules) - before if name.split(".")[0] in ("pandas", "scipy", "sklearn")])
"""


def test_the_bundled_files_are_those_that_scikit_learn_reads():
    from sklearn.datasets import load_digits

    source, (x, y) = load_digits(), Digits().read("train")
    assert torch.equal(x[:, 0], torch.tensor(source.images * (255 / 16)).round().to(torch.uint8))
    assert torch.equal(y, torch.tensor(source.target))


@pytest.mark.slow
def test_nothing_heavy_is_imported_for_them():
    assert subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, check=True).stdout == "[]\n"
