"""Whether another node can be connected to, and if not, why, in words that say what to do about it.

A job whose ranks cannot reach their store shows nothing: all of them wait in `init_process_group`, for as
long as its timeout is. Each node tries the way itself, beside its workers.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ftrun.launcher.model import Plan

_PATIENCE_S = 5.0
"""Two SYNs may get lost (TCP sends the third after 3 s); the store listens since before the round began."""
_AGAIN_S = 0.5


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The workers' store of a round cannot be reached from this node."""

    round_number: int
    reason: str
    """A sentence that names both nodes and the remedy."""


class StoreCheck:
    """Tries to connect to the workers' store of each round, in a thread, unless this node serves it itself.

    `post` is called from that thread, at most once in a round and not after its end.
    """

    def __init__(
        self, node: str, post: Callable[[Unreachable], None], patience_s: float = _PATIENCE_S
    ) -> None:
        self._node = node
        self._post = post
        self._patience_s = patience_s
        self._ended = threading.Event()

    def begin(self, plan: Plan) -> None:
        """A round has begun: its store listens already."""
        self.end()
        if plan.ranks.group_rank != 0:
            self._ended = ended = threading.Event()
            run = threading.Thread(target=self._try, args=(plan, ended), name="ftrun-reach", daemon=True)
            run.start()

    def end(self) -> None:
        """The round is over: what is found out about it is of no interest any more."""
        self._ended.set()

    def _try(self, plan: Plan, ended: threading.Event) -> None:
        give_up_at = time.monotonic() + self._patience_s
        reason = ""
        while (left_s := give_up_at - time.monotonic()) >= _AGAIN_S or not reason:
            reason = check_reachable(plan.master_addr, plan.master_port, left_s)
            if not reason or ended.wait(_AGAIN_S):
                return
        first = plan.nodes[0]
        what = f"node {self._node} cannot reach the workers' store on node {first}"
        tried = f"tried for {self._patience_s:g} s"
        self._post(Unreachable(plan.round_number, f"{what}: {reason} ({tried}); {_remedy(first)}"))


def check_reachable(address: str, port: int, timeout_s: float) -> str:
    """Connect to one address of a host after the other until one answers; "" if one does, else the reason.

    Takes `timeout_s` seconds at most, and longer only where the name server does not answer.
    """
    deadline = time.monotonic() + timeout_s
    place = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return f"{place} cannot be resolved ({error.strerror or error})"
    except UnicodeError:  # a label that is empty or too long
        return f"{place} is no host name"
    reasons: list[str] = []
    for number, (family, kind, protocol, _, endpoint) in enumerate(found):
        # The first addresses must not use up the time of the others.
        wait_s = max(0.001, (deadline - time.monotonic()) / (len(found) - number))
        try:
            with socket.socket(family, kind, protocol) as client:
                client.settimeout(wait_s)
                client.connect(endpoint)
        except OSError as error:
            reason = _describe(error)
            reasons.append(f"{endpoint[0]}: {reason}" if len(found) > 1 else reason)
        else:
            return ""
    return f"{place}: {', '.join(reasons)}"


def _describe(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused, so nothing listens there or a firewall rejects it"
    return error.strerror or str(error)


def _remedy(node: str) -> str:
    address = "--local-addr with an address that the other nodes can reach"
    return f"give node {node} {address}, or open its ports to them"
