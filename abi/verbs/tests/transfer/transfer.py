"""The Mooncake transfer engine between two processes over the device: writes, reads, many in parallel.

Without arguments it starts both sides, checks their output, and prints "done". An engine that cannot use the
device silently takes TCP, so the log must name the transport. With two hosts, `TRANSFER_ADDRESSES` has their
addresses, and `TRANSFER_COMMANDS`, a line for each, the command that starts a program there.
"""

import ctypes
import os
import random
import shlex
import subprocess
import sys
import threading

SIZE = 1 << 20
PATIENCE_S = 240
# Of the target and the initiator.
ADDRESSES = os.environ.get("TRANSFER_ADDRESSES", "127.0.0.1 127.0.0.1").split()
COMMANDS = os.environ.get("TRANSFER_COMMANDS", "\n").split("\n")


def engine(address):
    from mooncake.engine import TransferEngine

    made = TransferEngine()
    assert made.initialize(address, "P2PHANDSHAKE", "rdma", "rkey0") == 0
    return made


def memory(made):
    buffer = ctypes.create_string_buffer(SIZE)
    address = ctypes.addressof(buffer)
    assert made.register_memory(address, SIZE) == 0
    return buffer, address


def target():
    made = engine(ADDRESSES[0])
    buffer, address = memory(made)
    print("offer", made.get_rpc_port(), address, flush=True)
    sys.stdin.readline()
    print("has", sum(buffer.raw), flush=True)


def initiator(port, remote):
    made = engine(ADDRESSES[1])
    buffer, address = memory(made)
    peer, remote = f"{ADDRESSES[0]}:{port}", int(remote)
    content = random.Random(7).randbytes(SIZE)
    ctypes.memmove(address, content, SIZE)
    assert made.transfer_sync_write(peer, address, remote, SIZE) == 0
    ctypes.memset(address, 0, SIZE)
    assert made.transfer_sync_read(peer, address, remote, SIZE) == 0
    assert buffer.raw == content, "the read returned other bytes"
    # In parts, whose order is reversed in the target.
    part, count = 4096, SIZE // 4096
    here = [address + part * n for n in range(count)]
    there = [remote + part * (count - 1 - n) for n in range(count)]
    assert made.batch_transfer_sync_write(peer, here, there, [part] * count) == 0
    assert made.transfer_sync_read(peer, address, remote, SIZE) == 0
    turned = b"".join(content[part * n : part * (n + 1)] for n in reversed(range(count)))
    assert buffer.raw == turned, "the batch wrote to the wrong addresses"
    # Outside the memory that the target has registered.
    assert made.transfer_sync_write(peer, address, remote + SIZE, 4096) != 0
    print("sum", sum(content), flush=True)


def start(*words):
    pipe = subprocess.PIPE
    enter = shlex.split(COMMANDS[words[0] != "target"])
    command = [*enter, sys.executable, os.path.abspath(__file__), *words]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


class Side:
    """A process, and all that it prints."""

    def __init__(self, *words):
        self.process = start(*words)
        self.log = []
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self.reader.start()
        self.lines = []

    def hear(self, word):
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith(word + " "):
                return line.split()[1:]
        raise AssertionError(self.text())

    def end(self):
        assert self.process.wait(PATIENCE_S) == 0, self.text()
        self.reader.join(PATIENCE_S)
        log = "".join(self.log)
        assert "installTransport, type=rdma" in log and "rkey0" in log, log
        assert "TcpTransport" not in log, log

    def text(self):
        return "".join(self.lines + self.log)


def both():
    offering = Side("target")
    timer = threading.Timer(PATIENCE_S, offering.process.kill)
    timer.start()
    try:
        port, remote = offering.hear("offer")
        writing = Side("initiator", port, remote)
        late = threading.Timer(PATIENCE_S, writing.process.kill)
        late.start()
        try:
            (expected,) = writing.hear("sum")
            writing.end()
        finally:
            late.cancel()
            writing.process.kill()
        offering.process.stdin.write("\n")
        offering.process.stdin.flush()
        assert offering.hear("has") == [expected]
        offering.end()
    finally:
        timer.cancel()
        offering.process.kill()
    print("done")


if __name__ == "__main__":
    roles = {"target": target, "initiator": initiator}
    if len(sys.argv) > 1:
        roles[sys.argv[1]](*sys.argv[2:])
    else:
        both()
