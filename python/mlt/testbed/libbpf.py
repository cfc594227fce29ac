"""The few libbpf.so.1 calls that load programs and read their tables, through ctypes.

iproute2 depends on that library, so every host with ``tc`` has it. Nothing is pinned: an attached program holds its
tables, another process finds them by number, and the kernel removes everything with the interface.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from mlt.testbed.errors import TestbedError

_ANY, _LOCK = 0, 4
_INFO_BYTES = 256


@lru_cache(maxsize=1)
def library() -> Any:
    """The loaded library; raises OSError where it is missing."""
    lib = ctypes.CDLL("libbpf.so.1", use_errno=True)
    pointer = ctypes.c_void_p
    for name in ("bpf_object__open_file", "bpf_object__find_program_by_name", "bpf_object__find_map_by_name"):
        getattr(lib, name).restype = pointer
    lib.bpf_object__open_file.argtypes = [ctypes.c_char_p, pointer]
    lib.bpf_object__load.argtypes = [pointer]
    lib.bpf_object__close.argtypes = [pointer]
    lib.bpf_object__close.restype = None
    lib.bpf_object__find_program_by_name.argtypes = [pointer, ctypes.c_char_p]
    lib.bpf_object__find_map_by_name.argtypes = [pointer, ctypes.c_char_p]
    lib.bpf_program__fd.argtypes = [pointer]
    lib.bpf_map__fd.argtypes = [pointer]
    lib.bpf_map_update_elem.argtypes = [ctypes.c_int, pointer, pointer, ctypes.c_uint64]
    lib.bpf_map_lookup_elem_flags.argtypes = [ctypes.c_int, pointer, pointer, ctypes.c_uint64]
    lib.bpf_map_get_next_key.argtypes = [ctypes.c_int, pointer, pointer]
    lib.bpf_obj_get_info_by_fd.argtypes = [ctypes.c_int, pointer, pointer]
    lib.bpf_map_get_fd_by_id.argtypes = [ctypes.c_uint32]
    return lib


class _Log:
    """Collects messages that libbpf would print to standard error."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
        libc = ctypes.CDLL(None)
        libc.vsnprintf.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p]

        def keep(_level: int, text: bytes, arguments: int) -> int:
            buffer = ctypes.create_string_buffer(4096)
            libc.vsnprintf(buffer, len(buffer), text, arguments)
            if _level == 0:
                self.lines.append(buffer.value.decode(errors="replace").strip())
            return 0

        self.callback = prototype(keep)


_log: _Log | None = None


class Table:
    """One map, by file descriptor. Keys and values are bytes; per-CPU maps give one value per CPU."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        info = ctypes.create_string_buffer(_INFO_BYTES)
        size = ctypes.c_uint32(_INFO_BYTES)
        if library().bpf_obj_get_info_by_fd(fd, info, ctypes.byref(size)) != 0:
            raise TestbedError(f"table of the switch program: {os.strerror(ctypes.get_errno())}")
        kind, self.id, self.key_bytes, self.value_bytes = struct.unpack_from("=IIII", info.raw)
        # BPF_MAP_TYPE_PERCPU_HASH and PERCPU_ARRAY
        self.per_processor = kind in (5, 6)

    @classmethod
    def by_id(cls, number: int) -> Table:
        """A table of an attached program; raises TestbedError if it no longer exists."""
        fd = library().bpf_map_get_fd_by_id(number)
        if fd < 0:
            raise TestbedError(f"table {number} of the switch program is gone: {os.strerror(-fd)}")
        return cls(fd)

    def update(self, key: bytes, value: bytes) -> None:
        if len(key) != self.key_bytes or len(value) != self.value_bytes:
            raise TestbedError(f"table {self.id} has keys of {self.key_bytes} B and values of {self.value_bytes} B")
        failed = library().bpf_map_update_elem(self.fd, key, value, _ANY)
        if failed:
            raise TestbedError(f"table {self.id}: {os.strerror(-failed)}")

    def lookup(self, key: bytes, *, locked: bool = False) -> list[bytes] | None:
        """The value, or one per CPU; None if the key is absent. ``locked``: under the value's spin lock."""
        size = (self.value_bytes + 7) // 8 * 8 if self.per_processor else self.value_bytes
        count = library().libbpf_num_possible_cpus() if self.per_processor else 1
        buffer = ctypes.create_string_buffer(size * count)
        if library().bpf_map_lookup_elem_flags(self.fd, key, buffer, _LOCK if locked else _ANY) != 0:
            return None
        return [buffer.raw[i * size : i * size + self.value_bytes] for i in range(count)]

    def keys(self) -> Iterator[bytes]:
        previous: bytes | None = None
        following = ctypes.create_string_buffer(self.key_bytes)
        while library().bpf_map_get_next_key(self.fd, previous, following) == 0:
            previous = following.raw[: self.key_bytes]
            yield previous

    def close(self) -> None:
        os.close(self.fd)


class Program:
    """A loaded object file: one program and its tables, until ``close`` (attachments stay)."""

    def __init__(self, path: Path, program: str) -> None:
        """Load into the kernel; raises TestbedError with libbpf's own text."""
        global _log
        lib = library()
        if _log is None:
            _log = _Log()
            lib.libbpf_set_print(_log.callback)
        _log.lines.clear()
        self._object = lib.bpf_object__open_file(str(path).encode(), None)
        failed = lib.bpf_object__load(self._object) if self._object else ctypes.get_errno()
        if not self._object or failed:
            why = "\n".join(_log.lines[-12:]) or os.strerror(abs(failed))
            self.close()
            raise TestbedError(f"the kernel refused {path.name}: {why}")
        self.fd = lib.bpf_program__fd(lib.bpf_object__find_program_by_name(self._object, program.encode()))

    def table(self, name: str) -> Table:
        lib = library()
        found = lib.bpf_object__find_map_by_name(self._object, name.encode())
        if not found:
            raise TestbedError(f"the program has no table {name!r}")
        return Table(os.dup(lib.bpf_map__fd(found)))

    def close(self) -> None:
        if self._object:
            library().bpf_object__close(self._object)
            self._object = None
