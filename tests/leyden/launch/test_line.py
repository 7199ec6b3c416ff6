"""What is typed, split; and what --help says of it."""

import os
import re
import subprocess
import sys

import pytest

from leyden import UserError
from leyden.launch.line import open_screens, show_help, split
from leyden.run import paths


def test_split_sorts_overrides_from_flags():
    line = split(["a=1", "-cn", "other.yaml", "--cfg=job", "-m", "~b", "-cd", "x y", "+c=2"], "train")
    assert line.keys == ["a=1", "~b", "+c=2"]
    assert line.flags == {"--config-name": "other.yaml", "--cfg": "job", "--multirun": "", "--config-dir": "x y"}
    assert (line.config, line.multirun) == ("other", True)


def test_multirun_is_seen_in_every_spelling():
    for argv, multirun in (([], False), (["-m"], True), (["--multirun"], True), (["hydra.mode=MULTIRUN"], True)):
        assert split(argv, "train").multirun is multirun


def test_take_removes_plain_overrides_and_keeps_what_was_typed():
    line = split(["run='a b'", "+resume=c", "seed=1", "++resume=007", "run.x=1"], "train")
    assert line.take("run", "resume", "absent") == {"run": "a b", "resume": "007"}
    assert line.keys == ["seed=1", "run.x=1"]


@pytest.mark.parametrize("argv", [["--rate"], ["-cn"], ["--config-dir="], ["--cfg"]])
def test_a_flag_that_is_none_is_refused(argv):
    with pytest.raises(UserError, match=r"`--[a-z-]+` (is no flag|must be followed)"):
        split(argv, "train")


def test_help_offers_groups_with_their_options_and_keys_with_their_comments():
    text = show_help("train", paths.CONF)
    assert (
        re.search(r"^model         cnn .*mlp .*resnet", text, re.M) and "_loader" not in text and "hydra/" not in text
    )
    assert "  - model: cnn\n" in text and "log_dir: logs           # folder of all runs" in text
    assert all(len(line) <= 100 for line in text.partition("Choices and")[0].splitlines())


def test_a_config_that_inherits_has_the_groups_and_keys_of_both():
    text = show_help("benchmark", paths.CONF)
    assert "optimizer     ada" in text and "objective: val/acc" in text and "rounds: 5" in text
    assert "optimizer" not in show_help("eval", paths.CONF)


SAYS = """
import sys
from leyden import Failed
from leyden.launch.line import answering
with answering():
    for number in range(50_000):
        print("猫", number)
    print("at its end", file=sys.stderr)
    raise Failed("no 犬")
"""


@pytest.mark.parametrize("flags", [[], ["-u"]])
def test_a_screen_lacks_letters_and_a_reader_goes(flags):
    env = os.environ | {"PYTHONIOENCODING": "latin-1", "PYTHONPATH": str(paths.PROJECT / "src")}
    line = [sys.executable, *flags, "-c", SAYS]
    with subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "? 0\n"
        process.stdout.close()  # as head does
        assert process.stderr.read() == "at its end\nno ?\n"
    assert process.returncode == 1


def test_a_stream_of_somebody_else_is_left_alone(capsys):
    before = sys.stdout, sys.stderr
    open_screens()
    assert (sys.stdout, sys.stderr) == before
