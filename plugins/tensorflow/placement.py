"""Horovod's arguments that place an operation on a device."""

from __future__ import annotations


def check_devices(**devices: str) -> None:
    """Raise ValueError for a device other than the CPU: from its memory every tensor travels."""
    for argument, device in devices.items():
        if device and "cpu" not in device.lower():
            raise ValueError(
                f"{argument}={device!r} is not possible: mlt reduces in the memory of the host, where tensors of any "
                f"device are copied to; leave {argument} out, or give '/cpu:0'"
            )


def check_session(function: str, session: object) -> None:
    """Raise ValueError for a session of TensorFlow 1, which ``function`` has no use for."""
    if session is not None:
        raise ValueError(f"{function}(session=) is of TensorFlow 1; leave it out")
