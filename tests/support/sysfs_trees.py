"""Fake sysfs trees of well-known machines, as far as the readers look into them."""

from __future__ import annotations

import os
from pathlib import Path

COUNTERS = {
    "link_downed": 0,
    "symbol_error": 0,
    "port_rcv_errors": 0,
    "port_xmit_discards": 0,
    "excessive_buffer_overrun_errors": 0,
}


class SysfsTree:
    """One tree, with a proc beside it; what was made can be changed by `write` and `remove`."""

    def __init__(self, root: Path) -> None:
        self.sysfs = root / "sys"
        self.proc = root / "proc"
        self.sysfs.mkdir(parents=True)
        (self.proc / "net").mkdir(parents=True)

    def write(self, name: str, text: object) -> None:
        path = self.sysfs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def link(self, name: str, target: str) -> None:
        path = self.sysfs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(os.path.relpath(self.sysfs / target, path.parent))

    def default_route(self, interface: str) -> None:
        rows = ["Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT"]
        rows.append(f"{interface} 00000000 0100000A 0003 0 0 0 00000000 0 0 0")
        rows.append(f"{interface} 0000000A 00000000 0001 0 0 0 00FFFFFF 0 0 0")
        (self.proc / "net/route").write_text("\n".join(rows) + "\n")

    def pci(self, place: str, numa: int, vendor: int, device_class: int, driver: str, width: int = 16) -> str:
        """A function below `place` ("pci0000:15/0000:15:01.0/.."); returns its directory."""
        directory, address = f"devices/{place}", place.rpartition("/")[2]
        files = {
            "numa_node": numa,
            "vendor": f"0x{vendor:04x}",
            "class": f"0x{device_class:06x}",
            "current_link_width": width,
            "max_link_width": width,
            "current_link_speed": "32.0 GT/s PCIe",
            "max_link_speed": "32.0 GT/s PCIe",
            "reset_method": "flr bus",
            "aer_dev_fatal": "Undefined 0\nTOTAL_ERR_FATAL 0",
            "aer_dev_nonfatal": "Undefined 0\nTOTAL_ERR_NONFATAL 0",
        }
        for name, value in files.items():
            self.write(f"{directory}/{name}", value)
        (self.sysfs / directory / "config").write_bytes(vendor.to_bytes(2, "little") + bytes(62))
        self.link(f"{directory}/driver", f"bus/pci/drivers/{driver}")
        self.link(f"bus/pci/devices/{address}", directory)
        return directory

    def gpu(self, place: str, numa: int) -> str:
        return self.pci(place, numa, 0x10DE, 0x030200, "nvidia")

    def nic(
        self,
        place: str,
        numa: int,
        name: str,
        *,
        layer: str = "InfiniBand",
        rate: str = "400 Gb/sec (4X NDR)",
        interface: str = "",
        driver: str = "mlx5_core",
        vendor: int = 0x15B3,
    ) -> None:
        """An RDMA device with one active port, and its interface if it has one."""
        directory = self.pci(place, numa, vendor, 0x020700, driver)
        rdma = f"{directory}/infiniband/{name}"
        self.link(f"{rdma}/device", directory)
        self.link(f"class/infiniband/{name}", rdma)
        self.port(name, 1, layer, rate)
        self.write(f"class/infiniband_verbs/uverbs-{name}/ibdev", name)
        if interface:
            self.interface(interface, directory)

    def port(
        self,
        nic: str,
        number: int,
        layer: str,
        rate: str,
        state: str = "4: ACTIVE",
        physical: str = "5: LinkUp",
    ) -> None:
        base = f"class/infiniband/{nic}/ports/{number}"
        files: dict[str, object] = {"state": state, "phys_state": physical, "link_layer": layer, "rate": rate}
        for file, value in files.items():
            self.write(f"{base}/{file}", value)
        self.write(f"{base}/gids/0", "fe80:0000:0000:0000:0a00:0000:0000:0001")
        for counter, value in COUNTERS.items():
            self.write(f"{base}/counters/{counter}", value)
        self.write(f"{base}/counters/port_rcv_data", "N/A (no PMA)")
        self.write(f"{base}/hw_counters/rnr_nak_retry_err", 0)
        self.write(f"{base}/hw_counters/lifespan", 10)

    def interface(self, name: str, device: str = "", speed: int = 400000) -> None:
        base = f"{device}/net/{name}" if device else f"devices/virtual/net/{name}"
        files = {
            "ifindex": 2,
            "flags": "0x1003",
            "operstate": "up",
            "carrier": 1,
            "carrier_changes": 1,
            "speed": speed,
            "mtu": 9000,
        }
        for file, value in files.items():
            self.write(f"{base}/{file}", value)
        if device:
            self.link(f"{base}/device", device)
        self.link(f"class/net/{name}", base)

    def remove(self, name: str) -> None:
        """Take away what `name` is, a link or a file."""
        (self.sysfs / name).unlink()


def dgx_h100(root: Path, gpus: int = 8) -> SysfsTree:
    """Each GPU shares a PCI switch with one NIC; storage elsewhere; a management Ethernet."""
    tree = SysfsTree(root)
    for index in range(gpus):
        bus, numa = 0x10 + 0x10 * index, index * 2 // gpus
        switch = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0"
        tree.gpu(f"{switch}/0000:{bus + 2:02x}:00.0/0000:{bus + 3:02x}:00.0", numa)
        tree.nic(f"{switch}/0000:{bus + 2:02x}:01.0/0000:{bus + 4:02x}:00.0", numa, f"mlx5_{index}")
        tree.write(f"bus/pci/slots/GPU-{index}/address", f"0000:{bus + 3:02x}:00")
    for index in range(2):
        place = f"pci0000:a{index}/0000:a{index}:01.0/0000:b{index}:00.0"
        tree.nic(place, index, f"mlx5_{gpus + index}", layer="Ethernet", interface=f"storage{index}")
    tree.interface(
        "eno1", tree.pci("pci0000:00/0000:00:1c.0/0000:02:00.0", 0, 0x8086, 0x020000, "igb", 1), 1000
    )
    tree.interface("lo")
    tree.link("class/infiniband/rxe0", "devices/virtual/infiniband/rxe0")
    tree.write("devices/virtual/infiniband/rxe0/ports/1/state", "4: ACTIVE")
    tree.default_route("eno1")
    return tree


def dgx_gpu(index: int) -> str:
    """PCI address of a GPU of `dgx_h100`."""
    return f"0000:{0x10 + 0x10 * index + 3:02x}:00.0"


def gb200(root: Path) -> SysfsTree:
    """Each GPU and each NIC in a PCI domain of its own; only the NUMA node is shared."""
    tree = SysfsTree(root)
    for index, domain in enumerate(("0008", "0009", "0018", "0019")):
        tree.gpu(f"pci{domain}:00/{domain}:00:00.0/{domain}:01:00.0", index // 2)
    for index, domain in enumerate(("0000", "0002", "0010", "0012")):
        tree.nic(f"pci{domain}:00/{domain}:00:00.0/{domain}:03:00.0", index // 2, f"mlx5_{index}")
    return tree


def p5_efa(root: Path, gpus: int = 2) -> SysfsTree:
    """Four EFA devices behind each GPU's switch, without interfaces, and an ENA interface for the rest."""
    tree = SysfsTree(root)
    for index in range(gpus):
        bus = 0x40 + 0x20 * index
        switch = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0"
        tree.gpu(f"{switch}/0000:{bus + 2:02x}:00.0/0000:{bus + 3:02x}:00.0", index)
        for lane in range(4):
            name = f"rdmap{bus + 4 + lane}s0"
            place = f"{switch}/0000:{bus + 2:02x}:0{lane + 1}.0/0000:{bus + 4 + lane:02x}:00.0"
            tree.nic(place, index, name, layer="Unspecified", rate="100 Gb/sec", driver="efa", vendor=0x1D0F)
            tree.write(f"class/infiniband/{name}/hw_counters/no_completion_cmds", 0)
            tree.write(f"class/infiniband/{name}/hw_counters/cmds_err", 0)
            tree.write(f"class/infiniband/{name}/ports/1/hw_counters/rx_drops", 0)
    tree.interface("ens32", tree.pci("pci0000:20/0000:20:00.0", 0, 0x1D0F, 0x020000, "ena", 8), 100000)
    tree.default_route("ens32")
    return tree


def azure(root: Path, numa: int = -1) -> SysfsTree:
    """Every device on a virtual host bridge of its own: the PCI tree tells nothing."""
    tree = SysfsTree(root)
    for index in range(2):
        own = f"{index + 1:04x}"
        tree.gpu(f"LNXSYSTM:00/VMBUS:01/g{index}/pci{own}:00/{own}:00:00.0", numa)
        far = f"01{index + 1:02x}"
        tree.nic(f"LNXSYSTM:00/VMBUS:01/n{index}/pci{far}:00/{far}:00:00.0", numa, f"mlx5_ib{index}")
    return tree


AZURE_TOPOLOGY = """
<system version="1"><cpu numaid="0" affinity="0000ffff" arch="x86_64">
 <pci busid="ffff:ff:01.0" class="0x060400" link_speed="16 GT/s" link_width="16">
  <pci busid="0001:00:00.0" class="0x030200"/><pci busid="0101:00:00.0" class="0x020700"/></pci>
 <pci busid="ffff:ff:02.0" class="0x060400">
  <pci busid="0002:00:00.0" class="0x030200"/><pci busid="0102:00:00.0" class="0x020700"/></pci>
</cpu></system>
"""


def roce_bond(root: Path) -> SysfsTree:
    """One RDMA device over a bond of the two ports of a card, near one GPU."""
    tree = SysfsTree(root)
    switch = "pci0000:15/0000:15:01.0/0000:16:00.0"
    tree.gpu(f"{switch}/0000:17:00.0/0000:18:00.0", 0)
    card = f"{switch}/0000:17:01.0/0000:19:00.0"
    tree.nic(card, 0, "mlx5_bond_0", layer="Ethernet", interface="p0")
    second = tree.pci(f"{switch}/0000:17:01.0/0000:19:00.1", 0, 0x15B3, 0x020000, "mlx5_core")
    tree.interface("p1", second)
    tree.interface("bond0", speed=800000)
    tree.write("class/net/bond0/bonding/slaves", "p0 p1")
    tree.write("class/net/bonding_masters", "bond0")
    for member in ("p0", "p1"):
        tree.link(f"class/net/{member}/master", "devices/virtual/net/bond0")
        tree.write(f"class/net/{member}/bonding_slave/state", "ACTIVE")
    return tree
