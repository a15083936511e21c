"""Reads NICs, network interfaces and PCI devices below a sysfs root. Judges nothing.

A read may wait for firmware (mlx5 fetches port counters from the card), so call it where a wait hurts nobody.
Files: Documentation/ABI/stable/sysfs-class-infiniband, testing/sysfs-class-net, testing/sysfs-bus-pci.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from ftrun.healthchecks.host_snapshots import (
    Counter,
    Interface,
    LinkLayer,
    NetworkSnapshot,
    Nic,
    PciDevice,
    Port,
)
from ftrun.healthchecks.reading import Lack, Missing, Reading, Value

_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_FUNCTION = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_AMAZON, _NVIDIA = 0x1D0F, 0x10DE
_DISPLAY_CLASSES = (0x0300, 0x0302)
"""VGA and 3D controllers (pci_ids.h)."""
_GIDS_READ = 8
"""Entries of a GID table of up to 256; addresses fill it from the start."""
_IFF_UP = 1
_RTF_GATEWAY = 2
_LACK_BY_ERRNO = {
    errno.ENOENT: Lack.NOT_FOUND,
    errno.ENOTDIR: Lack.NOT_FOUND,
    errno.ENODEV: Lack.NOT_FOUND,
    errno.EACCES: Lack.NO_PERMISSION,
    errno.EPERM: Lack.NO_PERMISSION,
    errno.EINVAL: Lack.NOT_SUPPORTED,
    errno.EOPNOTSUPP: Lack.NOT_SUPPORTED,
}


class NetworkReader:
    """Reads one node's NICs again and again.

    It remembers files that are there and refuse (functions of a card that the fabric manager owns): each
    further try would cost a line in the kernel's log.
    """

    def __init__(
        self, counters: Collection[str] | None = None, sysfs: Path = Path("/sys"), proc: Path = Path("/proc")
    ) -> None:
        """
        Args:
            counters: names of the event counters to read, None for all of the forty or so of a port.
            sysfs: where sysfs is mounted.
            proc: where proc is mounted.
        """
        self._counters = counters
        self._sysfs = sysfs
        self._proc = proc
        self._refused: set[str] = set()

    def read(self, now: float) -> NetworkSnapshot:
        """Everything as it is at `now` (CLOCK_MONOTONIC, seconds). Never raises OSError."""
        rdma = self._sysfs / "class/infiniband"
        slots = self._read_slots()
        verbs = self._read_verbs()
        return NetworkSnapshot(
            taken_at=now,
            nics=tuple(self._read_nic(rdma / name, slots, verbs) for name in _names(rdma)),
            interfaces=tuple(self._read_interface(path, slots) for path in self._interface_paths()),
            default_routes=self._read_default_routes(),
            gpus=tuple(self._read_gpus(slots)),
            has_rdma=rdma.is_dir(),
        )

    def read_pci(self, address: str) -> PciDevice | None:
        """The PCI device of that sysfs name; None if there is none."""
        return self._read_pci(self._sysfs / "bus/pci/devices" / address, self._read_slots())

    def _read_nic(self, path: Path, slots: dict[str, str], verbs: frozenset[str] | None) -> Nic:
        device = path / "device"
        driver = _link_name(device / "driver")
        pci = self._read_pci(device, slots)
        is_efa = driver == "efa" or (pci is not None and pci.vendor == _AMAZON)
        return Nic(
            name=path.name,
            pci=pci,
            driver=driver,
            ports=tuple(
                self._read_port(path / "ports" / name, is_efa)
                for name in _names(path / "ports")
                if name.isdecimal()
            ),
            interfaces=tuple(_names(device / "net")),
            has_verbs=None if verbs is None else path.name in verbs,
            counters=self._read_counters(path / "hw_counters"),
        )

    def _read_port(self, path: Path, is_efa: bool) -> Port:
        return Port(
            number=int(path.name),
            state=self._read_state(path / "state"),
            physical_state=self._read_state(path / "phys_state"),
            layer=LinkLayer.EFA if is_efa else self._read_layer(path),
            rate_gbps=_leading_number(self._read_text(path / "rate")),
            has_gid=self._has_gid(path / "gids"),
            counters=self._read_counters(path / "counters") + self._read_counters(path / "hw_counters"),
        )

    def _read_state(self, path: Path) -> Reading[str]:
        """ "4: ACTIVE" as "ACTIVE"."""
        reading = self._try_text(path)
        return reading if isinstance(reading, Missing) else Value(reading.value.partition(":")[2].strip())

    def _read_layer(self, path: Path) -> LinkLayer:
        text = self._read_text(path / "link_layer")
        return LinkLayer(text) if text in (layer.value for layer in LinkLayer) else LinkLayer.OTHER

    def _has_gid(self, path: Path) -> bool | None:
        entries = (self._read_text(path / name) for name in _names(path)[:_GIDS_READ])
        known = [entry for entry in entries if entry]
        return any(set(entry) - set("0:") for entry in known) if known else None

    def _read_counters(self, path: Path) -> tuple[Counter, ...]:
        names = [name for name in _names(path) if name != "lifespan"]  # how long the card may keep a value
        wanted = names if self._counters is None else [name for name in names if name in self._counters]
        texts = ((name, self._read_text(path / name)) for name in wanted)
        return tuple(Counter(name, int(text)) for name, text in texts if text.isdecimal())

    def _read_verbs(self) -> frozenset[str] | None:
        """Names of the devices that have a character device; umad and issm are not what verbs need."""
        directory = self._sysfs / "class/infiniband_verbs"
        if not directory.is_dir():
            return None
        return frozenset(self._read_text(directory / name / "ibdev") for name in _names(directory))

    def _interface_paths(self) -> Iterator[Path]:
        directory = self._sysfs / "class/net"
        # "bonding_masters" is a file beside the interfaces.
        return (directory / name for name in _names(directory) if (directory / name / "ifindex").exists())

    def _read_interface(self, path: Path, slots: dict[str, str]) -> Interface:
        speed, carrier = self._read_int(path / "speed"), self._read_int(path / "carrier")
        flags = _hexadecimal(self._read_text(path / "flags"))
        return Interface(
            name=path.name,
            is_up=None if flags is None else bool(flags & _IFF_UP),
            operstate=self._read_text(path / "operstate"),
            has_carrier=None if carrier is None else carrier == 1,
            carrier_changes=self._read_int(path / "carrier_changes"),
            speed_mbps=speed if speed is not None and speed > 0 else None,
            mtu=self._read_int(path / "mtu"),
            pci=self._read_pci(path / "device", slots),
            members=tuple(self._read_text(path / "bonding/slaves").split()),
            bond=_link_name(path / "master") if (path / "bonding_slave").is_dir() else "",
        )

    def _read_default_routes(self) -> tuple[str, ...]:
        """IPv4's, and IPv6's if there is none (route table formats of /proc/net)."""
        found = set()
        for line in self._read_text(self._proc / "net/route").splitlines()[1:]:
            words = line.split()
            if len(words) > 7 and words[1] == words[7] == "00000000" and int(words[3], 16) & _RTF_GATEWAY:
                found.add(words[0])
        for line in self._read_text(self._proc / "net/ipv6_route").splitlines() if not found else ():
            words = line.split()
            if len(words) == 10 and words[1] == "00" and int(words[8], 16) & _RTF_GATEWAY:
                found.add(words[9])
        return tuple(sorted(found))

    def _read_gpus(self, slots: dict[str, str]) -> Iterator[PciDevice]:
        directory = self._sysfs / "bus/pci/devices"
        for name in _names(directory):
            if _hexadecimal(self._read_text(directory / name / "vendor")) == _NVIDIA:
                device = self._read_pci(directory / name, slots)
                if device is not None and (device.device_class or 0) >> 8 in _DISPLAY_CLASSES:
                    yield device

    def _read_slots(self) -> dict[str, str]:
        """Physical slot by address without the function: {"0000:3b:00": "GPU-2"}."""
        directory = self._sysfs / "bus/pci/slots"
        return {self._read_text(directory / name / "address"): name for name in _names(directory)}

    def _read_pci(self, path: Path, slots: dict[str, str]) -> PciDevice | None:
        chain, device = _locate(path)
        if not chain or not _FUNCTION.fullmatch(chain[-1]):
            return None
        numa_node = self._read_int(device / "numa_node")
        return PciDevice(
            address=chain[-1],
            chain=chain,
            numa_node=-1 if numa_node is None else numa_node,
            vendor=_hexadecimal(self._read_text(device / "vendor")),
            device_class=_hexadecimal(self._read_text(device / "class")),
            config_vendor=self._read_config_vendor(device / "config"),
            driver=_link_name(device / "driver"),
            slot=slots.get(chain[-1].rpartition(".")[0], ""),
            link_width=self._read_width(device / "current_link_width"),
            link_width_max=self._read_width(device / "max_link_width"),
            link_speed_gts=_leading_number(self._read_text(device / "current_link_speed")),
            link_speed_max_gts=_leading_number(self._read_text(device / "max_link_speed")),
            fatal_errors=self._read_total(device / "aer_dev_fatal"),
            nonfatal_errors=self._read_total(device / "aer_dev_nonfatal"),
            is_virtual_function=(device / "physfn").exists(),
            reset_methods=tuple(self._read_text(device / "reset_method").split()),
        )

    def _read_config_vendor(self, path: Path) -> int | None:
        try:
            with path.open("rb", buffering=0) as file:
                word = file.read(2)
        except OSError:
            return None
        return int.from_bytes(word, "little") if len(word) == 2 else None

    def _read_width(self, path: Path) -> int | None:
        """Lanes; 0 and 255 are what a device says that has no link or is gone."""
        width = self._read_int(path)
        return None if width in (0, 255) else width

    def _read_total(self, path: Path) -> int | None:
        """The last line of an AER file: "TOTAL_ERR_FATAL 0"."""
        words = self._read_text(path).split()
        return int(words[-1]) if words and words[-1].isdecimal() else None

    def _read_int(self, path: Path) -> int | None:
        text = self._read_text(path)
        return int(text) if re.fullmatch(r"-?\d+", text) else None

    def _read_text(self, path: Path) -> str:
        """Content of a small file without the newline; "" if it cannot be read."""
        reading = self._try_text(path)
        return reading.value if isinstance(reading, Value) else ""

    def _try_text(self, path: Path) -> Reading[str]:
        name = str(path)
        if name in self._refused:
            return Missing(Lack.NOT_SUPPORTED, f"{name}: refused before")
        try:
            with open(name, "rb", buffering=0) as file:
                return Value(file.read().decode(errors="replace").strip())
        except OSError as error:
            # Other files say EINVAL for a while only, such as the carrier of an interface that is down.
            if error.errno == errno.EINVAL and path.parent.name in ("counters", "hw_counters"):
                self._refused.add(name)
            lack = _LACK_BY_ERRNO.get(error.errno or 0, Lack.ERROR)
            return Missing(lack, f"{name}: {error.strerror}", error.errno)


def _names(directory: Path) -> list[str]:
    """Entries in natural order: mlx5_2 before mlx5_10; none if there is no such directory."""
    try:
        return sorted(os.listdir(directory), key=natural_order)
    except OSError:
        return []


def natural_order(name: str) -> list[tuple[int, str]]:
    """Sort key that compares the numbers in a name as numbers."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _locate(path: Path) -> tuple[tuple[str, ...], Path]:
    """Host bridge and PCI functions on the real path, and the directory of the last of them.

    What hangs on a virtio NIC is below its PCI function. No names if it is no PCI device, or is not there.
    """
    real = os.path.realpath(path)
    parts = real.split("/")
    names = [part for part in parts if _HOST_BRIDGE.fullmatch(part) or _FUNCTION.fullmatch(part)]
    if not names or not os.path.exists(real):
        return (), path
    depth = len(parts) - parts[::-1].index(names[-1])
    return tuple(names), Path("/".join(parts[:depth]))


def _link_name(path: Path) -> str:
    """Last part of what a symbolic link points to; "" if it is none."""
    try:
        return os.readlink(path).rpartition("/")[2]
    except OSError:
        return ""


def _hexadecimal(text: str) -> int | None:
    return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", text) else None


def _leading_number(text: str) -> float | None:
    """400.0 of "400 Gb/sec (4X NDR)", 32.0 of "32.0 GT/s PCIe"."""
    match = re.match(r"\d+(\.\d+)?", text)
    return float(match[0]) if match else None
