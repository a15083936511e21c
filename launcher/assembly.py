"""From the configuration to the parts of a job that need most of it: membership, health and watchdog."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path

from ftrun.healthchecks.cgroup import OomCounter
from ftrun.healthchecks.policy import Scope
from ftrun.healthchecks.presence import has_gpu_driver, has_rdma
from ftrun.launcher import exchange as ex
from ftrun.launcher import health, policy
from ftrun.launcher.agent import Note
from ftrun.launcher.checkpoint_assembly import trust_of
from ftrun.launcher.checkpoint_rename import set_aside_in_thread
from ftrun.launcher.config import Config
from ftrun.launcher.environment import named_interfaces
from ftrun.launcher.evidence import Gatherer
from ftrun.launcher.hangs import Record
from ftrun.launcher.health_config import build_policy
from ftrun.launcher.hosting import Hosting
from ftrun.launcher.membership import Membership, Self
from ftrun.launcher.messages import Hello
from ftrun.launcher.nodes import RendezvousSetting, describe_job, fingerprint_of
from ftrun.launcher.quorum import Rules
from ftrun.launcher.restart_config import RestartConfig
from ftrun.launcher.rounds import Offer
from ftrun.launcher.surroundings import Surroundings
from ftrun.launcher.watchdog import Watchdog
from ftrun.monitor import events
from ftrun.monitor.heartbeats import Timeouts
from ftrun.monitor.redaction import Redactor, secret_values
from ftrun.monitor.server import HeartbeatServers
from ftrun.monitor.sockets import SocketPathError
from ftrun.monitor.stall_limits import StallLimits
from ftrun.monitor.wire import ClientSettings


def rules_of(setting: RendezvousSetting, config: Config) -> Rules:
    """What the host agent goes by."""
    world = config.ftrun.world
    return Rules(
        min_nodes=setting.min_nodes,
        max_nodes=setting.max_nodes,
        min_ranks=world.min_size or 0,
        may_shrink=world.shrink != "never",
        spares=world.spares,
        grow=world.grow,
        last_call_s=setting.last_call_timeout_s,
        join_timeout_s=setting.join_timeout_s,
        keep_alive_interval_s=setting.keep_alive_interval_s,
        lost_after_s=setting.lost_after_s,
        close_timeout_s=setting.close_timeout_s,
        max_excluded_fraction=config.ftrun.health.max_excluded_fraction,
        min_progress=config.fault_tolerance.min_progress_iterations,
        max_restarts=config.launch.max_restarts,
        endpoint_host=setting.host,
        trust=trust_of(config.ftrun.checkpoint),
    )


def restart_of(config: Config) -> RestartConfig:
    """The limits of restarts; a key of ftrun's own wins over its counterpart of nvidia-resiliency-ext's."""
    restart, key = config.ftrun.restart, "fault_tolerance.max_no_progress_cycles"
    if not config.is_given(key) or config.is_given("ftrun.restart.max_no_progress"):
        return restart
    return replace(restart, max_no_progress=config.fault_tolerance.max_no_progress_cycles)


def make_membership(
    me: Self,
    run_id: str,
    setting: RendezvousSetting,
    config: Config,
    post: Callable[[Note], None],
    offer: Callable[[Collection[str]], Offer],
    record: Record,
) -> Membership:
    """This node's membership; `post` takes notes from any thread, `offer` makes ready for a round.

    Raises:
        BackendError: what the rendezvous backend needs is not installed.
    """
    options = config.launch
    hello = Hello(
        run_id=run_id,
        epoch=me.agent.incarnation,
        ftrun_version=metadata.version("ftrun"),
        fingerprint=fingerprint_of(options),
        job=describe_job(options),
        node=me.agent.node,
    )
    set_aside = partial(set_aside_in_thread, post=post)
    exchange = _make_exchange(me, hello, setting, config, post)
    rules = rules_of(setting, config)
    decide = partial(policy.decide, max_restarts=options.max_restarts, config=restart_of(config))
    return Membership(
        me,
        exchange,
        lambda now: Hosting(rules, exchange, decide, record, now, set_aside),
        offer,
        record,
        time.monotonic,
    )


def make_health(
    config: Config,
    node: str,
    slots: int,
    run_dir: Path,
    environ: Mapping[str, str],
    post: Callable[[health.Note], None],
) -> health.NodeHealth:
    """What checks this node; `environ` is the workers', `post` takes notes from any thread."""
    policy = build_policy(config.ftrun.health, config.fault_tolerance)
    if policy.is_enabled is None:
        policy = replace(policy, is_enabled=has_gpu_driver(environ) or has_rdma())
    scope = Scope(
        node,
        environ.get("CUDA_VISIBLE_DEVICES"),
        environ.get("CUDA_DEVICE_ORDER", ""),
        slots,
        config.ftrun.checkpoint.dir or "",
        config.launch.log_dir or "",
        str(run_dir),
        named_interfaces(environ),
    )
    return health.NodeHealth(
        policy,
        scope,
        post,
        time.monotonic,
        can_shrink=config.ftrun.world.shrink == "gpu",
        least_slots=max(1, config.ftrun.world.min_size or 1) if config.launch.max_nodes == 1 else 1,
    )


def _make_exchange(
    me: Self, hello: Hello, setting: RendezvousSetting, config: Config, post: Callable[[ex.Note], None]
) -> ex.Exchange:
    if setting.is_alone:
        return ex.LocalExchange(hello, me.agent, post)
    from ftrun.launcher.store_exchange import StoreExchange
    from ftrun.launcher.store_setting import StoreSetting

    store = StoreSetting(
        backend=setting.backend,
        host=setting.host,
        port=setting.port,
        is_host=setting.is_host,
        use_libuv=setting.use_libuv,
        read_timeout_s=setting.read_timeout_s,
        keep_alive_interval_s=setting.keep_alive_interval_s,
        lost_after_s=setting.lost_after_s,
        rank_hint=setting.rank_hint,
        has_run_id=setting.run_id is not None,
        same_arguments=config.ftrun.rdzv.same_arguments,
        backend_conf=setting.backend_conf,
    )
    return StoreExchange(store, hello, me.agent, post, time.monotonic)


def make_watchdog(
    config: Config,
    local_world_size: int,
    directory: Path | None,
    post: Callable[[Note], None],
    record: Record,
) -> Watchdog:
    """What looks at the workers; its sockets are in `directory`, None for no service to NVRx's clients."""
    section, timeouts = config.fault_tolerance, config.ftrun.timeouts
    limits = Timeouts.from_config(
        section.initial_rank_heartbeat_timeout,
        section.rank_heartbeat_timeout,
        dict(section.rank_section_timeouts),
        section.rank_out_of_section_timeout,
        section.num_warmup_iterations,
    )
    stall = StallLimits(
        is_learning=timeouts.stall == "auto",
        fixed_s=timeouts.stall if isinstance(timeouts.stall, float) else None,
        floor_s=timeouts.stall_floor,
        safety_factor=section.safety_factor,
        initial_s=section.initial_rank_heartbeat_timeout,
    )
    servers = _serve_heartbeats(config, local_world_size, limits, directory, post, record)
    return Watchdog(servers, limits, stall)


def _serve_heartbeats(
    config: Config,
    local_world_size: int,
    limits: Timeouts,
    directory: Path | None,
    post: Callable[[Note], None],
    record: Record,
) -> HeartbeatServers | None:
    if directory is None:
        return None
    section = config.fault_tolerance
    settings = ClientSettings(
        section.safety_factor,
        section.skip_section_response,
        section.workload_check_interval,
        signal.Signals[section.rank_termination_signal],
    )
    try:
        return HeartbeatServers(
            directory,
            range(local_world_size),
            limits,
            settings,
            lambda local_rank, state: post((local_rank, state)),
            post,
        )
    except (OSError, SocketPathError) as error:
        record(events.HeartbeatsDegraded(str(error)))
        return None


def make_gatherer(config: Config, node: str, oom: OomCounter, environ: Mapping[str, str]) -> Gatherer:
    """What gathers the evidence of a failure, without what looks like a secret."""
    secrets = secret_values(environ, config.launch.training_script_args)
    surroundings = Surroundings(environ, config.ftrun.checkpoint.dir)
    return Gatherer(node, oom, surroundings, Redactor(secrets))
