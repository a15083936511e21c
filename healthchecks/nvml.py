"""The one user of pynvml: calls NVML, and says why a call gave nothing. Judges nothing.

A driver that hangs keeps whoever calls it, at times beyond SIGKILL. So this runs in the probe alone
(`ftrun.healthchecks.probe`), which is to start fast: what it says is made as JSON documents at once, in the
form of `ftrun.healthchecks.snapshots`, whose dataclasses would take longer to import than NVML itself.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from ctypes import byref
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias, cast

if TYPE_CHECKING:
    from ftrun.healthchecks.reading import Json

    Document: TypeAlias = dict[str, Json]
Handle: TypeAlias = object
"""pynvml's pointer to a device."""

INVALID_ARGUMENT, NOT_FOUND, DRIVER_NOT_LOADED, TIMEOUT, FUNCTION_NOT_FOUND = 2, 6, 9, 10, 13
CORRUPTED_INFOROM, GPU_IS_LOST, VERSION_MISMATCH, UNKNOWN = 14, 15, 25, 999
"""nvmlReturn_t (nvml.h). By number, because constants differ between versions of pynvml."""

_LACKS = {
    3: "not_supported",
    4: "no_permission",
    NOT_FOUND: "not_found",
    TIMEOUT: "timeout",
    12: "not_found",  # no library
    FUNCTION_NOT_FOUND: "not_found",
    GPU_IS_LOST: "gpu_lost",
    16: "reset_required",
    22: "not_supported",  # ECC of a vGPU
    26: "not_supported",  # deprecated
    27: "not_supported",  # not ready
}
"""Values of `ftrun.healthchecks.reading.Lack` by nvmlReturn_t; any other code is an "error"."""

_UNION_FIELDS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Member of nvmlValue_t for each nvmlValueType_t; the narrower ones leave the rest of the union undefined."""


class Refusal(Exception):
    """A source gave no value."""

    def __init__(self, lack: str, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.lack = lack
        """Value of a `ftrun.healthchecks.reading.Lack`."""
        self.reason = reason
        self.code = code
        """nvmlReturn_t or errno."""

    def document(self) -> Document:
        """As `ftrun.healthchecks.reading.Missing` is written."""
        return {"missing": self.lack, "reason": self.reason, "code": self.code}


def reading(read: Callable[[], Json]) -> Json:
    """What `read` returns, or the document of its refusal."""
    try:
        return read()
    except Refusal as refusal:
        return refusal.document()


class Nvml:
    """NVML by the names of pynvml's functions. Every method raises `Refusal` where NVML gives no value.

    Args:
        trace: told what is about to be asked, so that somebody knows it if there is never an answer.
    """

    def __init__(self, trace: Callable[[str], None]) -> None:
        self._trace = trace
        self._pynvml: ModuleType | None = None
        self.subject = ""
        """Put before the calls' names when they are told to `trace`: "GPU 3"."""

    def trace(self, what: str) -> None:
        """Say what is about to be done."""
        self._trace(f"{self.subject}: {what}" if self.subject else what)

    def start(self) -> None:
        """Load the library and initialise it; harmless when that has been done."""
        if self._pynvml is None:
            pynvml = _import_pynvml()
            try:
                self._call(pynvml, "nvmlInit", ())
            except Refusal as refusal:
                if refusal.code == DRIVER_NOT_LOADED:
                    refusal.lack = "not_found"
                raise
            self._pynvml = pynvml

    def ask(self, name: str, *arguments: object) -> object:
        """Call pynvml's function of that name."""
        if self._pynvml is None:
            raise Refusal("error", f"{name}: NVML is not initialised")
        return self._call(self._pynvml, name, arguments)

    def _call(self, pynvml: ModuleType, name: str, arguments: Sequence[object]) -> object:
        self.trace(name)
        function = getattr(pynvml, name, None)
        if function is None:
            raise Refusal("not_found", f"{name}: pynvml is too old to know it")
        try:
            answer: object = function(*arguments)
        except pynvml.NVMLError as error:
            raise Refusal(_LACKS.get(error.value, "error"), f"{name}: {error}", error.value) from None
        except (UnicodeDecodeError, TypeError) as error:  # no text; a version with other arguments
            raise Refusal("error", f"{name}: {error}") from None
        return answer

    def number(self, name: str, *arguments: object) -> int:
        """As `ask`, for a function that returns an integer."""
        return int(cast(int, self.ask(name, *arguments)))

    def text(self, name: str, *arguments: object) -> str:
        """As `ask`, for a function that returns a string, which older versions of pynvml leave as bytes."""
        return as_text(self.ask(name, *arguments))

    def structure(self, kind: str, name: str, handle: Handle) -> object:
        """The structure of pynvml's type `kind`, filled by the function `name`."""
        constructor = getattr(self._pynvml, kind, None)
        if constructor is None:
            raise Refusal("not_found", f"{name}: pynvml is too old to know {kind}")
        structure = constructor()
        self.ask(name, handle, byref(structure))
        return cast(object, structure)


class Device:
    """One device of NVML: the methods of `Nvml`, with the device as the first argument of each call."""

    def __init__(self, nvml: Nvml, handle: Handle, root: str) -> None:
        self.nvml = nvml
        self.handle = handle
        self.root = root
        """Where the node's file system is, "/" as a rule."""

    def ask(self, name: str, *arguments: object) -> object:
        """Call pynvml's function of that name."""
        return self.nvml.ask(name, self.handle, *arguments)

    def number(self, name: str, *arguments: object) -> int:
        """As `ask`, for a function that returns an integer."""
        return self.nvml.number(name, self.handle, *arguments)

    def numbers(self, name: str, *arguments: object) -> Sequence[int]:
        """As `ask`, for a function that returns several integers."""
        return tuple(map(int, cast("Iterable[int]", self.ask(name, *arguments))))

    def text(self, name: str) -> str:
        """As `ask`, for a function that returns a string."""
        return self.nvml.text(name, self.handle)

    def structure(self, kind: str, name: str) -> object:
        """The structure of pynvml's type `kind`, filled by the function `name`."""
        return self.nvml.structure(kind, name, self.handle)

    def fields(self, ids: Sequence[int], scope: int = 0) -> tuple[Json, ...]:
        """Readings of these fields: the call succeeds as a whole even if each of them has failed."""
        values = cast("Iterable[object]", self.ask("nvmlDeviceGetFieldValues", [(f, scope) for f in ids]))
        return tuple(map(_field, values))


def member(structure: object, name: str) -> int:
    """A number in one of pynvml's structures."""
    try:
        return int(getattr(structure, name))
    except AttributeError:
        raise Refusal("not_found", f"{name}: pynvml is too old to know it") from None


def is_too_new(refusal: Refusal) -> bool:
    """Whether the driver or pynvml is older than the version of a call or of its structure."""
    return refusal.code in (None, FUNCTION_NOT_FOUND, VERSION_MISMATCH, INVALID_ARGUMENT)


def as_text(value: object) -> str:
    """What pynvml gives as str or bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def sysfs_address(bus_id: str) -> str:
    """NVML's "00000000:3B:00.0" as sysfs names the device: "0000:3b:00.0" (domain printed with %04x)."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def pci_address(pci_info: object) -> str:
    """Name in sysfs of the device that an nvmlPciInfo_t describes."""
    bus_id = as_text(getattr(pci_info, "busId"))  # noqa: B009 (the type is pynvml's)
    try:
        return sysfs_address(bus_id)
    except ValueError:
        raise Refusal("not_found", f"NVML names no PCI address: {bus_id!r}", NOT_FOUND) from None


def refusal_of_file(error: OSError) -> Refusal:
    """Why a file could not be opened or read."""
    if isinstance(error, PermissionError):
        lack = "no_permission"
    else:
        lack = "not_found" if isinstance(error, FileNotFoundError) else "error"
    return Refusal(lack, f"{error.filename}: {error.strerror}", error.errno)


def _field(value: object) -> Json:
    """The number in a c_nvmlFieldValue_t."""
    code: int = getattr(value, "nvmlReturn")  # noqa: B009 (the type is pynvml's)
    if code != 0:
        lack = _LACKS.get(code, "error")
        text = f"NVML error {code}" if lack == "error" else lack.replace("_", " ")
        return Refusal(lack, f"field {member(value, 'fieldId')}: {text}", code).document()
    kind = member(value, "valueType")
    if kind >= len(_UNION_FIELDS):
        return Refusal("error", f"field {member(value, 'fieldId')}: unknown type {kind}").document()
    return member(getattr(value, "value"), _UNION_FIELDS[kind])  # noqa: B009


def _import_pynvml() -> ModuleType:
    # pynvml imports `find_library`, of which Linux has no use, and with it a third of what it takes to start.
    stub = ModuleType("ctypes.util")
    setattr(stub, "find_library", _find_library)  # noqa: B010
    is_stubbed = sys.modules.setdefault("ctypes.util", stub) is stub
    try:
        with warnings.catch_warnings():
            # nvidia-resiliency-ext installs the deprecated `pynvml` package, which warns without being used.
            warnings.simplefilter("ignore", FutureWarning)
            import pynvml  # type: ignore[import-untyped]
    except ImportError as error:
        raise Refusal("not_found", f"pynvml (of nvidia-ml-py) cannot be imported: {error}") from None
    finally:
        if is_stubbed:
            del sys.modules["ctypes.util"]
    module: ModuleType = pynvml
    return module


def _find_library(name: str) -> str | None:
    from ctypes.util import find_library

    return find_library(name)
