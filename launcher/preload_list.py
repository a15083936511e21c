"""The list of modules that standbys preload, once a worker has told what its script imports. Pure.

The order is that of the script's own imports, and is kept: libraries may depend on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

NEVER_PRELOADED = {
    "mpi4py": "initialises MPI when it is imported, which wants the rank's environment",
    "pycuda.autoinit": "creates a CUDA context when it is imported",
}

FIRST_PACKAGES = frozenset({"torch", "numpy"})
"""What the first standbys preload, in the order of the source.

numpy because it must stay in front of torch where a script has it there: the OpenMP runtime that is loaded
first serves both, and MKL's mkl-service refuses torch's. Its import neither looks at torch nor at a rank.
"""


def learned(modules: Iterable[str], never: Collection[str] = ()) -> tuple[str, ...]:
    """Those of `modules` that other standbys may import; the order is that of a script's imports.

    Left out are NEVER_PRELOADED and `never`, with all below them. Of what made trouble (`never`) before torch
    was imported, nothing is known: it may have to come before torch. So all that follows it is left out too.
    """
    names = tuple(modules)
    before_torch = set(names[: names.index("torch")]) if "torch" in names else set()

    def must_stay_in_front(name: str) -> bool:
        top = name.partition(".")[0]  # a package that imports torch itself is done after torch
        return name in never and name in before_torch and (top in before_torch or top not in names)

    end = next((at for at, name in enumerate(names) if must_stay_in_front(name)), len(names))
    banned = {*NEVER_PRELOADED, *never}
    below = tuple(f"{name}." for name in banned)
    return tuple(name for name in names[:end] if name not in banned and not name.startswith(below))


def with_first_packages(reported: Sequence[str], earlier: Iterable[str]) -> tuple[str, ...]:
    """`reported`, and what it lacks of the FIRST_PACKAGES (and their parts) in `earlier`.

    A report knows libraries by where they are, and torch may be elsewhere. Each is put behind what it
    followed in `earlier`, so that the order of both lists is kept.
    """
    merged = list(reported)
    known = set(reported)
    place = 0
    for name in earlier:
        if name in known:
            place = merged.index(name) + 1
        elif name.partition(".")[0] in FIRST_PACKAGES:
            merged.insert(place, name)
            place += 1
    return tuple(merged)
