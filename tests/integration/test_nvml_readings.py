"""Everything that the probe reads, by the real pynvml on a fake library: a fault comes, is read, and goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from ftrun.healthchecks.probe_client import Probe
from ftrun.healthchecks.reading import NOT_READ, Lack, Missing, Value
from ftrun.healthchecks.snapshots import (
    Fabric,
    Gpu,
    GpuProcess,
    Memory,
    MigDevice,
    Mode,
    NvLink,
    NvmlSnapshot,
    RemappedRows,
    RepairPending,
    RetiredPages,
)
from tests.support.fakenvml.build import FakeNvml, build

DEADLINE_S = 20.0
GIB = 1 << 30
MIB = 1 << 20


class Bench:
    """A fake node of two GPUs with three links each, and a warm probe on it, in a file system of its own."""

    def __init__(self, fake: FakeNvml, root: Path) -> None:
        self.fake = fake
        self.root = root
        fake.set("device_count", 2)
        fake.set("gpu.*.nvlink.count", 3)
        self.probe = Probe(str(root))

    def read(self) -> NvmlSnapshot:
        snapshot = self.probe.ask(DEADLINE_S, "thorough")
        assert snapshot.init == Value(True)
        return snapshot

    def read_gpu(self) -> Gpu:
        """GPU 1, after a look at whether GPU 0 is as it should be."""
        gpus = self.read().gpus
        assert gpus[0].ecc_uncorrected_volatile == Value(0)
        return gpus[1]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("fakenvml"))


@pytest.fixture(scope="module")
def warm(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    root = tmp_path_factory.mktemp("root")
    device = root / "sys/bus/pci/devices/0000:11:00.0"
    device.mkdir(parents=True)
    (device / "config").write_bytes(b"\xde\x10\x30\x23")
    with pytest.MonkeyPatch.context() as patch:
        fake = FakeNvml(library, root / "state")
        for name, value in fake.environment.items():
            patch.setenv(name, value)
        bench = Bench(fake, root)
        bench.read()  # the child has to start within this environment
        yield bench
        bench.probe.close()


@pytest.fixture
def bench(warm: Bench) -> Iterator[Bench]:
    """The same node and child for all tests, each of which leaves it without faults."""
    pid = warm.probe.pid
    yield warm
    assert warm.probe.pid == pid, "no reading may cost the child"


def of(*lines: str) -> dict[str, str]:
    """Lines of the state file, without the "gpu.1." in front."""
    return dict(line.split(" ", 1) for line in lines)


READINGS = [
    ("uuid", of("uuid GPU-other"), Value("GPU-00000000-0000-0000-0000-000000000001"), Value("GPU-other")),
    ("pci_address", of("bus 0000000A:3B:00.0"), Value("0000:11:00.0"), Value("000a:3b:00.0")),
    ("name", of("name NVIDIA A100"), Value("NVIDIA H100 80GB HBM3"), Value("NVIDIA A100")),
    ("serial", of("serial 7"), Value("1650000000001"), Value("7")),
    ("minor", of("minor 6"), Value(1), Value(6)),
    ("virtualization", of("virtualization 2"), Value(0), Value(2)),
    ("performance_state", of("pstate 8"), Value(0), Value(8)),
    ("is_persistent", of("persistence 0"), Value(True), Value(False)),
    ("compute_mode", of("compute_mode 2"), Value(0), Value(2)),
    ("mig", of("mig.pending 1"), Value(Mode(False, False)), Value(Mode(False, True))),
    (
        "mig_devices",
        of("mig 1", "mig.devices 2", "mig.1.uuid MIG-b"),
        Value(()),
        Value((MigDevice("MIG-00000000-0000-0000-0001-000000000000", 1, 0), MigDevice("MIG-b", 2, 0))),
    ),
    ("recovery_action", of("field.230 2"), Value(0), Value(2)),
    ("inforom_valid", of("call.nvmlDeviceValidateInforom.ret 14"), Value(True), Value(False)),
    ("ecc", of("ecc 0"), Value(Mode(True, True)), Value(Mode(False, False))),
    ("ecc_uncorrected_volatile", of("ecc.volatile.uncorrected 3"), Value(0), Value(3)),
    ("ecc_uncorrected_aggregate", of("ecc.aggregate.uncorrected 4"), Value(0), Value(4)),
    ("ecc_corrected_volatile", of(f"ecc.volatile.corrected {1 << 40}"), Value(0), Value(1 << 40)),
    ("is_sram_threshold_exceeded", of("sram.threshold 1"), Value(False), Value(True)),
    (
        "remapped_rows",
        of("remap.correctable 1", "remap.uncorrectable 2", "remap.pending 1", "remap.failed 1"),
        Value(RemappedRows(0, 0, False, False)),
        Value(RemappedRows(1, 2, True, True)),
    ),
    (
        "retired_pages",
        of("retired.single 3", "retired.double 40", "retired.pending 1"),
        Value(RetiredPages(0, 0, False)),
        Value(RetiredPages(3, 40, True)),
    ),
    ("is_memory_unrepairable", of("unrepairable 1"), Value(False), Value(True)),
    (
        "repair_pending",
        of("repair.channel 1"),
        Value(RepairPending(False, False)),
        Value(RepairPending(True, False)),
    ),
    ("clocks_event_reasons", of("clocks.reasons 0x48"), Value(1), Value(0x48)),
    ("temperature_c", of("temperature 91"), Value(35), Value(91)),
    ("temperature_slowdown_c", of("temperature.threshold.1 0"), Value(89), Value(0)),
    ("temperature_max_c", of("temperature.threshold.3 88"), Value(87), Value(88)),
    ("memory_temperature_c", of("field.82 96"), Value(40), Value(96)),
    ("memory_temperature_max_c", of("temperature.threshold.2 105"), Value(95), Value(105)),
    ("temperature_margin_c", of("temperature.margin -5"), Value(52), Value(-5)),
    ("pcie_width", of("pcie.width 8"), Value(16), Value(8)),
    ("pcie_width_max", of("pcie.width.max 8"), Value(16), Value(8)),
    ("pcie_generation", of("pcie.generation 1"), Value(5), Value(1)),
    ("pcie_generation_max", of("pcie.generation.max 4"), Value(5), Value(4)),
    ("pcie_replays", of("pcie.replays 77"), Value(0), Value(77)),
    (
        "memory",
        of(f"mem.used {3 * GIB}"),
        Value(Memory(80 * GIB, 4 * MIB, 600 * MIB)),
        Value(Memory(80 * GIB, 3 * GIB, 600 * MIB)),
    ),
    (
        "processes",
        of("processes 999998:500,999999:NA", "processes.graphics 999998:500,999997:1"),
        Value(()),
        Value(
            (
                GpuProcess(999998, "compute", 500 * MIB),
                GpuProcess(999999, "compute", None),
                GpuProcess(999997, "graphics", MIB),
            )
        ),
    ),
    ("processes", of("processes.mps 999998:5"), Value(()), Value((GpuProcess(999998, "mps", 5 * MIB),))),
    (
        "fabric",
        of("fabric.state 2", "fabric.status 3", "fabric.mask 0x155", "fabric.summary 2", "fabric.clique 9"),
        Value(Fabric(3, 0, 0x1AA, 1, "ab" * 16, 0)),
        Value(Fabric(2, 3, 0x155, 2, "ab" * 16, 9)),
    ),
]


@pytest.mark.parametrize(("field", "fault", "before", "during"), READINGS, ids=[r[0] for r in READINGS])
def test_fault_is_read_and_its_end_too(
    bench: Bench, field: str, fault: dict[str, str], before: object, during: object
) -> None:
    """One child sees a reading change and change back, on the one GPU that it happens to."""
    assert getattr(bench.read_gpu(), field) == before
    for key, value in fault.items():
        bench.fake.set(f"gpu.1.{key}", value)
    assert getattr(bench.read_gpu(), field) == during
    for key in fault:
        bench.fake.clear(f"gpu.1.{key}")
    assert getattr(bench.read_gpu(), field) == before


def test_every_field_of_a_gpu_is_read(bench: Bench) -> None:
    """What the snapshot has room for is asked of NVML; a node of today answers all of it."""
    gpu = bench.read_gpu()
    assert [field.name for field in fields(gpu) if isinstance(getattr(gpu, field.name), Missing)] == []


UNSUPPORTED = [
    ("serial", "serial"),
    ("mig", "mig"),
    ("mig_devices", "mig"),
    ("recovery_action", "field.230"),
    ("ecc", "ecc"),
    ("ecc_uncorrected_volatile", "ecc.volatile.uncorrected"),
    ("is_sram_threshold_exceeded", "sram.threshold"),
    ("remapped_rows", "remap.uncorrectable"),
    ("retired_pages", "retired.single"),
    ("is_memory_unrepairable", "unrepairable"),
    ("repair_pending", "repair.channel"),
    ("temperature_margin_c", "temperature.margin"),
    ("memory_temperature_c", "field.82"),
    ("memory", "mem.total"),
    ("processes", "processes"),
    ("fabric", "fabric.state"),
]


@pytest.mark.parametrize(("field", "key"), UNSUPPORTED)
def test_what_a_gpu_does_not_have_is_not_supported(bench: Bench, field: str, key: str) -> None:
    """Never a zero, which would look healthy; the neighbours in the reading are as before."""
    bench.fake.set(f"gpu.1.{key}", "NA")
    gpu = bench.read_gpu()
    bench.fake.clear(f"gpu.1.{key}")
    reading = getattr(gpu, field)
    assert (reading.lack, reading.code) == (Lack.NOT_SUPPORTED, 3)
    assert gpu.pcie_width == Value(16)


def test_ecc_that_is_off_has_no_counters(bench: Bench) -> None:
    """NVML then refuses to count."""
    bench.fake.set("gpu.1.ecc", 0)
    gpu = bench.read_gpu()
    bench.fake.clear("gpu.1.ecc")
    assert isinstance(gpu.ecc_uncorrected_volatile, Missing)
    assert gpu.ecc_uncorrected_volatile.lack is Lack.NOT_SUPPORTED


CODES = [
    (3, Lack.NOT_SUPPORTED),
    (4, Lack.NO_PERMISSION),
    (13, Lack.NOT_FOUND),
    (16, Lack.RESET_REQUIRED),
    (15, Lack.GPU_LOST),
    (2, Lack.ERROR),
    (17, Lack.ERROR),
    (22, Lack.NOT_SUPPORTED),
    (26, Lack.NOT_SUPPORTED),
    (27, Lack.NOT_SUPPORTED),
    (999, Lack.ERROR),
    (4711, Lack.ERROR),
]


@pytest.mark.parametrize(("code", "lack"), CODES)
def test_return_code_says_why_there_is_no_value(bench: Bench, code: int, lack: Lack) -> None:
    """Of a call, and of a field inside a call that has succeeded; the call and the number are kept."""
    bench.fake.set("gpu.1.call.nvmlDeviceGetTotalEccErrors.ret", code)
    reading = bench.read_gpu().ecc_uncorrected_volatile
    bench.fake.clear("gpu.1.call.nvmlDeviceGetTotalEccErrors.ret")
    assert isinstance(reading, Missing)
    assert (reading.lack, reading.code) == (lack, code)
    assert reading.reason.startswith("nvmlDeviceGetTotalEccErrors: ")
    bench.fake.set("gpu.1.field.230.ret", code)
    of_field = bench.read_gpu().recovery_action
    bench.fake.clear("gpu.1.field.230.ret")
    assert isinstance(of_field, Missing)
    assert (of_field.lack, of_field.code) == (lack, code)


@pytest.mark.parametrize("code", [15, 999])
def test_gpu_without_a_handle_is_lost(bench: Bench, code: int) -> None:
    """It is still counted, its neighbour is read, and it comes back when it does."""
    bench.fake.set("gpu.1.call.nvmlDeviceGetHandleByIndex_v2.ret", code)
    snapshot = bench.read()
    bench.fake.clear("gpu.1.call.nvmlDeviceGetHandleByIndex_v2.ret")
    lost = snapshot.gpus[1]
    assert snapshot.device_count == Value(2)
    assert isinstance(lost.handle, Missing)
    assert (lost.handle.lack, lost.handle.code) == (Lack.GPU_LOST, code)
    assert lost.memory == NOT_READ
    assert isinstance(snapshot.peers[0].status, Missing)
    assert bench.read_gpu().handle == Value(True)


def test_gpu_that_is_lost_in_mid_reading_is_asked_no_more(bench: Bench) -> None:
    """Each further call could take seconds."""
    bench.fake.set("gpu.1.call.nvmlDeviceGetPersistenceMode.ret", 15)
    gpu = bench.read_gpu()
    bench.fake.clear("gpu.1.call.nvmlDeviceGetPersistenceMode.ret")
    assert isinstance(gpu.is_persistent, Missing)
    assert gpu.is_persistent.lack is Lack.GPU_LOST
    assert gpu.name == Value("NVIDIA H100 80GB HBM3")
    assert (gpu.ecc, gpu.nvlinks) == (NOT_READ, NOT_READ)


def test_old_driver_has_no_recovery_action(bench: Bench) -> None:
    """Field 230 came with driver 570; the call succeeds, the field does not, and all else is read."""
    bench.fake.set("driver", "560.35.03")
    snapshot = bench.read()
    bench.fake.clear("driver")
    assert snapshot.driver_version == Value("560.35.03")
    action = snapshot.gpus[1].recovery_action
    assert isinstance(action, Missing)
    assert action.lack is Lack.NOT_SUPPORTED
    assert snapshot.gpus[1].ecc_uncorrected_volatile == Value(0)


def test_versions_are_read(bench: Bench) -> None:
    """Of the driver, of NVML, and the newest CUDA that the driver runs."""
    snapshot = bench.read()
    assert snapshot.driver_version == Value("570.148.08")
    assert snapshot.nvml_version == Value("12.570.148.08")
    assert snapshot.cuda_version == Value(12080)


def links(gpu: Gpu) -> tuple[NvLink, ...]:
    assert isinstance(gpu.nvlinks, Value)
    return gpu.nvlinks.value


LINK_READINGS = [
    ("is_active", of("nvlink.1.state 0"), Value(True), Value(False)),
    ("remote", of("nvlink.1.remote 00000000:06:00.0"), Value("0000:05:00.0"), Value("0000:06:00.0")),
    ("remote", of("nvlink.1.remote 00000000:00:00.0"), Value("0000:05:00.0"), Value("")),
    ("speed_mbps", of("field.164.1 0"), Value(26562), Value(0)),
    ("replays", of("field.161.1 5"), Value(0), Value(5)),
    ("recoveries", of("field.162.1 6"), Value(0), Value(6)),
    ("crc_errors", of(f"field.163.1 {5 << 32}"), Value(0), Value(5 << 32)),
]


@pytest.mark.parametrize(("field", "fault", "before", "during"), LINK_READINGS)
def test_fault_of_a_link_is_read_and_its_end_too(
    bench: Bench, field: str, fault: dict[str, str], before: object, during: object
) -> None:
    """On the one link that it happens to; counters have all their 64 bits."""
    assert [getattr(link, field) for link in links(bench.read_gpu())] == [before] * 3
    for key, value in fault.items():
        bench.fake.set(f"gpu.1.{key}", value)
    assert [getattr(link, field) for link in links(bench.read_gpu())] == [before, during, before]
    for key in fault:
        bench.fake.clear(f"gpu.1.{key}")
    assert [getattr(link, field) for link in links(bench.read_gpu())] == [before] * 3


NVLINK5 = {
    "malformed_packets": 206,
    "buffer_overruns": 207,
    "receive_errors": 208,
    "integrity_errors": 211,
    "failed_recoveries": 214,
    "recovery_events": 215,
    "effective_errors": 219,
    "symbol_errors": 221,
}


def test_newer_links_have_other_counters(bench: Bench) -> None:
    """What a generation of links does not count is not supported rather than zero."""
    for link in links(bench.read_gpu()):
        lacking = [getattr(link, name) for name in NVLINK5]
        assert {reading.lack for reading in lacking} == {Lack.NOT_SUPPORTED}
    for field in NVLINK5.values():
        for number in range(3):
            bench.fake.set(f"gpu.1.field.{field}.{number}", field * 10 + number)
    found = links(bench.read_gpu())
    for name, field in NVLINK5.items():
        assert [getattr(link, name) for link in found] == [Value(field * 10 + number) for number in range(3)]
        for number in range(3):
            bench.fake.clear(f"gpu.1.field.{field}.{number}")


@pytest.mark.parametrize("code", [2, 3])
def test_links_end_where_nvml_knows_no_more(bench: Bench, code: int) -> None:
    """Either refusal is the end of the list and no fault."""
    bench.fake.set("gpu.1.nvlink.beyond", code)
    assert [link.number for link in links(bench.read_gpu())] == [0, 1, 2]
    bench.fake.clear("gpu.1.nvlink.beyond")


@pytest.mark.parametrize("count", ["0", "NA"])
def test_gpu_without_links_has_an_empty_list(bench: Bench, count: str) -> None:
    """A PCIe card is no fault either."""
    bench.fake.set("gpu.1.nvlink.count", count)
    assert links(bench.read_gpu()) == ()
    bench.fake.clear("gpu.1.nvlink.count")


def test_links_of_a_lost_gpu_are_not_called_healthy(bench: Bench) -> None:
    """There is no list of links rather than a list without faults."""
    bench.fake.set("gpu.1.call.nvmlDeviceGetNvLinkState.ret", 15)
    reading = bench.read_gpu().nvlinks
    bench.fake.clear("gpu.1.call.nvmlDeviceGetNvLinkState.ret")
    assert isinstance(reading, Missing)
    assert reading.lack is Lack.GPU_LOST


@pytest.mark.parametrize(
    ("field", "key"),
    [("is_active", "nvlink.1.ret"), ("replays", "field.161.1.ret")],
)
def test_link_that_cannot_be_read_does_not_hide_the_others(bench: Bench, field: str, key: str) -> None:
    """An error is that link's own, and not a zero."""
    bench.fake.set(f"gpu.1.{key}", 999)
    first, second, third = links(bench.read_gpu())
    bench.fake.clear(f"gpu.1.{key}")
    assert isinstance(getattr(first, field), Value)
    assert getattr(second, field).lack is Lack.ERROR
    assert isinstance(getattr(third, field), Value)


def test_peers_are_read_once_per_pair(bench: Bench) -> None:
    """And a status other than 0 is given as it is."""
    assert [(p.index_a, p.index_b, p.status) for p in bench.read().peers] == [(0, 1, Value(0))]
    bench.fake.set("gpu.0.p2p.1", 4)
    assert [(p.index_a, p.index_b, p.status) for p in bench.read().peers] == [(0, 1, Value(4))]
    bench.fake.clear("gpu.0.p2p.1")


@pytest.mark.parametrize(("config", "vendor"), [(b"\xde\x10\x30\x23", 0x10DE), (b"\xff" * 4, 0xFFFF)])
def test_pci_configuration_space_is_read_beside_nvml(bench: Bench, config: bytes, vendor: int) -> None:
    """All ones are what a device that has left the bus gives."""
    path = bench.root / "sys/bus/pci/devices/0000:11:00.0/config"
    before = path.read_bytes()
    path.write_bytes(config)
    assert bench.read_gpu().pci_vendor == Value(vendor)
    path.write_bytes(before)


def test_processes_are_named_as_far_as_they_can_be_recognised(bench: Bench) -> None:
    """Executable and first argument: what comes behind may be a password."""
    directory = bench.root / "proc" / "4242"
    directory.mkdir(parents=True)
    (directory / "cmdline").write_bytes(b"/usr/bin/python\0train.py\0--token\0secret\0")
    bench.fake.set("gpu.1.processes", "4242:1")
    processes = bench.read_gpu().processes
    bench.fake.clear("gpu.1.processes")
    assert processes == Value((GpuProcess(4242, "compute", MIB, "/usr/bin/python train.py"),))


def test_xids_come_with_the_next_reading(bench: Bench) -> None:
    """Each one once, in order, with the GPU's names and the time; MIG instances where there are any."""
    quiet = bench.read()
    assert (quiet.events, quiet.xids) == (Value(True), ())
    bench.fake.report_xid(1, 79)
    bench.fake.report_xid(0, 31, 3, 0)
    snapshot = bench.read()
    names = ("GPU-00000000-0000-0000-0000-000000000001", "0000:11:00.0")
    assert [(x.xid, x.uuid, x.pci_address) for x in snapshot.xids[:1]] == [(79, *names)]
    instances = [(x.xid, x.gpu_instance, x.compute_instance) for x in snapshot.xids]
    assert instances == [(79, None, None), (31, 3, 0)]
    assert all(quiet.taken_at < x.seen_at <= snapshot.taken_at + DEADLINE_S for x in snapshot.xids)
    assert bench.read().xids == ()


def test_xid_of_a_gpu_that_is_lost_still_names_it(bench: Bench) -> None:
    """It cannot be asked for its UUID any more."""
    bench.fake.set("gpu.1.lost", 1)
    bench.fake.report_xid(1, 79)
    snapshot = bench.read()
    bench.fake.clear("gpu.1.lost")
    assert snapshot.xids[0].uuid == "GPU-00000000-0000-0000-0000-000000000001"
    assert isinstance(snapshot.gpus[1].handle, Missing)


def test_events_that_fail_are_told_and_what_had_come_is_kept(bench: Bench) -> None:
    """The wait returns "GPU is lost" once a GPU is."""
    bench.fake.set("call.nvmlEventSetWait_v2.ret", 15)
    snapshot = bench.read()
    bench.fake.clear("call.nvmlEventSetWait_v2.ret")
    assert isinstance(snapshot.events, Missing)
    assert snapshot.events.lack is Lack.GPU_LOST
    assert bench.read().events == Value(True)
