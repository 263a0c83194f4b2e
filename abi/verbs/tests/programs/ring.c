/* A ring of large messages, a reduction, and puts into every rank's window, checked on every rank. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INTS = 300000, ROUNDS = 2 };

static int value(int rank, int i) { return rank * 1000003 + i; }

static void fail(const char *what) {
  printf("%s is wrong\n", what);
  MPI_Abort(MPI_COMM_WORLD, 3);
}

int main(int argc, char **argv) {
  int rank, ranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
  int *out = malloc(INTS * sizeof *out), *in = malloc(INTS * sizeof *in);
  for (int i = 0; i < INTS; i++) out[i] = value(rank, i);
  for (int round = 0; round < ROUNDS; round++) {
    memset(in, 0, INTS * sizeof *in);
    MPI_Sendrecv(out, INTS, MPI_INT, right, 0, in, INTS, MPI_INT, left, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int i = 0; i < INTS; i++)
      if (in[i] != value(left, i)) fail("a message");
  }
  long mine = rank, sum = 0;
  MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  if (sum != (long)ranks * (ranks - 1) / 2) fail("the sum");

  long *memory, put = rank + 1;
  MPI_Win window;
  MPI_Win_allocate(ranks * sizeof *memory, sizeof *memory, MPI_INFO_NULL,
                   MPI_COMM_WORLD, &memory, &window);
  memset(memory, 0, ranks * sizeof *memory);
  MPI_Win_fence(0, window);
  for (int i = 0; i < ranks; i++)
    MPI_Put(&put, 1, MPI_LONG, i, rank, 1, MPI_LONG, window);
  MPI_Win_fence(0, window);
  for (int i = 0; i < ranks; i++)
    if (memory[i] != i + 1) fail("a put");
  MPI_Win_free(&window);
  if (rank == 0) printf("%d ranks agree\n", ranks);
  MPI_Finalize();
  return 0;
}
