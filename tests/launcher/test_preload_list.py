"""Which of the modules that a worker has reported later standbys import, and in which order."""

from __future__ import annotations

import pytest

from ftrun.launcher.preload_list import NEVER_PRELOADED, learned, with_first_packages


def test_learned_modules_leave_out_what_does_things_when_imported() -> None:
    """MPI starts up on import."""
    modules = ("json", "mpi4py", "mpi4py.MPI", "pycuda", "pycuda.autoinit", "torch")
    assert learned(modules) == ("json", "pycuda", "torch")
    assert all(reason for reason in NEVER_PRELOADED.values())


@pytest.mark.parametrize(
    ("modules", "never", "kept"),
    [
        (("json", "bad", "numpy", "torch", "more"), {"bad"}, ("json",)),
        (("json", "bad.part", "bad", "torch"), {"bad.part"}, ("json",)),
        (("json", "bad.part", "torch", "bad", "more"), {"bad", "bad.part"}, ("json", "torch", "more")),
        (("torch", "bad", "bad.part", "badly"), {"bad"}, ("torch", "badly")),
        (("json", "bad", "csv"), {"bad"}, ("json", "csv")),
    ],
)
def test_nothing_is_moved_in_front_of_a_library_that_came_before_torch(
    modules: tuple[str, ...], never: set[str], kept: tuple[str, ...]
) -> None:
    """What cannot be preloaded ends the list there, unless it imports torch itself or comes after it."""
    assert learned(modules, never) == kept


@pytest.mark.parametrize(
    ("reported", "earlier", "merged"),
    [
        (("json", "lib"), ("torch", "torch.fx"), ("torch", "torch.fx", "json", "lib")),
        (("json", "numpy", "lib"), ("numpy", "torch"), ("json", "numpy", "torch", "lib")),
        (("lib", "torch"), ("other", "torch", "torch.fx"), ("lib", "torch", "torch.fx")),
        (("torch.fx", "torch", "lib"), ("torch", "torch.fx"), ("torch.fx", "torch", "lib")),
    ],
)
def test_torch_that_a_report_lacks_keeps_its_place(
    reported: tuple[str, ...], earlier: tuple[str, ...], merged: tuple[str, ...]
) -> None:
    """A torch outside of site-packages is none of the reported libraries, and is preloaded all the same."""
    assert with_first_packages(reported, earlier) == merged
