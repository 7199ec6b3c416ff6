import csv
import io
import itertools
import json
import math
import statistics

import pytest

from leyden import UserError
from leyden.report.tables import cells, differing, mean_and_std, table, tables, written
from synthetic import runs_in, write


def values(made):
    return made.rows.value.tolist()


def make(folder, *runs):
    """Runs of (value, keys[, record])."""
    for n, run in enumerate(runs):
        write(folder / f"{folder.name}-{n}", run[0], run[1], **(run[2:] or [{}])[0])
    return runs_in(folder)


def test_only_what_differs_is_a_column_and_the_best_comes_first(tmp_path):
    runs = ((v, {"optimizer.lr": lr, "name": str(lr), "log_dir": str(lr)}) for v, lr in
            ((0.5, 0.1), (0.9, 0.01), (0.7, 0.001)))  # fmt: skip
    made = table(make(tmp_path, *runs), "val/acc")
    assert made.settings == ["optimizer.lr"] and values(made) == [0.9, 0.7, 0.5]
    assert made.rows["optimizer.lr"].tolist() == [0.01, 0.001, 0.1]


@pytest.mark.parametrize(
    "keys", [{"objective": "val/loss"}, {"objective": "val/loss/dataloader_idx_1"}, {"checkpoint.mode": "min"}]
)
def test_less_is_better_for_a_loss_or_where_the_config_says_so(tmp_path, keys):
    runs = make(tmp_path, *((v, keys | {"optimizer.lr": v}) for v in (0.5, 0.2, 0.9)))
    assert values(tables(runs)[0]) == [0.2, 0.5, 0.9]


def test_what_nobody_can_rank_is_shown_in_order(tmp_path):
    keys = {"objective": "val/energy", "checkpoint.monitor": "val/acc"}
    (made,) = tables(make(tmp_path, *((v, keys | {"optimizer.lr": v}) for v in (0.5, 0.2, 0.9))))
    assert made.mode is None and values(made) == [0.5, 0.2, 0.9]
    assert "val/energy, not ranked" in written([made], "text")


def test_seeds_and_folds_are_one_row_with_the_sample_deviation(tmp_path):
    pairs = list(itertools.product((0, 1, 2), (0, 1)))
    best = [0.5 + 0.01 * n**2 for n in range(6)]
    runs = make(tmp_path, *((v, {"seed": s, "data.fold": f}) for v, (s, f) in zip(best, pairs, strict=True)))
    made = table(runs, "val/acc")
    (row,) = made.rows.to_dict("records")
    assert (
        made.settings == [] and row["n"] == 6 and row["status"] == "finished" and row["runs"] == [*map(str, runs.path)]
    )
    assert row["value"] == pytest.approx(statistics.mean(best)) and row["std"] == pytest.approx(statistics.stdev(best))
    assert row["test"] == pytest.approx(row["value"] - 0.01) and row["test_std"] == pytest.approx(row["std"])


def test_the_same_run_twice_is_no_second_sample(tmp_path):
    runs = make(tmp_path, (0.5, {"seed": 0}), (0.7, {"seed": 1}), (0.5, {"seed": 0}))
    assert sorted(table(runs, "val/acc").rows.n) == [1, 2]


def test_a_seed_is_a_column_where_no_row_has_several(tmp_path):
    runs = make(tmp_path, (0.5, {"seed": 0, "optimizer.lr": 1}), (0.7, {"seed": 1, "optimizer.lr": 2}))
    assert table(runs, "val/acc").settings == ["seed", "optimizer.lr"]


def test_failed_runs_do_not_count_and_do_not_win(tmp_path):
    runs = make(tmp_path, (0.5, {"seed": 0}), (0.99, {"seed": 1}, {"status": "failed"}),
                (0.999, {"optimizer.lr": 1}, {"status": "failed"}),
                (None, {"optimizer.lr": 2}, {"status": "failed"}))  # fmt: skip
    made = table(runs, "val/acc")
    assert values(made) == pytest.approx([0.5, 0.999, math.nan], nan_ok=True) and made.rows.n.tolist() == [1, 1, 0]
    assert made.rows.status.tolist() == ["finished, failed", "failed", "failed"]
    assert cells(made)["val/acc"].tolist() == ["0.5000", "0.9990", "-"]


def test_no_number_is_last_and_stays_what_it_is(tmp_path):
    nan, inf = float("nan"), float("inf")
    made = table(make(tmp_path, (nan, {"optimizer.lr": 1}), (0.1, {"optimizer.lr": 2})), "val/acc")
    assert cells(made)["val/acc"].tolist() == ["0.1000", "nan"]
    made = table(make(tmp_path / "seeds", (0.5, {"seed": 0}), (nan, {"seed": 1})), "val/acc")
    assert cells(made)["val/acc"].tolist() == ["nan"] and made.rows.n.tolist() == [2]
    made = table(make(tmp_path / "inf", (0.5, {"seed": 0}), (inf, {"seed": 1})), "val/acc")
    assert cells(made)["val/acc"].tolist() == ["inf"]


def test_of_two_classes_the_name_says_it(tmp_path):
    cnn = {"model": {"_target_": "lab.models.cnn.CNN", "channels": [8], "dropout": 0.0}}
    runs = make(tmp_path, (0.5, {}), (0.6, cnn))
    assert differing(runs) == ["model"] and table(runs, "val/acc").rows.model.tolist() == ["CNN", "MLP"]
    make(tmp_path / "more", (0.7, {"model.hidden": [4]}))  # among the runs of one class its arguments count
    assert differing(runs_in(tmp_path)) == ["model", "model.hidden"]


def test_each_objective_has_a_table_of_its_own(tmp_path):
    runs = make(tmp_path, (0.5, {"objective": "val/mse"}), (0.6, {}), (0.7, {"optimizer.lr": 2}))
    made = tables(runs)
    assert [(each.metric, each.mode, len(each.rows)) for each in made] == [("val/acc", "max", 2), ("val/mse", "min", 1)]
    rows = list(csv.DictReader(io.StringIO(written(made, "csv"))))
    assert [row["metric"] for row in rows] == ["val/acc", "val/acc", "val/mse"]


def test_another_metric_ranks_by_its_last_value_and_a_wrong_one_is_answered(tmp_path):
    for n in range(2):
        write(tmp_path / str(n), 0.9 - n / 10, {"optimizer.lr": n})
    runs = runs_in(tmp_path)
    assert values(tables(runs, "test/acc")[0]) == pytest.approx([0.89, 0.79])
    (made,) = tables(runs, "train/loss")
    assert made.mode == "min" and values(made) == [0.1, 0.1] and made.rows.epoch.isna().all()
    with pytest.raises(UserError, match=r"what there is: val/acc\."):
        tables(runs, "val/ac")
    assert tables(make(tmp_path / "b", (None, {}, {"status": "failed"})))[0].rows.n.tolist() == [0]


# what is printed


@pytest.fixture
def made(tmp_path):
    odd = {"optimizer.lr": 0.1, "model.hidden": [3], "data.name": "10%_of & #1 {x} ^2 ~ \\n | ±"}
    for n in range(3):
        write(tmp_path / str(n), 0.9 + 0.001 * n, {"seed": n, "optimizer.lr": 1e-3})
    write(tmp_path / "größe", None, odd, status="failed")
    return table(runs_in(tmp_path), "val/acc")


def test_every_form_has_every_row_and_the_same_header(made):
    header, rows = list(cells(made)), cells(made).to_numpy().tolist()
    numbers = ["val/acc", "epoch", "test/acc", "n", "seconds", "samples/s", "status"]
    assert header == ["run", "model.hidden", "optimizer.lr", "data.name", *numbers]
    assert rows[0][:6] == ["0, 1, 2", "[8,8]", "0.001", "-", "0.9010 ± 0.0010", "2"] and rows[1][0] == "größe"
    assert all(cell in written([made], "text") for row in rows for cell in row)
    assert len(written([made], "markdown").splitlines()) == 4 and "\\|" in written([made], "markdown")
    latex = written([made], "latex")
    assert r"10\%\_of \& \#1 \{x\} \^{}2 \textasciitilde{} \textbackslash{}n | ±" in latex and r"\midrule" in latex


def test_csv_and_json_have_all_digits_and_a_column_of_deviations(made):
    first, second = csv.DictReader(io.StringIO(written([made], "csv")))
    assert float(first["value"]) == pytest.approx(0.901) and float(first["std"]) == pytest.approx(0.001)
    assert first["optimizer.lr"] == "0.001" and first["n"] == "3" and len(first["runs"].split()) == 3
    assert second["value"] == "" and second["status"] == "failed"
    again = json.loads(written([made], "json"), parse_constant=pytest.fail)
    assert again[0]["model.hidden"] == [8, 8] and again[1]["std"] is None and len(again[0]["runs"]) == 3


def test_numbers_are_short_and_alike():
    nan = math.nan
    assert mean_and_std(0.98765, 0.00312, 2) == "0.9877 ± 0.0031" and mean_and_std(12345.6, nan, 1) == "1.235e+04"
    assert mean_and_std(nan, nan, 0) == "-" and mean_and_std(nan, nan, 1) == "nan"


def test_runs_are_named_from_the_folder_that_they_share(tmp_path):
    for name in ("sweep/0", "sweep/1", "train/x"):
        write(tmp_path / name)
    assert runs_in(tmp_path).run.tolist() == ["sweep/0", "sweep/1", "train/x"]
    assert runs_in(tmp_path / "sweep").run.tolist() == ["0", "1"]
