"""Whatever is typed ends in a run or in a sentence: random keys of the config with random values."""

import random

import pytest
from omegaconf import OmegaConf

from conftest import SMALL
from leyden.launch import keys

VALUES = (
    "0", "-1", "7", "1.5", "-2.5", "1e30", "inf", "nan", "true", "off", "null", "''", "abc", "猫", "'é ü'", "1:30",
    "[]", "[1,2]", "[a]", "[null]", "{}", "{a:1}", "{_target_:torch.nn.ReLU}", "{_target_:nowhere.Net}", "'${x}'",
    "'${seed}'", "'${model}'", r"\${x}", "'???'", "'*'",
)  # fmt: skip
BASE = [*SMALL, "model.hidden=[4]", "callbacks=[ema]", "logger=[]", "debug=fast", "threads=1"]
ELSEWHERE = ("log_dir", "data_dir", "run_dir", "trainer.devices", "trainer.num_nodes", "data.num_workers")


MORE = [pytest.param(seed, marks=pytest.mark.stress) for seed in range(20, 200)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(20), *MORE])
def test_a_random_override(seed, script, configure, tmp_path):
    draw = random.Random(seed)
    flat = keys.flatten(OmegaConf.to_container(configure(*BASE), resolve=False))
    key, value = draw.choice([key for key in flat if not key.startswith(ELSEWHERE)]), draw.choice(VALUES)
    typed = draw.choice([f"~{key}", f"+{key}.more={value}", *[f"{key}={value}"] * 8])
    status, _, wrong = script("train.py", *BASE, typed, f"log_dir='{tmp_path}'")
    lines = wrong.count("\n")  # one for each mistake: a model that the typed key leaves unused is another
    assert "Traceback" not in wrong and (status == 0 or (status == 2 and lines in (1, 2))), (typed, wrong)
