"""The memory that glibc's malloc holds."""

import ctypes
import platform
import sys


class Counts(ctypes.Structure):
    """What mallinfo2 returns."""

    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]


def keep() -> None:
    """Let glibc keep the big buffers of a step for the next one; to give them back and fault them in costs 15 %."""
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD: its largest value
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def used() -> int:
    """Bytes that malloc has given out to this process; 0 where the C library does not say."""
    count = getattr(ctypes.CDLL(None), "mallinfo2", None) if sys.platform == "linux" else None
    if count is None:
        return 0
    count.restype = Counts
    found = count()
    return found.uordblks + found.hblkhd
