"""Field types that several sections share."""

from typing import Annotated

from pydantic import AfterValidator


def _ordered(value: tuple[float, float]) -> tuple[float, float]:
    if value[0] > value[1]:
        raise ValueError(f"a range is written [low, high], got [{value[0]:g}, {value[1]:g}]")
    return value


Range = Annotated[tuple[float, float], AfterValidator(_ordered)]
"""`[low, high]`; a value between them is drawn evenly."""

IntRange = Annotated[tuple[int, int], AfterValidator(_ordered)]
"""`[low, high]` of whole numbers, both included."""
