"""The configuration of a private Slurm: slurm.conf, plugstack.conf, cgroup.conf."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .interface import SlurmSettings

# Jobs start as soon as they can: the defaults batch submissions and look at most every few seconds, and het jobs wait
# for a backfill cycle of 30 s.
SCHEDULER = (
    "batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1,bf_max_job_test=10000,"
    "default_queue_depth=10000"
)
MINIMUM_CRED_EXPIRE = 5  # Slurm refuses less


@dataclass(frozen=True)
class Layout:
    """Where a private Slurm keeps its things; all below one directory."""

    directory: Path

    @property
    def conf(self) -> Path:
        return self.directory / "etc" / "slurm.conf"

    @property
    def munge_key(self) -> Path:
        return self.directory / "munge" / "munge.key"

    @property
    def munge_socket(self) -> Path:
        return self.directory / "munge" / "socket"

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def spool(self) -> Path:
        return self.directory / "spool"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    @property
    def run(self) -> Path:
        return self.directory / "run"

    @property
    def bin(self) -> Path:
        return self.directory / "bin"

    @property
    def work(self) -> Path:
        """Where jobs are submitted, so where their output goes; writable by every user."""
        return self.directory / "work"


def node_names(settings: SlurmSettings) -> list[str]:
    return [f"node{number}" for number in range(1, settings.nodes + 1)]


def slurm_conf(
    settings: SlurmSettings,
    layout: Layout,
    *,
    hostname: str,
    user: str,
    slurmd_user: str,
    ports: Sequence[int],
    plugin_dir: Path | None,
) -> str:
    """The text of slurm.conf. `user` runs slurmctld; `ports[0]` is slurmctld's, the others are the nodes'.

    A line of `settings.extra_conf` that sets a parameter replaces ours (Slurm would complain about two in the output
    of every command); lines that begin with NodeName or PartitionName are added.
    """
    names = node_names(settings)
    ours: dict[str, str] = {
        "ClusterName": settings.cluster_name,
        "SlurmctldHost": f"{hostname}(127.0.0.1)",
        "SlurmctldPort": str(ports[0]),
        "SlurmUser": user,
        "SlurmdUser": slurmd_user,
        "AuthType": "auth/munge",
        "CredType": "cred/munge",
        "AuthInfo": f"socket={layout.munge_socket},cred_expire={settings.cred_expire}",
        # Nothing listens beyond this host.
        "CommunicationParameters": "NoInAddrAny,NoCtldInAddrAny",
        "StateSaveLocation": str(layout.state),
        "SlurmdSpoolDir": f"{layout.spool}/%n",
        "SlurmctldPidFile": f"{layout.run}/slurmctld.pid",
        "SlurmdPidFile": f"{layout.run}/slurmd-%n.pid",
        "SlurmctldLogFile": f"{layout.log}/slurmctld.log",
        "SlurmdLogFile": f"{layout.log}/slurmd-%n.log",
        "SlurmctldDebug": "verbose",
        "SlurmdDebug": "verbose",
        "PlugStackConfig": f"{layout.conf.parent}/plugstack.conf",
        "ProctrackType": "proctrack/linuxproc",  # cgroups may not be ours
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "SwitchType": "switch/none",
        "MpiDefault": "none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": SCHEDULER,
        "SlurmdParameters": "config_overrides",  # more CPUs and memory than this machine has
        "ReturnToService": "2",
        "SlurmctldTimeout": "60",
        # With 15 and less, or a longer MessageTimeout, 24.11 takes nodes for dead while it waits for one that is.
        "SlurmdTimeout": "20",
        "MessageTimeout": "10",
        "TreeWidth": "65533",  # ask each node directly: one that is dead must not make others look dead
        "KillWait": "2",
        "MinJobAge": "604800",
        "MaxJobCount": "200000",
        "MailProg": "/bin/true",
    }
    if plugin_dir is not None:
        ours["PluginDir"] = str(plugin_dir)
    if settings.prolog is not None:
        ours["PrologSlurmctld"] = str(settings.prolog)
    if settings.epilog is not None:
        ours["EpilogSlurmctld"] = str(settings.epilog)
    if settings.prolog_epilog_timeout:
        ours["PrologEpilogTimeout"] = str(settings.prolog_epilog_timeout)
    if settings.licenses:
        ours["Licenses"] = settings.licenses
    added = [line.strip() for line in settings.extra_conf if line.strip() and not line.lstrip().startswith("#")]
    replaced = {line.partition("=")[0].strip().lower() for line in added}
    lines = [f"{name}={value}" for name, value in ours.items() if name.lower() not in replaced]
    lines += added
    if "nodename" not in replaced:
        lines += [
            f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={settings.cpus_per_node} "
            "RealMemory=65536 State=UNKNOWN"
            for name, port in zip(names, ports[1:], strict=True)
        ]
    if "partitionname" not in replaced:
        lines.append("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
    return "\n".join(lines) + "\n"


def check_settings(settings: SlurmSettings) -> None:
    """Raise ValueError for settings that slurmctld would only die of."""
    if settings.nodes < 1 or settings.cpus_per_node < 1:
        raise ValueError(
            f"nodes and cpus_per_node: got {settings.nodes} and {settings.cpus_per_node}; accepted: 1 or more"
        )
    if settings.cred_expire < MINIMUM_CRED_EXPIRE:
        raise ValueError(f"cred_expire: got {settings.cred_expire}; accepted: {MINIMUM_CRED_EXPIRE} seconds or more")
    for name in ("prolog", "epilog"):
        path: Path | None = getattr(settings, name)
        if path is not None and not path.is_absolute():
            raise ValueError(f"{name}: got {str(path)!r}; accepted: an absolute path")
    for line in (*settings.extra_conf, *settings.plugstack):
        if "\n" in line:
            raise ValueError(f"extra_conf and plugstack hold single lines; got {line!r}")


def write_configuration(
    settings: SlurmSettings,
    layout: Layout,
    *,
    hostname: str,
    user: str,
    slurmd_user: str,
    ports: Sequence[int],
    version: tuple[int, int, int],
    plugin_dir: Path | None,
) -> None:
    """Write all three files, readable by everyone: the commands of every user read them."""
    layout.conf.parent.mkdir(parents=True, exist_ok=True)
    text = slurm_conf(
        settings, layout, hostname=hostname, user=user, slurmd_user=slurmd_user, ports=ports, plugin_dir=plugin_dir
    )
    files = {
        layout.conf: text,
        # Written also when empty, or that of the system would be taken.
        layout.conf.with_name("plugstack.conf"): "".join(f"{line}\n" for line in settings.plugstack),
        # From 23.x on slurmd wants access to cgroups unless it is told otherwise; before, the value is unknown.
        layout.conf.with_name("cgroup.conf"): "CgroupPlugin=disabled\n" if version >= (23, 2, 0) else "",
    }
    for path, content in files.items():
        path.write_text(content, encoding="utf-8")
        path.chmod(0o644)
