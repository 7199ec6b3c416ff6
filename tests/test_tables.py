import itertools
import math
import statistics

import pytest

from leyden import UserError
from leyden.formats import text
from leyden.results import read
from leyden.tables import differing, spread, table, tables
from synthetic import write


def make(tmp_path, runs):
    """Runs of (value, keys[, record])."""
    return [read(write(tmp_path / str(n), run[0], run[1], **(run[2:] or [{}])[0])) for n, run in enumerate(runs)]


def test_only_what_differs_is_a_column_and_the_best_comes_first(tmp_path):
    runs = make(tmp_path, [(v, {"optimizer.lr": lr, "name": str(lr), "log_dir": str(lr)}) for v, lr in
                           ((0.5, 0.1), (0.9, 0.01), (0.7, 0.001))])  # fmt: skip
    made = table(runs, "val/acc")
    assert made.columns == ["optimizer.lr"] and [row.value for row in made.rows] == [0.9, 0.7, 0.5]
    assert [row.settings for row in made.rows] == [{"optimizer.lr": lr} for lr in (0.01, 0.001, 0.1)]


def test_less_is_better_for_a_loss_or_where_the_config_says_so(tmp_path):
    for n, keys in enumerate(({"objective": "val/loss"}, {"checkpoint.mode": "min"})):
        runs = make(tmp_path / str(n), [(v, keys | {"optimizer.lr": v}) for v in (0.5, 0.2, 0.9)])
        assert [row.value for row in tables(runs)[0].rows] == [0.2, 0.5, 0.9]


def test_what_nobody_can_rank_is_shown_in_order(tmp_path):
    keys = {"objective": "val/energy", "checkpoint.monitor": "val/acc"}
    (made,) = tables(make(tmp_path, [(v, keys | {"optimizer.lr": v}) for v in (0.5, 0.2, 0.9)]))
    assert made.mode is None and [row.value for row in made.rows] == [0.5, 0.2, 0.9]
    assert "val/energy, not ranked" in text(made, 200)


def test_seeds_and_folds_are_one_row_with_the_sample_deviation(tmp_path):
    pairs = list(itertools.product((0, 1, 2), (0, 1)))
    values = [0.5 + 0.01 * n**2 for n in range(6)]
    runs = make(tmp_path, [(v, {"seed": s, "data.fold": f}) for v, (s, f) in zip(values, pairs, strict=True)])
    made = table(runs, "val/acc")
    (row,) = made.rows
    assert made.columns == [] and row.n == 6 and row.status == "finished"
    assert row.value == pytest.approx(statistics.mean(values)) and row.std == pytest.approx(statistics.stdev(values))
    assert row.test == pytest.approx(row.value - 0.01) and row.test_std == pytest.approx(row.std)


def test_the_same_run_twice_is_no_second_sample(tmp_path):
    runs = make(tmp_path, [(0.5, {"seed": 0}), (0.7, {"seed": 1}), (0.5, {"seed": 0})])
    assert sorted(row.n for row in table(runs, "val/acc").rows) == [1, 2]


def test_a_seed_is_a_column_where_no_row_has_several(tmp_path):
    runs = make(tmp_path, [(0.5, {"seed": 0, "optimizer.lr": 1}), (0.7, {"seed": 1, "optimizer.lr": 2})])
    assert table(runs, "val/acc").columns == ["seed", "optimizer.lr"]


def test_failed_runs_do_not_count_and_do_not_win(tmp_path):
    runs = make(tmp_path, [(0.5, {"seed": 0}), (0.99, {"seed": 1}, {"status": "failed"}),
                           (0.999, {"optimizer.lr": 1}, {"status": "failed"}),
                           (None, {"optimizer.lr": 2}, {"status": "failed"})])  # fmt: skip
    rows = table(runs, "val/acc").rows
    assert [(row.value, row.n, row.status) for row in rows] == [
        (0.5, 1, "1 finished, 1 failed"), (0.999, 1, "failed"), (None, 0, "failed"),
    ]  # fmt: skip


def test_no_number_is_last_and_stays_what_it_is(tmp_path):
    runs = make(
        tmp_path, [(float("nan"), {"optimizer.lr": 1}), (0.1, {"optimizer.lr": 2}), (None, {"optimizer.lr": 3})]
    )
    values = [row.value for row in table(runs, "val/acc").rows]
    assert values[0] == 0.1 and math.isnan(values[1]) and values[2] is None
    assert spread([1.0, float("inf")]) == (float("inf"), None) and spread([]) == (None, None)


def test_of_two_classes_the_name_says_it(tmp_path):
    cnn = {"model": {"_target_": "leyden.models.cnn.CNN", "channels": [8], "dropout": 0.0}}
    runs = make(tmp_path, [(0.5, {}), (0.6, cnn)])
    assert differing(runs) == ["model._target_"]
    assert [row.settings for row in table(runs, "val/acc").rows] == [{"model": "cnn"}, {"model": "mlp"}]
    runs += make(tmp_path / "more", [(0.7, {"model.hidden": [4]})])  # among the runs of one class its arguments count
    assert differing(runs) == ["model._target_", "model.hidden"]
    typed = make(tmp_path / "typed", [(0.5, {}, {"overrides": ["model.dropout=0.1"]}), (0.6, cnn)])
    assert differing(typed) == ["model._target_", "model.dropout"]


def test_the_option_is_shown_as_it_was_typed(tmp_path):
    runs = make(tmp_path, [(0.5, {"task._target_": "a.B"}, {"overrides": ["task=two", "seed=1"]}), (0.6, {})])
    assert [row.settings["task"] for row in table(runs, "val/acc").rows] == ["classification", "two"]


def test_what_is_only_written_differently_does_not_differ(tmp_path):
    assert differing(make(tmp_path, [(0.5, {}), (0.5, {"checkpoint.monitor": "val/acc"}), (1, {"seed": 1})])) == [
        "seed"
    ]
    assert differing(make(tmp_path / "b", [(0.5, {"seed": 1}), (0.5, {"seed": 2})])) == ["seed"]  # not data.seed


def test_each_objective_has_a_table_of_its_own(tmp_path):
    runs = make(tmp_path, [(0.5, {"objective": "val/mse"}), (0.6, {}), (0.7, {"optimizer.lr": 2})])
    assert [(made.metric, made.mode, len(made.rows)) for made in tables(runs)] == [
        ("val/acc", "max", 2), ("val/mse", "min", 1),
    ]  # fmt: skip


def test_another_metric_ranks_and_a_wrong_one_is_answered(tmp_path):
    runs = make(tmp_path, [(0.5, {"optimizer.lr": 1}), (0.6, {"optimizer.lr": 2})])
    (made,) = tables(runs, "test/acc")
    assert made.test is None and [row.value for row in made.rows] == pytest.approx([0.59, 0.49])
    assert tables(runs, "train/loss")[0].mode == "min"
    with pytest.raises(UserError, match="did you mean val/acc"):
        tables(runs, "val/ac")
    assert tables(make(tmp_path / "b", [(None, {}, {"status": "failed"})]))[0].rows[0].value is None
