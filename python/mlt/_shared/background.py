"""Work beside a block of code, in a thread that ends with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def beside(run: Callable[[threading.Event], object], name: str) -> Iterator[None]:
    """Around a block: call ``run(is_over)`` in another thread of this ``name``; it returns soon after ``is_over`` is
    set, and the block ends no earlier."""
    is_over = threading.Event()
    thread = threading.Thread(target=run, args=(is_over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
