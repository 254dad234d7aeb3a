"""The registry of fault classes. The modules fault_*.py fill it; a class is a
function that does one fault to a round (rounds.py) and has undone it when it
returns."""

import dataclasses
from typing import Callable

CLASSES = {}  # by name, in the order of their definition


@dataclasses.dataclass(frozen=True)
class FaultClass:
    name: str
    text: str  # one line for people
    inject: Callable
    injections: int  # how many of it a round has
    mix: str  # what the callers do
    lacks: Callable  # of a deployment: why it can't be done here, or None


def _nothing(_):
    return None


def fault(name, text, injections=2, mix="all", lacks=_nothing):
    """Registers the function below it."""
    def register(inject):
        assert name not in CLASSES, name
        CLASSES[name] = FaultClass(name, text, inject, injections, mix, lacks)
        return inject
    return register
