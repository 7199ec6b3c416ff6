from leyden.report.difference import parting, told
from leyden.report.results import read
from synthetic import write


def test_a_run_is_like_itself(tmp_path):
    run = read(write(tmp_path / "0"))
    text = told(run, run)
    assert "config: the same" in text and "machine: the same" in text and "results: the same" in text
    assert "losses: the same at all 2 logged steps" in text


def test_what_differs_is_told(tmp_path):
    one = read(write(tmp_path / "0", versions={"torch": "2.14"}, data_fingerprint="aa", name="x"))
    write(tmp_path / "1", 0.8, {"optimizer.lr": 0.1}, versions={"torch": "2.15"}, data_fingerprint="bb", commit="def")
    (tmp_path / "1" / "changes.patch").write_text("diff --git a/src/x.py b/src/x.py\n+1\n")
    text = told(one, read(tmp_path / "1"))
    for line in ("optimizer.lr  0.001  ->  0.1", "commit", "abc  ->  def", "aa  ->  bb", "torch", "2.14  ->  2.15",
                 "in src/x.py", "best val/acc  0.9  ->  0.8"):  # fmt: skip
        assert line in text, line
    assert "name" not in text.partition("config:")[2].partition("\n\n")[0]


def test_the_first_step_at_which_losses_part(tmp_path):
    rows = [(5, 0.5, 0.1), (10, 0.25, 0.1), (15, 0.125, 0.9)]
    for name, change in (("0", {}), ("1", {10: 0.26}), ("2", {15: 0.2})):
        write(tmp_path / name)
        lines = [f"0,{step},{change.get(step, loss)},{acc}" for step, loss, acc in rows]
        (tmp_path / name / "metrics.csv").write_text("\n".join(["epoch,step,train/loss_step,train/acc", *lines]))
    runs = [read(tmp_path / name) for name in "012"]
    assert parting(*runs[:2]) == "losses: part at step 10: train/loss_step 0.25 -> 0.26"
    assert "step 15" in parting(runs[0], runs[2])
    (tmp_path / "2" / "metrics.csv").write_text("")
    assert parting(runs[0], runs[2]) == "losses: the runs share no logged step"
