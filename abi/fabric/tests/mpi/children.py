"""Messages around a ring of ranks whose buffers come and go, while each rank starts children: with multiprocessing, which forks,
and with subprocess. Compares every byte that arrives."""
import multiprocessing
import subprocess
import sys

from mpi4py import MPI

ROUNDS = 6
LENGTHS = (100, 5000, 70_000, 1 << 20)

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
right, left = (rank + 1) % size, (rank - 1) % size


def pattern(sender, turn, length):
    start = (sender * 31 + turn) % 200
    unit = bytes(range(start, start + 50))
    return bytearray(unit * (length // 50 + 1))[:length]


def square(number):
    # A child has memory of its own, and may free what it inherited.
    return number * number, len(bytearray(1 << 20))


def exchange(turn):
    for length in LENGTHS:
        out, into = pattern(rank, turn, length), bytearray(length)
        comm.Sendrecv(out, right, recvbuf=into, source=left)
        assert into == pattern(left, turn, length), (rank, turn, length)


for turn in range(ROUNDS):
    exchange(turn)
    if turn % 3 == 0:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            asked = pool.map_async(square, range(20))
            exchange(turn + 1)
            assert asked.get(300) == [(number * number, 1 << 20) for number in range(20)]
        said = subprocess.run([sys.executable, "-c", "print('child')"], capture_output=True, check=True)
        assert said.stdout == b"child\n"

agree = comm.allreduce(1)
if rank == 0:
    print(f"children: {agree} ranks agree", flush=True)
