"""Test the memory allocator's settings, which bound the memory of a serving process."""

import os
import re
import subprocess
import sys

import pytest

# Threads allocate at the same time, as searches do. Then glibc lists its arenas.
SCRIPT = """
import ctypes, threading
from boundarymorph.server.process import share_arenas
share_arenas()
libc, together = ctypes.CDLL(None), threading.Barrier(12)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def allocate():
    together.wait()
    blocks = [libc.malloc(100_000) for _ in range(50)]
    together.wait()
    for block in blocks:
        libc.free(block)
threads = [threading.Thread(target=allocate) for _ in range(12)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc.fdopen.restype, libc.fflush.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
out = libc.fdopen(1, b"w")
libc.malloc_info(0, out)
libc.fflush(out)
"""


@pytest.mark.parametrize(("chosen", "arenas"), [(None, 2), ("3", 3)])
def test_process_limits_malloc_arenas(chosen: str | None, arenas: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    if chosen is not None:
        environment["MALLOC_ARENA_MAX"] = chosen
    run = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    assert len(re.findall("<heap ", run.stdout)) == arenas
