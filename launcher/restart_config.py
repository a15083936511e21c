"""The `ftrun.restart` section: how often, how soon and for what a job is started again. Pure.

`docs/policy.md` has the decisions that follow from it, and why each default is what it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from ftrun.launcher import values as v
from ftrun.launcher.values import Entry, Kind, Setting, setting

LONGEST_WINDOW = 64
"""Most restarts that are counted in a window: of more than so many, the job remembers no single ones
(`ftrun.launcher.memory`)."""


def _read_few(value: object) -> Setting:
    count = v.COUNT.read(value)
    if not isinstance(count, int) or count > LONGEST_WINDOW:
        raise ValueError("too many")
    return count


def _kinds() -> tuple[str, ...]:
    from ftrun.monitor.incident import IncidentKind

    return tuple(kind.value for kind in IncidentKind)


_FEW = Kind(f"a whole number from 0 to {LONGEST_WINDOW}", _read_few, v.COUNT.from_text)
_OF_KIND = {"max": v.COUNT, "counts": v.SWITCH, "delay": v.SECONDS}
_RULE = v.mapping_of(
    "a mapping with some of max, counts and delay: {max: 1, delay: 10}",
    Entry("key", lambda: tuple(_OF_KIND), _OF_KIND.__getitem__),
)
_RULES = v.mapping_of(
    "a mapping from kinds of failures to what holds for them: {cuda_oom: {max: 1}}",
    Entry("kind of failure", _kinds, lambda name: _RULE),
)


@dataclass(frozen=True, slots=True)
class KindRule:
    """What `restart.kinds` says of one kind of failure."""

    max: int | None = None
    """Restarts after failures of the kind, over the whole job; None for no limit of its own."""
    counts: bool = True
    """They are among those that the other limits count."""
    delay: float | None = None
    """Seconds before each such restart; None for the usual pause."""


@dataclass(frozen=True, slots=True)
class RestartConfig:
    """When there is a restart; `max_restarts`, which stands beside these in files, is in `LaunchOptions`."""

    max_in_window: int = setting(
        30,
        _FEW,
        "restarts",
        "So many within `window` end the job: what fails every 20 s hardly trains. 0 for no limit.",
    )
    window: float = setting(
        600.0, v.INTERVAL, "seconds", "The time in which `max_in_window` counts restarts."
    )
    max_no_progress: int = setting(
        5,
        v.COUNT,
        "restarts in a row",
        "So many that brought neither a step nor a checkpoint beyond what there was end the job; faults that "
        "come by chance do not hit that many rounds in a row before they have caught up. 0 for no limit.",
    )
    progress: str = setting(
        "new",
        v.choice_of("new", "any"),
        "new or any",
        "What counts for `max_no_progress`: new is a step or checkpoint that the job had not come to before; "
        "any also counts steps that are done again, for scripts that replay them on purpose.",
    )
    max_same_failure: int = setting(
        3,
        v.COUNT,
        "failures",
        "So many of the same failure at the same step of training end the job: they come of the data or the "
        "program, and not of chance. 0 for no limit.",
    )
    exclude_after: int = setting(
        3,
        v.COUNT,
        "failures",
        "So many that are a node's or a GPU's doing, within `exclude_window`, take it out of the job, if "
        "there is a spare or the world may shrink, and up to health.max_excluded_fraction of nodes. 0 for "
        "never.",
    )
    exclude_window: float = setting(
        86400.0,
        v.INTERVAL,
        "seconds",
        "How long such a failure is held against a node: over months, chance brings some to every node.",
    )
    backoff_initial: float = setting(
        0.25,
        v.SECONDS,
        "seconds",
        "First pause before a restart that comes before any progress; it doubles each time.",
    )
    backoff_max: float = setting(
        5.0, v.SECONDS, "seconds", "Longest such pause; a cause that needs longer needs a person."
    )
    backoff_below: float = setting(
        60.0,
        v.SECONDS,
        "seconds",
        "There is such a pause only if the failure came sooner than this after the one before: what took "
        "longer has had its pause.",
    )
    kinds: tuple[tuple[str, tuple[tuple[str, float], ...]], ...] = setting(
        (),
        _RULES,
        "rules by kind of failure",
        "What holds for single kinds: max, how many restarts after failures of the kind; counts: false, they "
        "use up no other limit; delay, seconds before each such restart.",
    )

    def rule_of(self, kind: str) -> KindRule:
        """What holds for a kind of failure, by its name in the journal."""
        given = dict(dict(self.kinds).get(kind, ()))
        most, counts = given.get("max"), bool(given.get("counts", True))
        return KindRule(None if most is None else int(most), counts, given.get("delay"))
