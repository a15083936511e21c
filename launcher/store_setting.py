"""How an agent finds and uses its job's store. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoreSetting:
    """All times in seconds."""

    backend: str
    """"c10d" ("static" is the same), "file" or "etcd-v2"."""
    host: str
    """Name or address, IPv6 without brackets; for "file" the path."""
    port: int
    is_host: bool | None = None
    """Whether this agent is the host agent; None if that is to be found out."""
    use_libuv: bool = True
    read_timeout_s: float = 60.0
    keep_alive_interval_s: float = 1.0
    lost_after_s: float = 5.0
    rank_hint: int | None = None
    has_run_id: bool = True
    """False: the host agent's run id is taken, whatever it is."""
    same_arguments: bool = True
    """Agents whose job has another fingerprint are refused."""
    backend_conf: tuple[tuple[str, str], ...] = ()
    """Keys of torch's etcd-v2 backend that are its own."""
