"""A real SLURM of two pretended nodes, n1 and n2 of four cores each, on this machine. Needs root and slurmctld.

python tests/slurm_cluster.py FOLDER  starts one for trials by hand, until Ctrl-C; it prints the SLURM_CONF to export.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

CONF = """
ClusterName=trial
SlurmctldHost={host}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool_%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd_%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd_%n.log
SlurmctldPort={ports[0]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=4000 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""  # cred_expire: a job that is requeued starts again after some seconds, not after two minutes


def missing() -> str:
    """Why there can be no cluster here; empty where there can."""
    absent = [name for name in ("slurmctld", "slurmd", "sbatch", "munged", "runuser") if not shutil.which(name)]
    if absent:
        return f"{', '.join(absent)} missing; `apt-get install slurm-wlm munge` installs a SLURM"
    return "" if os.geteuid() == 0 else "slurmctld starts as root only"


@contextlib.contextmanager
def started(folder: Path) -> Iterator[dict[str, str]]:
    """A cluster that ends with the block; yields the variables of its commands."""
    (folder / "state").mkdir(parents=True)
    hosts = Path("/etc/hosts")
    if " n1 n2" not in hosts.read_text():  # rank 0's address
        hosts.write_text(hosts.read_text() + "127.0.0.1 n1 n2\n")
    if subprocess.run(["munge", "-n"], capture_output=True).returncode:
        subprocess.run(["install", "-d", "-o", "munge", "-g", "munge", "/run/munge"], check=True)
        if not Path("/etc/munge/munge.key").exists():
            subprocess.run(["runuser", "-u", "munge", "--", "mungekey"], check=True)
        subprocess.run(["runuser", "-u", "munge", "--", "munged"], check=True)
    with contextlib.ExitStack() as free:
        sockets = [free.enter_context(socket.create_server(("", 0))) for _ in range(3)]
        ports = [each.getsockname()[1] for each in sockets]
    conf, env = folder / "slurm.conf", os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
    conf.write_text(CONF.format(host=socket.gethostname().partition(".")[0], folder=folder, ports=ports))
    try:
        for command in (["slurmctld"], ["slurmd", "-N", "n1"], ["slurmd", "-N", "n2"]):
            subprocess.run(command, env=env, check=True, capture_output=True)
            time.sleep(1)
        until(lambda: said(env, "sinfo", "-h", "-o", "%T").split() == ["idle"])
        yield env
    finally:
        subprocess.run(["scancel", "--user=root"], env=env, capture_output=True)
        time.sleep(1)
        for path in folder.glob("*.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.read_text()), signal.SIGTERM)


def said(env: dict[str, str], *command: str) -> str:
    return subprocess.run(command, env=env, capture_output=True, text=True).stdout


def until(condition, seconds: float = 120):
    """What the condition says once that is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.5)
    return found


if __name__ == "__main__":
    sys.exit(missing()) if missing() else None
    with started(Path(sys.argv[1]).absolute()) as words:
        print(words["SLURM_CONF"], flush=True)
        signal.pause()
