"""A benchmark from its config to its file; what it measures is tested in test_timing.py."""

import json
import re
from pathlib import Path
from statistics import median

import pytest

from benchmark import benchmark
from conftest import SMALL
from leyden import UserError

SHORT = ["rounds=2", "steps=3", "threads=1"]


def check(run: Path) -> dict:
    """The file of a benchmark, which is all that it leaves behind."""
    assert not [path for path in run.iterdir() if path.is_dir() and path.name != ".hydra"]
    found = json.loads((run / "benchmark.json").read_text())
    seconds = found["seconds_per_batch"]
    validation = {"bare validation", "Trainer validation"} if "validation" in found["ratio"] else set()
    assert set(seconds) == {"bare loop", "data alone", "compute alone", "Trainer", *validation}
    assert all(value > 0 for values in seconds.values() for value in values)
    ratios = [bare / whole for bare, whole in zip(seconds["bare loop"], seconds["Trainer"], strict=True)]
    assert len(ratios) == 2 and found["ratio"]["training"] == pytest.approx(median(ratios))
    assert re.match(r"The bottleneck is (compute|loading|Trainer); change \w+", found["bottleneck"])
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        ["scheduler=plateau", "callbacks=early_stopping", "trainer.accumulate_grad_batches=2", "profiler=simple"],
        ["data=ink", "model=rnn", "model.hidden=8", "trainer.precision=bf16-mixed", "data.batch_size=64"],
        ["data.augment=[{_target_: leyden.data.augment.ShiftCrop}]", "data.num_workers=1", "debug=fast"],
    ],
    ids=["plateau", "sequences", "augment"],
)
def test_it_measures_the_run_that_the_keys_describe(configure, keys):
    cfg = configure(*(SMALL if "data=ink" not in keys else []), *SHORT, *keys, config="benchmark")
    assert benchmark(cfg) > 0
    assert "validation" in check(Path(cfg.run_dir))["ratio"]
    assert json.loads((Path(cfg.run_dir) / "run.json").read_text())["status"] == "finished"


def test_it_measures_one_process(configure):
    with pytest.raises(UserError, match="must be 1, without torchrun"):
        benchmark(configure("trainer=ddp", config="benchmark"))


def test_the_command_prints_the_ratio_and_what_to_change(script, tmp_path):
    status, _, sentences = script("benchmark.py", "rouns=3", "modle=cnn")
    assert status == 2 and "rounds" in sentences and "model" in sentences
    status, said, errors = script(
        "benchmark.py", *SMALL, *SHORT, "data.val_fraction=0", f"log_dir='{tmp_path / 'logs'}'"
    )
    assert status == 0, errors
    (run,) = (tmp_path / "logs" / "benchmark").iterdir()
    found = check(run)
    assert {found["bottleneck"], f"Trainer/bare, training: {found['ratio']['training']:.2f}"} <= set(said.splitlines())
    assert "validation" not in found["ratio"]  # of no data


@pytest.mark.slow
def test_it_measures_how_training_grows(configure):
    sizes = ["sizes.samples=[1000,100]", "sizes.processes=[1,2]", "~sizes.batch", "~sizes.workers", "~sizes.width"]
    cfg = configure("scale=true", *sizes, *SHORT, config="benchmark")
    assert benchmark(cfg) > 0
    run = Path(cfg.run_dir)
    table = re.findall(r" (samples|processes) +(\d+) +([1-9]\d*) samples/s$", (run / "train.log").read_text(), re.M)
    assert [row[:2] for row in table] == [
        ("samples", "100"),
        ("samples", "1000"),
        ("processes", "1"),
        ("processes", "2"),
    ]
    assert sorted(path.name for path in run.iterdir()) == ["run.json", "scale.png", "train.log"]
