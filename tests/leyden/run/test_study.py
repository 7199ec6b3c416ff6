"""What a job asks the search."""

import pytest

from leyden.files import read_json, write_json
from leyden.run import study
from searches import started

optuna = pytest.importorskip("optuna")


def test_a_run_that_falls_behind_is_hopeless(tmp_path):
    found = started(tmp_path / "s", 6)
    found.pruner = {"_target_": "optuna.pruners.MedianPruner", "n_startup_trials": 2}
    said = read_json(tmp_path / "s" / "study.json") | {"pruner": found.pruner}
    write_json(tmp_path / "s" / "study.json", said)
    for number in list(found.propose(3)):
        (tmp_path / "s" / str(number)).mkdir()
        judge = study.judge(tmp_path / "s" / str(number), dict)
        told = [judge(value, epochs) for epochs, value in enumerate([0.5, 0.6] if number < 2 else [0.5, 0.1], 1)]
        assert told == [False, number == 2]
        assert judge(0.9, 2) is (number == 2)  # a validation that is done again after a stop counts once
        if number < 2:
            found.study.tell(number, 0.6)
            assert judge(0.0, 3) is False  # a run that somebody makes longer by hand
    assert found.trials()[2].intermediate_values == {1: 0.5, 2: 0.1}


def test_a_run_that_no_search_has_started_asks_nothing(tmp_path):
    (tmp_path / "3").mkdir()
    assert study.judge(tmp_path / "3", dict) is None
    started(tmp_path / "s", 1)
    assert study.judge(tmp_path / "s" / "name", dict) is None


def test_a_missing_package_is_a_sentence(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(study.UserError, match=r"pip install -e '.\[search\]'"):
        study.optuna()
