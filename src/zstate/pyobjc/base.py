"""What every object of the facade shares: alloc, init, setters, errors that name a selector."""

from __future__ import annotations

import difflib
from typing import Any

from ..errors import DTypeError, ZStateError, refusal
from ..layout import describe
from ..mpsgraph.published import published_names

_CONTROL_FLOW = "whose graphs have no blocks: unroll the loop, or select between two values"

_CORE_ML = "which reads no Core ML packages"


class SelectorError(ZStateError, AttributeError):
    """A selector that does not exist, or an assignment where Objective-C has a setter."""


def _unknown(kind: type, name: str) -> SelectorError:
    """The refusal of an unknown selector, with the nearest one that exists."""
    if name.startswith("_"):
        return SelectorError(f"[{kind.__name__}] expected an initialised object, got alloc() alone")
    for base in kind.__mro__:
        row = published_names(base.__name__).get(name)
        if row is not None:
            reason = "published by Apple, but not available here"
            if row.kind == "refused":
                package = "Package" in row.selector
                reason = f"not available in zstate, {_CORE_ML if package else _CONTROL_FLOW}"
            return SelectorError(f"[{kind.__name__}] {name}: {reason}")
    known = [other for other in dir(kind) if not other.startswith("_")]
    # Swift's name, or zs.Graph's: LSTM, soft_max; or the beginning of a selector.
    starts = name.replace("_", "").lower() + "with", name.rstrip("_").lower() + "_"
    forms = [other for other in known if other.lower().startswith(starts)]
    meant = " or ".join(map(repr, forms or difflib.get_close_matches(name, known, n=1)))
    hint = f"; did you mean {meant}?" if meant else ""
    return SelectorError(f"[{kind.__name__}] unknown selector {name!r}{hint}")


class Class(type):
    """The metaclass: PyObjC's constructors, and a suggestion for mistyped class methods."""

    def __call__(cls, *args: Any, **keywords: Any) -> Any:
        """An object; PyObjC's keywords select the method that makes it."""
        if not keywords:
            return super().__call__(*args)
        for row in published_names(cls.__name__).values():
            if row.kind == "offered" and row.keywords == tuple(keywords):
                maker = cls if row.class_method else cls.alloc()
                return getattr(maker, row.pyobjc)(*keywords.values())
        words = ", ".join(keywords)
        raise TypeError(f"{cls.__name__}() does not take the keywords {words}, in this order")

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise _unknown(cls, name)


class NSObject(metaclass=Class):
    """``alloc().init()`` and ``new()``, as every Objective-C class has them.

    Properties change through setters only, as in Objective-C.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _unknown(type(self), name)

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
            return
        kind = type(self)
        first, *rest = name.split("_")
        camel = first + "".join(part[:1].upper() + part[1:] for part in rest)
        setter = f"set{camel[:1].upper()}{camel[1:]}_"
        setters = [other for other in dir(kind) if other.startswith("set")]
        close = difflib.get_close_matches(setter, setters, n=1)
        if setter in setters:
            advice = f"call {setter}({value!r:.40})"
        elif close:
            advice = f"did you mean {close[0]}({value!r:.40})?"
        else:
            advice = "it has no such setter"
        raise SelectorError(f"[{kind.__name__}] {name}: cannot be assigned to; {advice}")

    @classmethod
    def alloc(cls) -> Any:
        return cls.__new__(cls)

    @classmethod
    def new(cls) -> Any:
        return cls.alloc().init()

    def init(self) -> Any:
        return self


def shown(value: object) -> str:
    """A wrong constant in a message: the value if its text is short, or its type."""
    return repr(value) if isinstance(value, bool | int | float | str) else describe(value)


def one_of(label: str, name: str, kind: Any, value: object, nil: bool = False) -> Any:
    """The value, if it is an object of this class, or None where that may be passed."""
    if not isinstance(value, kind) and not (nil and value is None):
        expected = f"an {kind.__name__}" + (" or None" if nil else "")
        raise DTypeError(refusal(label, name, expected, describe(value)))
    return value
