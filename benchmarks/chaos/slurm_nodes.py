"""A real Slurm cluster of four nodes on this machine.

Each slurmd runs in a network namespace with its own address and host name. Each node has one of this machine's GPUs;
nodes share GPUs if the machine has fewer than four. Slurm does not enforce limits on cores, memory and devices, since
there is no cgroup plugin. On a machine without a GPU, the nodes only claim to have one.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import psutil

from broadsheet.cluster.protocol import count_gpus

NODES = ("gpu1", "gpu2", "gpu3", "gpu4")
BRIDGE = "broadsheet0"
_CONF = """\
ClusterName=broadsheet
SlurmctldHost={host}(10.77.0.1)
SlurmctldPort=17000
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=5
SlurmdTimeout=10
GresTypes=gpu
PlugStackConfig={folder}/plugstack.conf
TaskProlog={folder}/prolog
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmdSpoolDir={folder}/%n
StateSaveLocation={folder}/state
PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_NODE = (
    "NodeName={name} NodeHostname={name} NodeAddr=10.77.0.{last} Port=17010 CPUs=4 Sockets=1 CoresPerSocket=4 "
    "ThreadsPerCore=1 RealMemory=4000 Gres=gpu:1 State=UNKNOWN\n"
)
_PROLOG = """\
#!/bin/sh
echo export CUDA_VISIBLE_DEVICES=$(((${{SLURMD_NODENAME#gpu}} - 1) % {gpus}))
"""  # it replaces Slurm's own value, which is the first GPU on every node


def missing() -> str | None:
    """Return the reason why such a cluster cannot run here, or None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [name for name in ("slurmctld", "slurmd", "sbatch", "munged", "ip", "nsenter") if not shutil.which(name)]
    if absent:
        return f"not installed: {', '.join(absent)} (apt-get install slurm-wlm munge iproute2)"
    return None


class SlurmNodes:
    """A Slurm cluster on this machine. `stop` removes all of its processes, addresses and namespaces."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "HOME": str(folder / "home")}
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._munged = False

    def start(self) -> None:
        """Start the cluster, and wait until all nodes are idle."""
        self.stop()  # removes the network of an earlier run that was killed
        self._configure()
        # Connect a network namespace for each node to a bridge.
        _sh(f"ip link add {BRIDGE} type bridge && ip addr add 10.77.0.1/24 dev {BRIDGE} && ip link set {BRIDGE} up")
        for number, name in enumerate(NODES, 1):
            _sh(
                f"ip netns add {name} && ip link add veth-{name} type veth peer name eth0 netns {name} && "
                f"ip link set veth-{name} master {BRIDGE} up && "
                f"ip -n {name} addr add 10.77.0.{10 + number}/24 dev eth0 && "
                f"ip -n {name} link set eth0 up && ip -n {name} link set lo up"
            )
        # Start the daemons.
        if not any(process.name() == "munged" for process in psutil.process_iter()):
            _sh("install -d -o munge -g munge -m 0755 /run/munge && runuser -u munge -- /usr/sbin/munged")
            self._munged = True
        self._daemon("slurmctld", "-D", "-c")
        for name in NODES:
            daemon = f"hostname {name}; exec slurmd -D -N {name}"
            self._daemon("nsenter", f"--net=/run/netns/{name}", "unshare", "-u", "bash", "-c", daemon)
        # Wait for the nodes.
        deadline = time.monotonic() + 60
        while self.run("sinfo", "-h", "-t", "idle", "-o", "%D") != "4":
            assert time.monotonic() < deadline, self.run("sinfo")
            time.sleep(0.2)

    def stop(self) -> None:
        """Kill the daemons and the processes of the nodes, and remove the network."""
        for daemon in self._daemons:
            for process in [*psutil.Process(daemon.pid).children(recursive=True), psutil.Process(daemon.pid)]:
                process.kill()
            daemon.wait()
        self._daemons.clear()
        for name in NODES:  # a namespace may outlive its name for a while, and keep its link
            left = f"ip netns pids {name} | xargs -r kill -9; ip netns del {name}; ip link del veth-{name}"
            subprocess.run(left, shell=True, check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", BRIDGE], check=False, capture_output=True)
        if self._munged:
            _sh("runuser -u munge -- /usr/sbin/munged --stop")
            self._munged = False

    def run(self, *command: object, check: bool = True, cwd: Path | None = None) -> str:
        """Run a command as a user of the cluster, and return its output."""
        completed = subprocess.run(
            [str(part) for part in command], env=self.environment, cwd=cwd, capture_output=True, text=True, check=False
        )
        assert not check or completed.returncode == 0, (command, completed.stdout, completed.stderr)
        return completed.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """Slurm's record of a job, e.g. JobState, Restarts, ExitCode."""
        words = self.run("scontrol", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def cut(self, name: str) -> None:
        """Cut a node off from the network."""
        _sh(f"ip link set veth-{name} down")

    def mend(self, name: str) -> None:
        """Connect a node again, and tell Slurm to use it."""
        _sh(f"ip link set veth-{name} up")
        self.run("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)

    def _configure(self) -> None:
        """Write the configuration files of Slurm."""
        for name in ("state", "home", *NODES):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "plugstack.conf").write_text("")
        prolog = self.folder / "prolog"
        prolog.write_text(_PROLOG.format(gpus=max(1, count_gpus())))
        prolog.chmod(0o755)
        nodes = "".join(_NODE.format(name=name, last=10 + number) for number, name in enumerate(NODES, 1))
        conf = _CONF.format(host=socket.gethostname(), folder=self.folder)
        (self.folder / "slurm.conf").write_text(conf + nodes)
        (self.folder / "cgroup.conf").write_text(
            "CgroupPlugin=cgroup/v1\n"
        )  # no plugin uses it, but version 2 would need systemd
        (self.folder / "gres.conf").write_text("NodeName=gpu[1-4] Name=gpu File=/dev/null\n")

    def _daemon(self, *command: str) -> None:
        log = (self.folder / "daemons.log").open("ab")
        self._daemons.append(
            subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        )


def _sh(command: str) -> None:
    completed = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
