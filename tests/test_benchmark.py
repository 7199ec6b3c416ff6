"""A benchmark from its config to its file; what it measures is tested in test_timing.py."""

import json
from pathlib import Path

import pytest

from benchmark import benchmark
from conftest import SMALL
from leyden import UserError

SHORT = ["rounds=2", "steps=3", "threads=1"]


def check(run: Path, splits: set[str]) -> dict:
    """The file of a benchmark, which is all that it leaves behind."""
    assert not [path for path in run.iterdir() if path.is_dir() and path.name != ".hydra"]
    found = json.loads((run / "benchmark.json").read_text())
    assert set(found) == {"ratio", "bottleneck", "exactness", *splits}
    assert found["ratio"] == found["train"]["ratio"] > 0
    for split in splits:
        assert sum(found[split]["shares"].values()) == pytest.approx(1, abs=1e-3)
        first, second = found[split]["seconds_per_step"]
        for name, spread in found[split]["us_per_step"].items():
            assert spread["median"] == pytest.approx(1e6 * (first[name] + second[name]) / 2, rel=1e-3)
            assert found[split]["samples_per_second"][name] > 0
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        ["scheduler=plateau", "callbacks=early_stopping", "trainer.accumulate_grad_batches=2", "profiler=simple"],
        ["data=ink", "model=rnn", "model.hidden=8", "trainer.precision=bf16-mixed"],
        [
            "data.augment=[{_target_: leyden.data.augment.ShiftCrop}]",
            "data.num_workers=1",
            "debug=fast",
            "logger=tensorboard",
        ],
    ],
    ids=["plateau", "sequences", "augment"],
)
def test_it_measures_the_run_that_the_keys_describe(configure, keys):
    small = SMALL if "data=ink" not in keys else ["data.batch_size=64"]
    cfg = configure(*small, *SHORT, *keys, config="benchmark")
    assert benchmark(cfg) > 0
    check(Path(cfg.run_dir), {"train", "val"})
    assert json.loads((Path(cfg.run_dir) / "run.json").read_text())["status"] == "finished"


def test_without_validation_data_only_training_is_measured(configure):
    cfg = configure(*SMALL, *SHORT, "data.val_fraction=0", config="benchmark")
    benchmark(cfg)
    check(Path(cfg.run_dir), {"train"})


def test_it_measures_one_process(configure):
    with pytest.raises(UserError, match="one process"):
        benchmark(configure("trainer=ddp", config="benchmark"))


def test_the_command_prints_the_ratio_and_what_to_change(script, tmp_path):
    status, _, sentences = script("benchmark.py", "rouns=3", "modle=cnn")
    assert status == 2 and "rounds" in sentences and "model" in sentences
    status, said, errors = script("benchmark.py", *SMALL, *SHORT, f"log_dir='{tmp_path / 'logs'}'")
    assert status == 0, errors
    (run,) = (tmp_path / "logs" / "benchmark").iterdir()
    found = check(run, {"train", "val"})
    lines = said.splitlines()
    assert [line for line in lines if line.startswith("Trainer/bare")] == [
        f"Trainer/bare {found[split]['ratio']:.2f}" for split in ("train", "val")
    ]
    assert found["bottleneck"] in lines
