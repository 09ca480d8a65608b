"""Settings of every process, from the environment (``BRIDGE_…``). Secrets come as files, never as values."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from bridge.model.mode import Mode


class _Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="BRIDGE_", frozen=True, extra="ignore")


class LogSettings(_Settings):
    log_level: str = "INFO"
    log_json: bool = True


class StoreSettings(_Settings):
    """Where the ledger is. With no URL an embedded Postgres is started in `data_dir`."""

    database_url: str = Field(default="", description="postgresql+psycopg://user@host/db, password by file")
    database_password_file: Path | None = None
    data_dir: Path = Path("build/postgres")


class SlurmDriver(StrEnum):
    """What stands behind the Slurm port."""

    SLURMRESTD = "slurmrestd"
    PYSLURM = "pyslurm"


class SlurmSettings(_Settings):
    """How Slurm is reached: slurmrestd or pyslurm for most, ``scontrol`` for what they lack."""

    slurm_driver: SlurmDriver = Field(
        default=SlurmDriver.SLURMRESTD, description="slurmrestd; pyslurm: needs the extra of that name and Slurm 25.11"
    )
    slurm_url: str = Field(default="http://localhost:6820", description="Of slurmrestd")
    slurm_user: str = Field(default="bridge", description="Whose the token is; with pyslurm, whom the broker runs as")
    slurm_token_file: Path = Field(
        default=Path("/run/slurm-bridge-token/token"), description="A JWT of that user, for slurmrestd and its scontrol"
    )
    slurm_timeout_s: float = Field(default=5, gt=0, description="The longest that one call may take")
    slurm_scontrol: tuple[str, ...] = ("scontrol",)


class KubeSettings(_Settings):
    """How Kubernetes is reached: a kubeconfig file, or the pod's own service account when there is none."""

    kubeconfig: Path | None = None
    kube_namespace: str = Field(default="slurm-kube-bridge", description="Where the node controller's Lease is")
    kube_timeout_s: float = 5
    kube_max_age_s: float = Field(default=5, description="A watch view older than this is UNKNOWN")


class ModeSettings(_Settings):
    """How much a broker may do. All replicas that may lead get the same mode, or a failover would change it."""

    mode: Mode = Field(
        default=Mode.ACTIVE, description="active; dry_run: only say what would move; read_only: only look, never lead"
    )


class ReconcilerSettings(_Settings):
    """Bounds of the loop. Every one is a time or a number that a site may tighten or widen."""

    holder: str = Field(default="", description="This replica's name; the host name and process id when empty")
    leader_ttl_s: float = 15
    call_timeout_s: float = Field(default=5, description="The longest an outside call of a deposed leader may linger")
    idle_tick_s: float = 2
    busy_tick_s: float = 0.25
    close_deadline_s: float = 60
    clean_deadline_s: float = 900
    open_deadline_s: float = 120
    prove_deadline_s: float = 120
    upkeep_every_h: float = Field(default=12, gt=0, description="How often reservations are looked at for their end")
    slurm_settle_s: float = Field(default=5, description="How long a restarted slurmctld is not believed")
    fence_stale_s: float = Field(
        default=70,
        description="A Slurm agent silent for longer is not waited for; above the Prolog's stale_s, for until then"
        " the old fence file is believed, and refuses jobs on what is opened meanwhile",
    )


class ApiSettings(_Settings):
    """The REST API. Lines of the token file are ``<name> <role> <token>``; roles: reader, operator, admin, agent."""

    api_host: str = "127.0.0.1"
    api_port: int = 8080
    token_file: Path = Path("build/tokens")


class NodeControllerSettings(_Settings):
    node_controller_namespace: str = "slurm-kube-bridge"
    node_controller_holder: str = ""
    fence_name: str = "shared"
    probe_port: int = 8081
    late_bind_wait_s: float = Field(default=0.5, description="Look again this long after the taint for late binds")
    eviction_grace_s: int | None = Field(default=None, description="Overrides a pod's own grace period")


class InspectorSettings(_Settings):
    node_name: str = Field(default="", description="The Kubernetes node name, from the downward API")
    inspector_proc: Path = Path("/proc")
    inspector_devices: tuple[str, ...] = Field(
        default=("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/nvidia-uvm"), description="Globs of GPU device files"
    )
    inspector_ignored: tuple[str, ...] = Field(
        default=("/usr/bin/nvidia-persistenced",), description="Programs that hold GPU devices by profession"
    )
    inspector_recheck_s: float = 0.5


class AgentSettings(_Settings):
    """The Slurm agent on the controller host: keeps the plugin's policy file and the Prolog's fence file fresh."""

    agent_url: str = "http://localhost:8080"
    agent_token_file: Path = Path("/etc/slurm-bridge/agent-token")
    agent_dir: Path = Path("/var/lib/slurm-bridge")
    agent_poll_s: float = Field(default=5, description="The longest wait for news; below the broker's fence_stale_s")


class ClientSettings(_Settings):
    """What ``bridgectl`` needs to talk to a broker."""

    url: str = "http://127.0.0.1:8080"
    client_token_file: Path = Path("build/tokens-admin")
