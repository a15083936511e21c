"""What to do about each kind of incident, in a sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ftrun.monitor.incident import IncidentKind as Kind

_REMEDIES: Mapping[Kind, str] = {
    Kind.EXCEPTION: "It is the script's own: its traceback is in `ftctl show`.",
    Kind.IMPORT_OR_SYNTAX_ERROR: "Repair the script or its environment; no restart can help.",
    Kind.CUDA_OOM: "Use less GPU memory: smaller batches, activation checkpointing, more sharding.",
    Kind.CUDA_ERROR: "A kernel failed: CUDA_LAUNCH_BLOCKING=1 shows which; always on one GPU, blame that.",
    Kind.NCCL_TIMEOUT: "A rank came too late to a collective: `ftctl show` has stacks and recorder dumps.",
    Kind.NCCL_ERROR: "NCCL_DEBUG=WARN says more; look at the network and the GPUs of that node.",
    Kind.GLOO_PEER_LOST: "Look at the network between the nodes; `ftctl show` names the ranks.",
    Kind.COMMUNICATION_ERROR: "Look at the network between the nodes; `ftctl show` names the ranks.",
    Kind.HOST_OOM: "Give the container more memory, or use less: fewer data loader workers, smaller batches.",
    Kind.SEGFAULT: "A native library crashed: `ftctl show` has the end of the rank's stderr.",
    Kind.ABORT: "A native library gave up: its last words are in `ftctl show`.",
    Kind.BUS_ERROR: "Shared memory or a file was cut short: was /dev/shm full (`ftctl show`, --shm-size)?",
    Kind.KILLED: "Something outside sent SIGKILL: look at the scheduler, and at dmesg of that machine.",
    Kind.SIGNAL: "Something outside sent the signal: look at the scheduler of that machine.",
    Kind.EXIT_CODE: "The script ended itself with that code; its last words are in `ftctl show`.",
    Kind.DISK_FULL: "Make room, or write elsewhere: `ftctl show` says which file system was full.",
    Kind.CHECKPOINT_LOAD: "Look at that checkpoint: if it is damaged, an older one is used.",
    Kind.CHECKPOINT_SAVE: "Look at the checkpoint directory: its rights, its room and its file server.",
    Kind.DATA_LOADER: "It failed while it made a batch: its traceback is in `ftctl show`.",
    Kind.PORT_IN_USE: "Another process has the port: end that process, or do not give a --master-port.",
    Kind.NAN_LOSS: "Training went astray: a smaller learning rate, gradient clipping, or other data.",
    Kind.HANG_INITIAL: "It came to no first step in time: `ftctl show` has the stacks of all ranks.",
    Kind.HANG_STEADY: "It stopped moving: `ftctl show` has the stacks of all ranks.",
    Kind.HANG_SECTION: "A section took too long: `ftctl show` has the stacks of all ranks.",
    Kind.STALL: "No rank moved any more: `ftctl show` has all stacks, and names who is waited for.",
    Kind.NODE_LOST: "Look at that machine.",
    Kind.PREEMPTED: "The node was told to leave: look at the scheduler.",
    Kind.START_FAILED: "The system would not start the workers: limits of processes, memory or descriptors?",
    Kind.UNREACHABLE: "Open the way between the nodes; --local-addr chooses another address.",
    Kind.GPU_LOST: "Reset or replace the GPU, and keep the node out until then.",
    Kind.ECC_ERROR: "Reset the GPU; replace it if that comes again.",
    Kind.XID: "Look the Xid up in NVIDIA's list; keep the node out if it comes again.",
    Kind.NODE_UNHEALTHY: "`ftctl show` says which check failed, and what to do.",
    Kind.USER_STOP: "It was asked for.",
    Kind.UNKNOWN: "`ftctl show` has all that was seen.",
}


_GONE = (Kind.NODE_LOST, Kind.PREEMPTED)
_SPARE = " A spare node (ftrun.world.spares) would take its place at once."


def remedy_of(kind: str, has_spares: bool = False) -> str:
    """What to do about an incident of that kind; of one of another version, where to look."""
    try:
        known = Kind(kind)
    except ValueError:
        return _REMEDIES[Kind.UNKNOWN]
    more = _SPARE if known in _GONE and not has_spares else ""
    return _REMEDIES.get(known, _REMEDIES[Kind.UNKNOWN]) + more
