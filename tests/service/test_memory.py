"""Memory of the service after large answers."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process
MOST_KEPT_MEGABYTES = 40
# Seeded sizes: answers that end at 2 to 48 MB, of parts of 30 to 64 kB, six at a time.
ANSWERS = """
import random, resource, threading
from contextlib import suppress
from sf_quantum.net import bounded_answers
from sf_quantum.service.run import give_memory_back

def resident():
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * resource.getpagesize() / 2**20

def read(seed):
    draws = random.Random(seed)
    parts = (bytes(draws.randrange(30_000, 65_536)) for _ in range(draws.choice(SIZES)))
    with suppress(OSError):
        answers.whole(parts, 32 * 2**20)

SIZES = (30, 100, 300, 900)
give_memory_back()
before = resident()
for number in range(12):
    threads = [threading.Thread(target=read, args=(n,)) for n in range(number, number + 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(resident() - before)
"""


def test_large_answers_leave_no_memory_taken() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ANSWERS], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < MOST_KEPT_MEGABYTES
