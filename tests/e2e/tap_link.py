#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A link between two network namespaces where the kernel has no veth: hands on the frames of two taps.

    tap_link.py NAME SPACE SPACE

Says "ready" once both namespaces have the interface, and is the link as long as it runs.
"""

import contextlib
import ctypes
import fcntl
import os
import select
import struct
import sys

NEW_NETWORK = 0x40000000  # CLONE_NEWNET
SET_INTERFACE = 0x400454CA  # TUNSETIFF
TAP_WITHOUT_HEADER = 0x0002 | 0x1000
LARGEST_FRAME = 1 << 16


def tap(name, space):
    """An interface in a namespace, which this process enters."""
    libc = ctypes.CDLL(None, use_errno=True)
    entry = os.open(f"/run/netns/{space}", os.O_RDONLY)
    if libc.setns(entry, NEW_NETWORK) != 0:
        raise OSError(ctypes.get_errno(), f"cannot enter {space}")
    os.close(entry)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, SET_INTERFACE, struct.pack("16sH22x", name.encode(), TAP_WITHOUT_HEADER))
    return device


def main():
    """Until it is ended, or its parent is."""
    name, *spaces = sys.argv[1:]
    first, second = (tap(name, space) for space in spaces)
    other = {first: second, second: first}
    print("ready", flush=True)
    while sys.stdin.fileno() not in (found := select.select([sys.stdin.fileno(), *other], [], [])[0]):
        for device in found:
            with contextlib.suppress(OSError):  # an interface that is down, or full
                while frame := os.read(device, LARGEST_FRAME):
                    os.write(other[device], frame)


if __name__ == "__main__":
    main()
