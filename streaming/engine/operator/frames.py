"""The DataFrames in which Spark hands a group of cells over and takes the answer back, on PySpark's stock path."""

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

import numpy as np
import pandas as pd

from streaming.engine.operator.cells import OUTPUT_COLUMN, RECORD_COLUMN

_COLUMNS: Final = pd.Index([OUTPUT_COLUMN])
_ONE_ROW: Final = pd.RangeIndex(1)

Frames: TypeAlias = Iterator[pd.DataFrame]


def cells_of(frames: Frames) -> Iterator[bytes]:
    """The cells of a group, in the order of its rows."""
    # By position: to take a column by its name costs a tenth of what Python does for a client. tests/spark pins the order.
    return (cell for frame in frames for cell in frame.to_numpy()[:, RECORD_COLUMN])


def frames_of(cells: Iterable[bytes]) -> Frames:
    """The answer: one frame of one row for each cell, none for no cells."""
    return iter([frame_of(cell) for cell in cells])


def frame_of(cell: bytes) -> pd.DataFrame:
    """One row with this cell."""
    # An object array and ready indexes: a third of what `pd.DataFrame({"records": [cell]})` costs.
    values = np.empty((1, 1), dtype=object)
    values[0, 0] = cell
    return pd.DataFrame(values, index=_ONE_ROW, columns=_COLUMNS, dtype=object, copy=False)
