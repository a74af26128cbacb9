"""Datatypes of tensors, by the names of the Open Inference Protocol ("Tensor Data Types"), and numpy's for them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.errors import UsageError

Tensor = NDArray[Any]

BYTES = "BYTES"
"""Elements of any length; an array of ``bytes`` objects."""
DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"UINT{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
    BYTES: np.dtype(object),
}
"""All that are known here. Little-endian, as binary data is; BF16 has no counterpart in numpy."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def dtype_of(name: str) -> np.dtype[Any]:
    """Raises UsageError for a name that is none, or is not known here."""
    found = DTYPES.get(name)
    if found is None:
        raise UsageError(f"datatype {name!r} is not known", f"use one of {', '.join(DTYPES)}")
    return found


def datatype_of(tensor: Tensor) -> str:
    """The protocol's name for an array's elements; text and objects are BYTES. Raises UsageError for others (complex, dates)."""
    if tensor.dtype.kind in "OSU":
        return BYTES
    found = _NAMES.get(tensor.dtype.newbyteorder("<"))
    if found is None:
        raise UsageError(
            f"arrays of {tensor.dtype} have no datatype in the protocol", "return numbers, booleans or bytes"
        )
    return found
