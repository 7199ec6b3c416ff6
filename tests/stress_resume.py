"""Kill runs at random moments, go on with them, and compare what they come to with an unbroken run, to the bit.

python tests/stress_resume.py --kills 100
"""

import argparse
import csv
import json
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

SRC = Path(__file__).resolve().parents[1] / "src"
CASES = {  # BatchNorm, dropout, augmentation, OneCycle, accumulation; validations and checkpoints inside epochs
    "digits": [
        "model=cnn", "model.channels=[8,16]", "model.dropout=0.2", "data=digits", "data.batch_size=64",
        "data.augment=[{_target_: leyden.data.augment.ShiftCrop, pixels: 1}]", "trainer.accumulate_grad_batches=2",
        "trainer.max_epochs=4", "trainer.val_check_interval=8", "checkpoint.every_n_steps=3",
        "trainer.log_every_n_steps=3", "data.num_workers=0",
    ],
    "ink": [
        "model=rnn", "model.hidden=16", "model.dropout=0.2", "data=ink", "data.batch_size=64", "trainer.max_epochs=4",
        "trainer.log_every_n_steps=7", "callbacks=[ema,early_stopping]", "scheduler=plateau", "scheduler.patience=0",
    ],
}  # fmt: skip


def child(arguments: list[str], log: Path) -> None:
    """The command line of a run, in a process that has imported everything already."""
    sys.path.insert(0, str(SRC))
    import train
    from leyden.launch.command import launch

    assert Path(train.__file__).parent == SRC, f"{train.__file__} is another tree's"
    multiprocessing.set_start_method("fork", force=True)  # of loaders' workers, as in a process of its own
    os.setsid()
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1), os.dup2(out, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.argv = [str(SRC / "train.py"), *arguments]
    launch(train.train, "train")


def server() -> multiprocessing.context.BaseContext:
    """Processes that start in a moment: forks of one that has imported torch."""
    sys.path.insert(0, str(SRC))  # an installed copy may be of another tree
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SRC), *filter(None, [os.environ.get("PYTHONPATH")])])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["leyden.run.build", "train", "torchvision", "tensorboard"])
    return context


def attempt(
    context,
    arguments: list[str],
    log: Path,
    after: float | None,
    number: int = signal.SIGKILL,
    from_: Path | None = None,
) -> int | None:
    """Run a command; signal it after so many seconds, counted from when it has written the file `from_`, if given.

    Its exit status; None: it came to its end before.
    """
    process = context.Process(target=child, args=(arguments, log))
    process.start()
    began = time.time()
    while from_ and process.is_alive() and not (from_.exists() and from_.stat().st_mtime > began):
        time.sleep(0.02)
    process.join(after)
    if process.exitcode is None:
        os.kill(process.pid, number)
    process.join()
    return process.exitcode


def begin(context, arguments: list[str], run: Path) -> multiprocessing.Process:
    """Start a run; returns its process when it has a checkpoint."""
    process = context.Process(target=child, args=(arguments, run.parents[1] / "first.txt"))
    process.start()
    deadline = time.monotonic() + 60
    while not (run / "checkpoints" / "last.ckpt").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return process


def results(run: Path) -> dict:
    """All that a run reports, but for what depends on the clock."""
    metrics = json.loads((run / "metrics.json").read_text())
    metrics = {name: value for name, value in metrics.items() if name not in ("seconds", "samples_per_second")}
    with open(run / "metrics.csv", newline="") as file:
        rows = [
            {name: value for name, value in row.items() if value and name[:5] != "time/"}
            for row in csv.DictReader(file)
        ]
    curves: dict[str, list] = {}
    for file in sorted(run.glob("tensorboard/events*"), key=lambda file: (file.stat().st_mtime_ns, file.name)):
        board = EventAccumulator(str(file), size_guidance={"scalars": 0}).Reload()
        for tag in sorted(set(board.Tags()["scalars"]) - {"epoch"}):  # Lightning's own axis
            if tag.startswith("time/"):
                continue
            curves.setdefault(tag, []).extend((event.step, event.value) for event in board.Scalars(tag))
    left = sorted(path.name for path in run.rglob(".*.part"))
    return {"metrics": metrics, "rows": rows, "curves": dict(sorted(curves.items())), "left": left}


def differences(one: dict, other: dict) -> list[str]:
    return [name for name in one if repr(one[name]) != repr(other[name])]


def kill_until_done(context, draw, arguments, folder: Path, name: str, seconds: float, number: int, most: int) -> int:
    """Start a run by its name, kill it at most so many times, and let it end; the number of kills that hit.

    Four of five kills come while it trains, which takes so many seconds, after a checkpoint; the others at its start.
    """
    line = [*arguments, f"name={name}", f"log_dir='{folder}'"]
    log, last = folder / f"{name}.log", folder / "train" / name / "checkpoints" / "last.ckpt"
    hits = 0
    for _ in range(most):
        trains = draw.random() < 0.8
        after = draw.uniform(0, seconds) if trains else draw.uniform(0.3, 3)
        if attempt(context, line, log, after, number, last if trains else None) == 0:
            break
        hits += 1
    status = attempt(context, line, log, None)
    if status != 0:
        raise SystemExit(f"{name} ended with status {status}:\n{log.read_text()[-3000:]}")
    return hits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--ddp", action="store_true", help="in two processes")
    parser.add_argument("--compile", action="store_true", help="the model is compiled")
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--overrides", nargs="*", default=[])
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    draw, context, counts = random.Random(asked.seed), server(), Counter()
    typed = ["trainer=ddp"] * asked.ddp + ["task.compile=true"] * asked.compile
    cases = asked.case or list(CASES)
    with TemporaryDirectory() as temporary:
        folder, whole, seconds = Path(temporary), {}, {}
        lines = {case: CASES[case] + typed + asked.overrides for case in cases}
        for case, line in lines.items():
            attempt(context, [*line, "name=warm", f"log_dir='{folder / case}'"], folder / "warm.log", None)
            run = folder / f"w{case}" / "train" / "whole"
            status = attempt(context, [*line, "name=whole", f"log_dir='{run.parents[1]}'"], folder / "whole.log", None)
            assert status == 0, (folder / "whole.log").read_text()
            seconds[case] = json.loads((run / "metrics.json").read_text())["seconds"]
            whole[case] = results(run)
        turn = 0
        while counts["kills"] < asked.kills:
            case, name, turn = cases[turn % len(cases)], f"run{turn}", turn + 1
            number = draw.choice([signal.SIGKILL] * 3 + [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
            hits = kill_until_done(context, draw, lines[case], folder, name, seconds[case], number, 3)
            said = (folder / f"{name}.log").read_text()
            wrong = differences(results(folder / "train" / name), whole[case])
            counts.update(kills=hits, runs=1, identical=not wrong, resumed=said.count("going on from"))
            counts.update(fell_back=said.count("is damaged"), begun_anew=said.count("from its first step"))
            if wrong:
                print(
                    f"{case} {name} after {hits} x {signal.Signals(number).name}: {', '.join(wrong)} differ", flush=True
                )
                for part in wrong:
                    print(results(folder / "train" / name)[part], whole[case][part], sep="\n", flush=True)
                print(said[-4000:])
    print(dict(counts))
    sys.exit(counts["identical"] != counts["runs"])


if __name__ == "__main__":
    main()
