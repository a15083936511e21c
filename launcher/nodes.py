"""What was asked for about a job's nodes: where they meet, how long they wait, in which order they stand.

Pure. What this process is called, and at which address others reach it, is `ftrun.launcher.identity`'s.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ftrun.launcher import scheduler
from ftrun.launcher.config import Config, LaunchOptions
from ftrun.launcher.launch_options import UsageError
from ftrun.launcher.rendezvous_conf import LEAST_ATTEMPTS, RendezvousConf, read_conf

RENDEZVOUS_BACKENDS = ("static", "c10d", "etcd", "etcd-v2")
"""Those that torch itself has (torch.distributed.elastic.rendezvous.registry)."""

_C10D_PORT = 29400
"""torch.distributed.elastic.rendezvous.c10d_rendezvous_backend.DEFAULT_PORT."""
_STATIC_PORT = 29500
"""torchrun's --master-port."""
_ETCD_PORT = 2379
"""torch.distributed.elastic.rendezvous.etcd_rendezvous_backend."""

_JOIN_TIMEOUT_S = 600.0
_STATIC_TIMEOUT_S = 900.0
"""torch.distributed.launcher.api.LaunchConfig."""
_TORCH_INTERVAL_S = 5.0
_TORCH_ATTEMPTS = 3
"""torch's defaults of keep_alive_interval and keep_alive_max_attempt, for when only one is given."""

_HOST = re.compile(r"[\w.:%-]+", re.ASCII)
_PORT = re.compile(r"\d{1,5}", re.ASCII)
_NUMBERS = re.compile(r"\d+|\D+", re.ASCII)

Backend = Literal["local", "c10d", "file", "etcd-v2"]
SortKey = tuple[bool, int, tuple[tuple[bool, int, str], ...], str]


@dataclass(frozen=True, slots=True)
class RendezvousSetting:
    """How the nodes of a job find each other and stay in touch; all times in seconds."""

    backend: Backend
    """"local" for a job that never has more than this node."""
    host: str = ""
    """Name or address of the host agent's node, IPv6 without brackets; for "file" the path of the file."""
    port: int = 0
    is_host: bool | None = None
    """Whether this agent serves the store; None if that is to be found out."""
    use_libuv: bool = True
    join_timeout_s: float = _JOIN_TIMEOUT_S
    last_call_timeout_s: float = 30.0
    close_timeout_s: float = 30.0
    read_timeout_s: float = 60.0
    keep_alive_interval_s: float = 1.0
    lost_after_s: float = 5.0
    reconnect_timeout_s: float = 300.0
    rank_hint: int | None = None
    """Place of this node in the order of nodes; None if nobody has said."""
    run_id: str | None = None
    """The job's id; None if nobody has said."""
    min_nodes: int = 1
    max_nodes: int = 1
    backend_conf: tuple[tuple[str, str], ...] = ()
    """Keys of torch's etcd-v2 backend that are its own: protocol, ssl_cert, ssl_cert_key, ca_cert."""

    @property
    def is_alone(self) -> bool:
        """The job never has more than this node."""
        return self.backend == "local"

    @property
    def endpoint(self) -> str:
        """Where the nodes meet, for people."""
        if self.backend in ("local", "file"):
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def key(self) -> str:
        """Equal for all agents of this job on one machine, different for most other jobs; "" for "local".

        The run id is left out where it can be: of one job's agents some may have been given it and some not.
        """
        is_shared = self.backend == "etcd-v2"
        return f"{self.endpoint} {self.run_id or ''}" if is_shared else self.endpoint


def resolve_rendezvous(config: Config, environ: Mapping[str, str]) -> RendezvousSetting:
    """What the options, the configuration and the scheduler's variables come to.

    Raises:
        UsageError: a job over several nodes cannot be formed as asked.
    """
    options, world = config.launch, config.ftrun.world
    if options.standalone and options.min_nodes > 1:
        raise UsageError(
            f"--standalone means one node, and --nnodes asks for at least {options.min_nodes}; leave one out"
        )
    if options.standalone or options.max_nodes + world.spares == 1:
        return _resolve_local(config)
    backend = options.rdzv_backend
    if backend not in ("static", "c10d", "etcd-v2"):
        raise UsageError(_explain_backend(backend))
    conf = read_conf(options.rdzv_conf, backend)
    is_static = backend == "static"
    place, is_host = _resolve_place(config, conf, environ)
    kind, host, port = _resolve_endpoint(options, conf, environ)
    interval_s, lost_after_s = _resolve_keep_alive(config, conf)
    default_s = _STATIC_TIMEOUT_S if is_static else _JOIN_TIMEOUT_S
    # A static rendezvous waits for all, as torch's does.
    min_nodes = options.max_nodes if is_static else options.min_nodes
    own_keys = ("protocol", "ssl_cert", "ssl_cert_key", "ca_cert")
    return RendezvousSetting(
        backend=kind,
        host=host,
        port=port,
        is_host=is_host,
        use_libuv=environ.get("USE_LIBUV", "1") == "1" if conf.use_libuv is None else conf.use_libuv,
        join_timeout_s=conf.join_timeout or conf.timeout or default_s,
        last_call_timeout_s=30.0 if conf.last_call_timeout is None else conf.last_call_timeout,
        close_timeout_s=conf.close_timeout or 30.0,
        read_timeout_s=conf.read_timeout or 60.0,
        keep_alive_interval_s=interval_s,
        lost_after_s=lost_after_s,
        reconnect_timeout_s=config.ftrun.rdzv.reconnect_timeout,
        rank_hint=place,
        run_id=_given_run_id(options)
        or scheduler.find_run_id(environ, min_nodes, options.max_nodes + world.spares),
        min_nodes=min_nodes,
        max_nodes=options.max_nodes,
        backend_conf=tuple(pair for pair in options.rdzv_conf if pair[0] in own_keys),
    )


def _resolve_local(config: Config) -> RendezvousSetting:
    options, min_size = config.launch, config.ftrun.world.min_size or 0
    if options.nproc_per_node.isdecimal() and int(options.nproc_per_node) < min_size:
        origin = config.origins.get("ftrun.world.min_size", "default")
        raise UsageError(
            f"the world can never have the {min_size} ranks of ftrun.world.min_size ({origin}): there is one "
            f"node with --nproc-per-node {options.nproc_per_node}; lower the first or raise the second"
        )
    return RendezvousSetting("local", run_id=None if options.standalone else _given_run_id(options))


def _given_run_id(options: LaunchOptions) -> str | None:
    """`--rdzv-id`, if it says anything: "none" is torchrun's default, which every job would share."""
    return None if options.rdzv_id in ("", "none") else options.rdzv_id


def _explain_backend(backend: str) -> str:
    if backend == "etcd":
        return (
            "--rdzv-backend etcd is torch's old handler, which ftrun does not have; "
            "use etcd-v2 with the same etcd, or c10d, which needs no service"
        )
    return f"--rdzv-backend {backend} is a plug-in for torchrun and joins no nodes here; use c10d"


def _resolve_place(
    config: Config, conf: RendezvousConf, environ: Mapping[str, str]
) -> tuple[int | None, bool | None]:
    """Place of this node in the order of nodes, and whether it is the host, as far as either is known."""
    options, is_given = config.launch, config.is_given("launch.node_rank")
    place = options.node_rank if is_given else scheduler.find_place(environ)
    if options.rdzv_backend != "static":
        return place, conf.is_host
    places = options.max_nodes + config.ftrun.world.spares
    if is_given and options.node_rank >= places:
        raise UsageError(
            f"node rank {options.node_rank} ({config.origins['launch.node_rank']}): expected 0 to "
            f"{places - 1}, since --nnodes and spares make {places} nodes"
        )
    if is_given:
        return options.node_rank, options.node_rank == 0
    # Rank 0 is also what a node has that was not told, as torchrun has it: the address shows which it is.
    return place or 0, None


def _resolve_endpoint(
    options: LaunchOptions, conf: RendezvousConf, environ: Mapping[str, str]
) -> tuple[Backend, str, int]:
    text = options.rdzv_endpoint.strip()
    if conf.store_type == "file":
        if not text:
            raise UsageError("store_type=file needs --rdzv-endpoint: the path of a file that all nodes share")
        return "file", text, 0
    option = "--rdzv-endpoint"
    if options.rdzv_backend == "static":
        default_port = _STATIC_PORT if options.master_port is None else options.master_port
        if not text:
            option, text = "--master-addr", _bracket(options.master_addr.strip())
    elif options.rdzv_backend == "c10d":
        default_port = _C10D_PORT
    else:
        default_port = _ETCD_PORT
    if not text:
        raise UsageError(_explain_no_endpoint(options, environ))
    try:
        host, port = parse_endpoint(text, default_port)
    except ValueError as error:
        raise UsageError(f"{option}: found {text!r}, expected HOST[:PORT] ({error})") from None
    if port == 0:
        raise UsageError("--master-port: found 0, expected a port that the other nodes know")
    return ("etcd-v2" if options.rdzv_backend == "etcd-v2" else "c10d"), host, port


def _bracket(address: str) -> str:
    """A host without a port, so that no part of an IPv6 address is taken for one."""
    return f"[{address}]" if ":" in address and not address.startswith("[") else address


def _explain_no_endpoint(options: LaunchOptions, environ: Mapping[str, str]) -> str:
    backend = options.rdzv_backend
    example = "node0.example:29400"
    if "SLURM_JOB_NODELIST" in environ:
        example = '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):29400"'
    what = f"one of the nodes, such as {example}" if backend == "c10d" else "etcd"
    return f"--rdzv-backend {backend} with several nodes needs --rdzv-endpoint, HOST[:PORT] of {what}"


def parse_endpoint(text: str, default_port: int) -> tuple[str, int]:
    """Host and port of HOST[:PORT]; IPv6 addresses as [ADDRESS]:PORT, or alone.

    Where an IPv6 address without brackets could end in a port, it does, as torch has it.

    Raises:
        ValueError: it is none; the message says why.
    """
    text = text.strip()
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        if not _is_ipv6(host) or not (text.endswith("]") or rest.startswith(":")):
            raise ValueError("brackets hold an IPv6 address, and :PORT may follow")
        has_port, port_text = bool(rest), rest[1:]
    else:
        host, colon, port_text = text.rpartition(":")
        has_port = bool(colon) and (":" not in host or _is_ipv6(host))
        host = host if has_port else text
    if not _HOST.fullmatch(host) or (":" in host and not _is_ipv6(host)):
        raise ValueError("that is no host name and no address")
    if not has_port:
        return host, default_port
    if not _PORT.fullmatch(port_text) or not 0 < int(port_text) <= 65535:
        raise ValueError("a port is a number from 1 to 65535")
    return host, int(port_text)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _resolve_keep_alive(config: Config, conf: RendezvousConf) -> tuple[float, float]:
    """Seconds between two keep-alives, and of silence after which a node is lost."""
    if conf.keep_alive_interval is None and conf.keep_alive_max_attempt is None:
        return config.ftrun.rdzv.keep_alive_interval, config.ftrun.rdzv.lost_after
    interval_s = conf.keep_alive_interval or _TORCH_INTERVAL_S
    attempts = conf.keep_alive_max_attempt or _TORCH_ATTEMPTS
    return interval_s, interval_s * max(attempts, LEAST_ATTEMPTS)


def sort_key(rank_hint: int | None, node: str) -> SortKey:
    """Order of nodes: those with a place first, by it; then by name as people count, n2 before n10."""
    natural = tuple(_part_key(part) for part in _NUMBERS.findall(node))
    return rank_hint is None, rank_hint or 0, natural, node


def _part_key(part: str) -> tuple[bool, int, str]:
    if not (part.isascii() and part.isdigit()):
        return True, 0, part
    digits = part.lstrip("0")  # more of them is a larger number, however long it is
    return False, len(digits), digits


def fingerprint_of(options: LaunchOptions) -> str:
    """Equal for agents that run the same script with the same arguments on the same number of nodes."""
    kind = (options.is_module, options.no_python, options.run_path)
    command = (options.training_script, *options.training_script_args)
    text = json.dumps([kind, command, options.min_nodes, options.max_nodes])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe_job(options: LaunchOptions) -> str:
    """The same for people; arguments are only counted, since they may hold secrets."""
    script = f"-m {options.training_script}" if options.is_module else options.training_script
    count = len(options.training_script_args)
    arguments = f"{count or 'no'} argument{'' if count == 1 else 's'}"
    return f"{script} with {arguments} on {_describe_nodes(options)}"


def _describe_nodes(options: LaunchOptions) -> str:
    if options.min_nodes != options.max_nodes:
        return f"{options.min_nodes} to {options.max_nodes} nodes"
    return f"{options.max_nodes} node{'' if options.max_nodes == 1 else 's'}"
