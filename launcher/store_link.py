"""What an agent has once it has found its job's store, whatever kind it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ftrun.launcher.handshake import find_mismatch
from ftrun.launcher.message_codec import MessageError, decode_hello, encode
from ftrun.launcher.messages import Agent, Hello, Refused
from ftrun.launcher.store_board import Board
from ftrun.launcher.store_client import StoreClient


class NotYet(Exception):
    """There is no store to join at present; the sentence says what is waited for."""


class RefusedError(Exception):
    """This agent does not belong to the job that was found; a sentence."""


def _never(_: Board) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Link:
    """A store that this agent belongs to."""

    board: Board
    open_client: Callable[[], StoreClient]
    """A further connection. Raises StoreError."""
    hello: Hello
    """The host agent's."""
    is_host: bool
    find_loss: Callable[[Board], str] = _never
    """Asked with each keep-alive: why the host agent must be taken for gone; "" if it is there."""
    outlives_host: bool = False
    """The store is nobody's: the host agent must say that it ends."""


def shake_hands(
    board: Board, where: str, own: Hello, agent: Agent, has_run_id: bool, same_arguments: bool, wait_s: float
) -> Hello:
    """The host agent's hello, if this agent belongs to its job.

    Raises:
        NotYet: nobody has announced itself.
        RefusedError: it is another job, or another version; the host agent has been told.
        StoreError: the store failed.
    """
    text = board.read_hello(wait_s)
    if text is None:
        raise NotYet(f"the store at {where} is not this job's: no ftrun agent has announced itself there")
    try:
        hello = decode_hello(text)
        reason = find_mismatch(own, hello, where, has_run_id, same_arguments)
    except MessageError as error:
        reason = f"the host agent at {where} cannot be understood: {error}"
    if reason:
        board.send(encode(Refused(agent, reason)))
        raise RefusedError(reason)
    return hello
