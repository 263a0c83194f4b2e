/* Each rank of the first half sends 20 messages of 1 MiB to a rank of the second half, which compares them. Then all ranks add up
   their numbers. Prints "pairs: ok" in rank 0 if there are ranks on two hosts and all is right. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LENGTH (1 << 20)

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank, count;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &count);
  int other = (rank + count / 2) % count;
  char *bytes = malloc(LENGTH);
  int wrong = 0;
  for (int round = 1; round <= 20; round++) {
    if (rank < count / 2) {
      memset(bytes, round, LENGTH);
      MPI_Send(bytes, LENGTH, MPI_CHAR, other, round, MPI_COMM_WORLD);
    } else {
      MPI_Recv(bytes, LENGTH, MPI_CHAR, other, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      for (int at = 0; at < LENGTH; at++) wrong += bytes[at] != round;
    }
  }
  char name[64] = "", first[64];
  gethostname(name, sizeof name - 1);
  memcpy(first, name, sizeof first);
  MPI_Bcast(first, sizeof first, MPI_CHAR, 0, MPI_COMM_WORLD);
  int mine[3] = {wrong, rank, strcmp(name, first) != 0}, all[3];
  MPI_Allreduce(mine, all, 3, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  int right = all[0] == 0 && all[1] == count * (count - 1) / 2 && all[2] == count / 2;
  if (rank == 0) printf("pairs: %s\n", right ? "ok" : "wrong");
  MPI_Finalize();
  return !right;
}
