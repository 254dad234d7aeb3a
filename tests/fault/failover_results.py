"""What failovers came to: a line for each, sums by kind, the ledger's row."""

import collections
import dataclasses

import ledger
from failover_kinds import LOSING
from rounds import Injection


@dataclasses.dataclass
class Round:
    """What came of one failover."""
    kind: str
    seed: int
    acknowledged: dict = dataclasses.field(default_factory=dict)
    lost: dict = dataclasses.field(default_factory=dict)
    phantoms: int = 0  # changes that were shown and are gone
    phantom_reads: int = 0  # answers that only they explain
    violations: list = dataclasses.field(default_factory=list)
    # Those of them that leave the round unchecked.
    problems: list = dataclasses.field(default_factory=list)
    broke_off: bool = False
    # Of fault-checker, if it checked all.
    counts: dict = dataclasses.field(default_factory=dict)
    injection: Injection | None = None  # from the fault to the promotion
    promoting: float = 0  # seconds that the promotion took
    recovering: float = 0  # seconds from the promotion to success at half rate
    seconds: float = 0
    lag: float | None = None  # of an asynchronous standby, in seconds
    details: str = ""

    @property
    def name(self):
        return self.kind if self.lag is None else f"{self.kind} {self.lag} s"

    @property
    def operations(self):
        """That were checked."""
        return self.counts.get("operations", 0)

    def fail(self, why):
        """A violation that leaves the round unchecked, or its traffic other
        than it should have been."""
        self.problems.append(why)
        self.violations.append(why)

    def why_not_counted(self):
        """None if it counts as a failover."""
        if self.kind in LOSING:
            return "what it loses is measured"
        if self.problems:
            return self.problems[0]
        return self.injection.why_not_counted()


def describe(number, count, done):
    text = (f"failover {number} of {count}: {done.name}, {done.seconds:.0f} s, "
            f"promoted in {done.promoting:.2f} s, recovered after "
            f"{done.recovering:.1f} s; acknowledged "
            + (", ".join(f"{n} {kind}s" for kind, n
                         in done.acknowledged.items()) or "?")
            + "; lost " + (", ".join(f"{n} {kind}s" for kind, n in
                                     done.lost.items())
                           or ("?" if done.broke_off else "none")))
    if done.phantoms:
        text += (f"; {done.phantoms} changes shown that are gone, "
                 f"{done.phantom_reads} answers from them")
    if done.details:
        text += f" ({done.details})"
    if done.kind not in LOSING and (why := done.why_not_counted()):
        text += f"; not counted: {why}"
    return text + "".join("\n  " + line for line in done.violations[:20])


def summarize(rounds):
    """Lines for people: rounds, losses and times by kind."""
    by_name = collections.defaultdict(list)
    for done in rounds:
        by_name[done.name].append(done)
    return [f"failover {name}: " + _sums(some)
            for name, some in sorted(by_name.items())]


def _sums(some):
    recovering = sorted(done.recovering for done in some)
    parts = [f"{len(some)} rounds"]
    if uncounted := _uncounted(some):
        parts.append(f"{len(uncounted)} not counted")
    for kind in ("finalize", "claim", "release"):
        lost = [done.lost.get(kind, 0) for done in some]
        parts.append(
            f"{sum(done.acknowledged.get(kind, 0) for done in some)} {kind}s "
            f"acknowledged, {sum(lost)} lost"
            + (f" ({max(lost)} at most in a round)" if any(lost) else ""))
    parts.append(f"recovered after {recovering[len(recovering) // 2]:.1f} s "
                 f"(median), {recovering[-1]:.1f} s (longest)")
    if shown := sum(done.phantoms for done in some):
        parts.append(f"{shown} changes shown that are gone, "
                     f"{sum(done.phantom_reads for done in some)} answers "
                     "from them")
    parts.append(f"{sum(len(done.violations) for done in some)} violations")
    return "; ".join(parts)


def _counted(rounds):
    return [done for done in rounds if done.why_not_counted() is None]


def _uncounted(rounds):
    return [done for done in rounds
            if done.kind not in LOSING and done.why_not_counted()]


def ledger_counts(rounds):
    counted = _counted(rounds)
    return {
        "classes": {"failover_" + done.kind for done in counted},
        "faults": len(counted),
        "not_counted": len(_uncounted(rounds)),
        **{name: sum(done.counts.get(name, 0) for done in rounds)
           for name in ("operations", "keys", "effects", "unknown")},
        "failovers": len(counted),
        "violations": sum(len(done.violations) for done in rounds),
    }


def write_down(rounds, minutes, seed):
    """The row of the ledger."""
    ledger.append("failover", minutes, seed=seed, **ledger_counts(rounds))
