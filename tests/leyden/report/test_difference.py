from leyden.report.difference import difference, parting
from synthetic import write


def test_a_run_is_like_itself(tmp_path):
    run = write(tmp_path / "0")
    text = difference(run, run)
    assert all(f"{part}: the same" in text for part in ("config", "code, machine and data", "results"))
    assert "losses: the same at all 2 logged steps" in text


def test_what_differs_is_said(tmp_path):
    one = write(tmp_path / "0", versions={"torch": "2.14"}, data_fingerprint="aa", name="x", pid=7)
    keys = {"optimizer.lr": 0.1, "optimizer.nesterov": True, "name": "y"}
    two = write(tmp_path / "1", 0.8, keys, versions={"torch": "2.15"}, data_fingerprint="bb", commit="def")
    (two / "changes.patch").write_text("diff --git a/src/x.py b/src/x.py\n+1\n")
    text = difference(one, two)
    for line in ("optimizer.lr  0.001  ->  0.1", "optimizer.nesterov  -  ->  true", "commit  abc  ->  def",
                 "data_fingerprint  aa  ->  bb", "versions.torch  2.14  ->  2.15", "uncommitted changes  none  ->  ",
                 "val/acc  0.9  ->  0.8"):  # fmt: skip
        assert line in text, line
    assert "name" not in text and "pid" not in text


def test_the_first_step_at_which_losses_part(tmp_path):
    rows = [(5, 0.5, 0.1), (10, 0.25, 0.1), (15, 0.125, 0.9)]
    runs = [write(tmp_path / name) for name in "0123"]
    for run, change in zip(runs, ({}, {10: 0.26}, {15: "nan"}, {}), strict=True):
        lines = [f"0,{step},{change.get(step, loss)},{acc}" for step, loss, acc in rows]
        (run / "metrics.csv").write_text("\n".join(["epoch,step,train/loss_step,train/acc", *lines, "0,15,,0.5"]))
    assert parting(*runs[:2]) == "losses: part at step 10: train/loss_step 0.25 -> 0.26"
    assert parting(runs[0], runs[2]) == "losses: part at step 15: train/loss_step 0.125 -> nan"
    assert parting(runs[0], runs[3]) == "losses: the same at all 3 logged steps that both have"
    for content in (b"", b"\x00\xff", b"epoch,step,val/other\n0,5,1\n"):
        (runs[2] / "metrics.csv").write_bytes(content)
        assert parting(runs[0], runs[2]) == "losses: the runs share no logged step"
