"""What the kernel said of a node's NICs, PCI devices, memory and paths at one moment. Pure; nothing judged.

A field that is None, "" or empty was not there to be read: an older kernel, a container without that file,
another kind of device. Where judges must tell "not there" from "cannot be read" the field is a `Reading`.
`ftrun.healthchecks.reading.to_json` and `from_json` carry all of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ftrun.healthchecks.pressure import Pressure as Pressure
from ftrun.healthchecks.reading import NOT_READ, Reading


@dataclass(frozen=True, slots=True)
class PciDevice:
    """One function on the PCI bus."""

    address: str
    """Name in sysfs: "0000:3b:00.0"; domains may have more than four digits."""
    chain: tuple[str, ...]
    """What it hangs on, host bridge first, itself last: ("pci0000:3a", "0000:3a:01.0", "0000:3b:00.0")."""
    numa_node: int = -1
    """-1 is unknown."""
    vendor: int | None = None
    device_class: int | None = None
    """24 bits: 0x030200 is a 3D controller."""
    config_vendor: int | None = None
    """First word of the configuration space, read from the device itself: 0xffff if it answers no more."""
    driver: str = ""
    slot: str = ""
    """Name of the physical slot, as it may be printed on the chassis; "" if the firmware names none."""
    link_width: int | None = None
    """Lanes in use."""
    link_width_max: int | None = None
    """Lanes of the device; the slot may have fewer."""
    link_speed_gts: float | None = None
    """GT/s per lane in use."""
    link_speed_max_gts: float | None = None
    fatal_errors: int | None = None
    """AER: uncorrectable errors since boot, fatal."""
    nonfatal_errors: int | None = None
    """AER: uncorrectable errors since boot, not fatal."""
    is_virtual_function: bool = False
    reset_methods: tuple[str, ...] = ()
    """How the kernel could reset it: "flr", "bus", .. ."""


@dataclass(frozen=True, slots=True)
class Counter:
    """One event counter that grows from the load of the driver on, or until somebody clears it."""

    name: str
    """File name in sysfs: "link_downed"."""
    value: int


def value_in(counters: Iterable[Counter], name: str) -> int | None:
    """The value of that counter, if it is there."""
    return next((counter.value for counter in counters if counter.name == name), None)


class LinkLayer(Enum):
    """What an RDMA port speaks."""

    INFINIBAND = "InfiniBand"
    ETHERNET = "Ethernet"
    """RoCE."""
    EFA = "EFA"
    """Its driver claims an active port, whatever the link does (efa_query_port)."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Port:
    """One port of an RDMA device."""

    number: int
    state: Reading[str] = NOT_READ
    """ "ACTIVE", "DOWN", "INIT", "ARMED", .. ."""
    physical_state: Reading[str] = NOT_READ
    """ "LinkUp", "Disabled", "Polling", .. ."""
    layer: LinkLayer = LinkLayer.OTHER
    rate_gbps: float | None = None
    has_gid: bool | None = None
    """Some entry of the GID table is not zero; RoCE has none while its interface is down."""
    counters: tuple[Counter, ...] = ()
    """`counters` and `hw_counters` together; a file that says something other than a number is left out."""


@dataclass(frozen=True, slots=True)
class Nic:
    """One RDMA device (per entry of class/infiniband)."""

    name: str
    """ "mlx5_0"; a reboot may number devices otherwise, so judges compare by `key`."""
    pci: PciDevice | None = None
    """None for devices without hardware (rxe, siw)."""
    driver: str = ""
    ports: tuple[Port, ...] = ()
    interfaces: tuple[str, ...] = ()
    """Network interfaces of the same PCI function; for RoCE that is the other face of the port."""
    has_verbs: bool | None = None
    """A character device for user programs exists (class/infiniband_verbs); None without that class."""
    counters: tuple[Counter, ...] = ()
    """Of the whole device."""

    @property
    def key(self) -> str:
        """What stays the same over reboots: the PCI address, else the name."""
        return self.pci.address if self.pci else self.name


@dataclass(frozen=True, slots=True)
class Interface:
    """One network interface (per entry of class/net)."""

    name: str
    is_up: bool | None = None
    """IFF_UP: somebody wants it up."""
    operstate: str = ""
    """RFC 2863: "up", "down", "lowerlayerdown", "dormant", "unknown" (drivers that do not say), .. ."""
    has_carrier: bool | None = None
    carrier_changes: int | None = None
    speed_mbps: int | None = None
    """None also where the driver says -1."""
    mtu: int | None = None
    pci: PciDevice | None = None
    members: tuple[str, ...] = ()
    """Interfaces that this one bonds."""
    bond: str = ""
    """The bond it is a member of."""


@dataclass(frozen=True, slots=True)
class NetworkSnapshot:
    """One reading of a node's NICs."""

    taken_at: float
    """CLOCK_MONOTONIC of this node, seconds, when the reading began."""
    nics: tuple[Nic, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    default_routes: tuple[str, ...] = ()
    """Interfaces with a default route: the management network."""
    gpus: tuple[PciDevice, ...] = ()
    """NVIDIA's display and 3D controllers on the PCI bus, with a driver or without one."""
    has_rdma: bool = True
    """class/infiniband is there; False without RDMA drivers and in containers without them."""

    def nic(self, key: str) -> Nic | None:
        """The device with that `Nic.key`."""
        return next((nic for nic in self.nics if nic.key == key), None)

    def interface(self, name: str) -> Interface | None:
        """The interface of that name."""
        return next((interface for interface in self.interfaces if interface.name == name), None)


@dataclass(frozen=True, slots=True)
class Sleeper:
    """A process that is dead and not reaped (Z), or sleeps uninterruptibly (D)."""

    pid: int
    started_ticks: int
    """Field 22 of proc(5) stat; with the pid it names one process for ever."""
    state: str
    command: str
    """At most 15 characters."""


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of /proc/self/mountinfo; the last one of a mount point is the one that is seen."""

    point: str
    filesystem: str
    source: str
    is_read_only: bool = False


@dataclass(frozen=True, slots=True)
class HostSnapshot:
    """One reading of a node's own state; no path that could hang was touched for it."""

    taken_at: float
    """CLOCK_MONOTONIC of this node, seconds."""
    wall_ts: float
    """UTC epoch, seconds, read together with `taken_at`; only their difference over time means anything."""
    boot_id: str = ""
    clock_source: str = ""
    """ "tsc", "hpet", "kvm-clock", .. ."""
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    """MemAvailable: without swapping."""
    memory_limit_bytes: int | None = None
    """The cgroup's; None if there is none."""
    memory_headroom_bytes: int | None = None
    """What the cgroup may still use."""
    oom_kills: int | None = None
    """In the cgroup, since it was made."""
    shm_bytes: int | None = None
    """Size of /dev/shm; None if there is none."""
    shm_free_bytes: int | None = None
    cpu_pressure: Pressure | None = None
    memory_pressure: Pressure | None = None
    io_pressure: Pressure | None = None
    locked_memory_limit_bytes: int | None = None
    """RLIMIT_MEMLOCK (soft) of this process; None is unlimited."""
    open_files_limit: int | None = None
    """RLIMIT_NOFILE (hard) of this process; None is unlimited. The soft one can be raised up to it."""
    open_files: int | None = None
    """In the whole kernel."""
    open_files_max: int | None = None
    tasks: int | None = None
    """Processes and threads in the tightest pids cgroup."""
    tasks_max: int | None = None
    sleepers: tuple[Sleeper, ...] = ()
    mounts: tuple[Mount, ...] = ()
    lustre_health: str = ""
    """ "healthy" or what is wrong; "" without Lustre."""
    failures: tuple[str, ...] = ()
    """What could not be read although it is there: a sentence each."""


class StorageStep(Enum):
    """What the storage probe does, in this order."""

    START = "start"
    FIND = "find"
    """Resolve the path, or its nearest directory that exists."""
    SPACE = "space"
    CREATE = "create"
    WRITE = "write"
    SYNC = "sync"
    READ_BACK = "read_back"
    REMOVE = "remove"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class PathReading:
    """What a write and read-back on one path gave, or a mere read (per path of the job)."""

    path: str
    """As configured."""
    taken_at: float
    """CLOCK_MONOTONIC of this node, seconds, when the probe began."""
    step: StorageStep
    """How far it came; `DONE` if everything worked."""
    directory: str = ""
    """What was probed, symbolic links resolved: the path, or the nearest directory above it that exists."""
    has_hung: bool = False
    """No answer within the deadline: it sleeps in `step`."""
    is_abandoned: bool = False
    """The probe has outlived SIGKILL, or one before it has, so that none was started."""
    error: str = ""
    """Why `step` failed, as the system says it."""
    errno_name: str = ""
    """ "ENOSPC"; "" if the failure has none (data read back are not those written)."""
    took_s: float = 0.0
    total_bytes: int | None = None
    free_bytes: int | None = None
    """For this user (f_bavail)."""
    total_inodes: int | None = None
    """None where the filesystem does not count them (btrfs)."""
    free_inodes: int | None = None
    is_written: bool = True
    """False if it was only read, and has to be there."""
