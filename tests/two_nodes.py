"""Two machines in one: network namespaces joined by a cable, and a command in each. Needs root on Linux; no `ip`."""

import contextlib
import ctypes
import os
import socket
import struct
import subprocess
from collections.abc import Iterator

NEWLINK, NEWADDR, REQUEST_ACK, CREATE = 16, 20, 5, 0x600
IFNAME, LINKINFO, NET_NS_PID, KIND, DATA, PEER = 3, 18, 19, 1, 2, 1


def attribute(number: int, content: bytes) -> bytes:
    return struct.pack("HH", 4 + len(content), number) + content + bytes(-len(content) % 4)


def ask(kind: int, flags: int, body: bytes) -> None:
    """One request to the kernel's table of links (rtnetlink(7)); OSError if it says no."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
        link.send(struct.pack("IHHII", 16 + len(body), kind, REQUEST_ACK | flags, 1, 0) + body)
        error = struct.unpack("i", link.recv(4096)[16:20])[0]
        if error:
            raise OSError(-error, os.strerror(-error))


def interface(index: int = 0, up: bool = False) -> bytes:
    return struct.pack("BxHiII", 0, 0, index, int(up), int(up))


def cable(one: str, other: str) -> None:
    peer = attribute(PEER, interface() + attribute(IFNAME, other.encode() + b"\0"))
    info = attribute(LINKINFO, attribute(KIND, b"veth") + attribute(DATA, peer))
    ask(NEWLINK, CREATE, interface() + attribute(IFNAME, one.encode() + b"\0") + info)


def plug(name: str, address: str) -> None:
    """Switch an interface on, with an address of a /24."""
    index, raw = socket.if_nametoindex(name), socket.inet_aton(address)
    if name != "lo":
        body = struct.pack("BBBBi", socket.AF_INET, 24, 0, 0, index) + attribute(1, raw) + attribute(2, raw)
        ask(NEWADDR, CREATE, body)
    ask(NEWLINK, 0, interface(index, up=True))


def enter(pid: int) -> None:
    """Move this process into the network of another one."""
    with open(f"/proc/{pid}/ns/net") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0x40000000):  # os.setns is of Python 3.12
            raise OSError(ctypes.get_errno(), "setns")


@contextlib.contextmanager
def nodes(addresses: tuple[str, str] = ("10.77.0.1", "10.77.0.2")) -> Iterator[list[subprocess.Popen]]:
    """Two processes that hold a network each, joined by a cable.

    Raises:
        OSError: namespaces or cables cannot be made here.
    """
    holders = [subprocess.Popen(["unshare", "-n", "sleep", "600"]) for _ in addresses]
    try:
        while any(os.readlink(f"/proc/{holder.pid}/ns/net") == os.readlink("/proc/self/ns/net") for holder in holders):
            if any(holder.poll() is not None for holder in holders):
                raise OSError("unshare -n is not allowed")
        child = os.fork()
        if child == 0:  # a process of its own, since it moves
            status = 1
            with contextlib.suppress(OSError):  # which the status tells
                enter(holders[0].pid)
                cable("node0", "node1")
                pid = struct.pack("I", holders[1].pid)
                ask(NEWLINK, 0, interface(socket.if_nametoindex("node1")) + attribute(NET_NS_PID, pid))
                for number, (holder, address) in enumerate(zip(holders, addresses, strict=True)):
                    enter(holder.pid)
                    plug("lo", "127.0.0.1")
                    plug(f"node{number}", address)
                status = 0
            os._exit(status)
        if os.waitpid(child, 0)[1]:
            raise OSError("the kernel makes no cable (veth)")
        yield holders
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()
