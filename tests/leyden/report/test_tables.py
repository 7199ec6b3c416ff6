import itertools
import math
import statistics

import pytest

from leyden import UserError
from leyden.report.formats import cells, text
from leyden.report.results import read
from leyden.report.tables import differing, table, tables
from synthetic import write


def values(made):
    return made.results.value.tolist()


def settings(made):
    return made.settings.to_dict("records")


def make(tmp_path, runs):
    """Runs of (value, keys[, record])."""
    return [read(write(tmp_path / str(n), run[0], run[1], **(run[2:] or [{}])[0])) for n, run in enumerate(runs)]


def test_only_what_differs_is_a_column_and_the_best_comes_first(tmp_path):
    runs = make(tmp_path, [(v, {"optimizer.lr": lr, "name": str(lr), "log_dir": str(lr)}) for v, lr in
                           ((0.5, 0.1), (0.9, 0.01), (0.7, 0.001))])  # fmt: skip
    made = table(runs, "val/acc")
    assert list(made.settings) == ["optimizer.lr"] and values(made) == [0.9, 0.7, 0.5]
    assert settings(made) == [{"optimizer.lr": lr} for lr in (0.01, 0.001, 0.1)]


def test_less_is_better_for_a_loss_or_where_the_config_says_so(tmp_path):
    for n, keys in enumerate(({"objective": "val/loss"}, {"checkpoint.mode": "min"})):
        runs = make(tmp_path / str(n), [(v, keys | {"optimizer.lr": v}) for v in (0.5, 0.2, 0.9)])
        assert values(tables(runs)[0]) == [0.2, 0.5, 0.9]


def test_what_nobody_can_rank_is_shown_in_order(tmp_path):
    keys = {"objective": "val/energy", "checkpoint.monitor": "val/acc"}
    (made,) = tables(make(tmp_path, [(v, keys | {"optimizer.lr": v}) for v in (0.5, 0.2, 0.9)]))
    assert made.mode is None and values(made) == [0.5, 0.2, 0.9]
    assert "val/energy, not ranked" in text(made, 200)


def test_seeds_and_folds_are_one_row_with_the_sample_deviation(tmp_path):
    pairs = list(itertools.product((0, 1, 2), (0, 1)))
    best = [0.5 + 0.01 * n**2 for n in range(6)]
    runs = make(tmp_path, [(v, {"seed": s, "data.fold": f}) for v, (s, f) in zip(best, pairs, strict=True)])
    made = table(runs, "val/acc")
    (row,) = made.results.to_dict("records")
    assert made.settings.empty and row["n"] == 6 and row["status"] == "finished" and row["runs"] == runs
    assert row["value"] == pytest.approx(statistics.mean(best)) and row["std"] == pytest.approx(statistics.stdev(best))
    assert row["test"] == pytest.approx(row["value"] - 0.01) and row["test_std"] == pytest.approx(row["std"])


def test_the_same_run_twice_is_no_second_sample(tmp_path):
    runs = make(tmp_path, [(0.5, {"seed": 0}), (0.7, {"seed": 1}), (0.5, {"seed": 0})])
    assert sorted(table(runs, "val/acc").results.n) == [1, 2]


def test_a_seed_is_a_column_where_no_row_has_several(tmp_path):
    runs = make(tmp_path, [(0.5, {"seed": 0, "optimizer.lr": 1}), (0.7, {"seed": 1, "optimizer.lr": 2})])
    assert list(table(runs, "val/acc").settings) == ["seed", "optimizer.lr"]


def test_failed_runs_do_not_count_and_do_not_win(tmp_path):
    runs = make(tmp_path, [(0.5, {"seed": 0}), (0.99, {"seed": 1}, {"status": "failed"}),
                           (0.999, {"optimizer.lr": 1}, {"status": "failed"}),
                           (None, {"optimizer.lr": 2}, {"status": "failed"})])  # fmt: skip
    rows = table(runs, "val/acc").results
    assert rows.value.tolist() == pytest.approx([0.5, 0.999, math.nan], nan_ok=True) and rows.n.tolist() == [1, 1, 0]
    assert rows.status.tolist() == ["1 finished, 1 failed", "failed", "failed"]


def test_no_number_is_last_and_stays_what_it_is(tmp_path):
    runs = make(
        tmp_path, [(float("nan"), {"optimizer.lr": 1}), (0.1, {"optimizer.lr": 2}), (None, {"optimizer.lr": 3})]
    )
    made = table(runs, "val/acc")
    assert [row[1] for row in cells(made).loc[:, ["run", "val/acc"]].to_numpy()] == ["0.1000", "nan", "-"]
    assert made.results.n.tolist() == [1, 1, 0]


def test_a_seed_without_a_number_is_not_left_out_of_the_mean(tmp_path):
    runs = make(tmp_path, [(0.5, {"seed": 0}), (float("nan"), {"seed": 1}), (float("inf"), {"seed": 2})])
    made = table(runs[:2], "val/acc")
    assert math.isnan(made.results.value[0]) and made.results.n[0] == 2 and cells(made)["val/acc"][0] == "nan"
    assert cells(table([runs[0], runs[2]], "val/acc"))["val/acc"][0] == "inf"


def test_of_two_classes_the_name_says_it(tmp_path):
    cnn = {"model": {"_target_": "lab.models.cnn.CNN", "channels": [8], "dropout": 0.0}}
    runs = make(tmp_path, [(0.5, {}), (0.6, cnn)])
    assert differing(runs) == ["model._target_"]
    assert settings(table(runs, "val/acc")) == [{"model": "cnn"}, {"model": "mlp"}]
    runs += make(tmp_path / "more", [(0.7, {"model.hidden": [4]})])  # among the runs of one class its arguments count
    assert differing(runs) == ["model._target_", "model.hidden"]
    typed = make(tmp_path / "typed", [(0.5, {}, {"overrides": ["model.dropout=0.1"]}), (0.6, cnn)])
    assert differing(typed) == ["model._target_", "model.dropout"]


def test_the_option_is_shown_as_it_was_typed(tmp_path):
    runs = make(tmp_path, [(0.5, {"task._target_": "a.B"}, {"overrides": ["task=two", "seed=1"]}), (0.6, {})])
    assert table(runs, "val/acc").settings.task.tolist() == ["classification", "two"]


def test_what_is_only_written_differently_does_not_differ(tmp_path):
    assert differing(make(tmp_path, [(0.5, {}), (0.5, {"checkpoint.monitor": "val/acc"}), (1, {"seed": 1})])) == [
        "seed"
    ]
    assert differing(make(tmp_path / "b", [(0.5, {"seed": 1}), (0.5, {"seed": 2})])) == ["seed"]  # not data.seed


def test_each_objective_has_a_table_of_its_own(tmp_path):
    runs = make(tmp_path, [(0.5, {"objective": "val/mse"}), (0.6, {}), (0.7, {"optimizer.lr": 2})])
    assert [(made.metric, made.mode, len(made.results)) for made in tables(runs)] == [
        ("val/acc", "max", 2), ("val/mse", "min", 1),
    ]  # fmt: skip


def test_another_metric_ranks_and_a_wrong_one_is_answered(tmp_path):
    runs = make(tmp_path, [(0.5, {"optimizer.lr": 1}), (0.6, {"optimizer.lr": 2})])
    (made,) = tables(runs, "test/acc")
    assert made.test is None and values(made) == pytest.approx([0.59, 0.49])
    assert tables(runs, "train/loss")[0].mode == "min"
    with pytest.raises(UserError, match="did you mean val/acc"):
        tables(runs, "val/ac")
    assert tables(make(tmp_path / "b", [(None, {}, {"status": "failed"})]))[0].results.n.tolist() == [0]
