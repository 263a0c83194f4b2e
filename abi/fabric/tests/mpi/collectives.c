/* The collective operations, with sizes that no algorithm divides evenly, from a few bytes to several hundred kB. */

#include "check.h"

static const int COUNTS[] = {1, 3, 17, 1000, 4099, 40001};
#define KINDS (sizeof COUNTS / sizeof *COUNTS)

/* The value that `from` has for `to` at an index. */
static int value(int from, int to, int place) { return from * 1000003 + to * 10007 + place; }

static void rooted(int count, int root) {
    int *all = room((size_t)count * ranks * sizeof *all), *own = room(count * sizeof *own);
    for (int i = 0; i < count; i++) own[i] = rank == root ? value(root, 0, i) : -1;
    MPI_Bcast(own, count, MPI_INT, root, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++) CHECK(own[i] == value(root, 0, i));

    for (int i = 0; i < count; i++) own[i] = value(rank, root, i);
    MPI_Gather(own, count, MPI_INT, all, count, MPI_INT, root, MPI_COMM_WORLD);
    for (int i = 0; rank == root && i < count * ranks; i++) CHECK(all[i] == value(i / count, root, i % count));

    for (int i = 0; i < count * ranks; i++) all[i] = value(root, i / count, i % count);
    MPI_Scatter(all, count, MPI_INT, own, count, MPI_INT, root, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++) CHECK(own[i] == value(root, rank, i));

    for (int i = 0; i < count; i++) own[i] = rank + i;
    MPI_Reduce(own, all, count, MPI_INT, MPI_SUM, root, MPI_COMM_WORLD);
    for (int i = 0; rank == root && i < count; i++) CHECK(all[i] == ranks * i + ranks * (ranks - 1) / 2);
    free(own), free(all);
}

static void rootless(int count) {
    size_t size = (size_t)count * ranks * sizeof(int);
    int *in = room(size), *out = room(size);
    for (int i = 0; i < count; i++) out[i] = value(rank, 0, i);
    MPI_Allgather(out, count, MPI_INT, in, count, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < count * ranks; i++) CHECK(in[i] == value(i / count, 0, i % count));

    for (int i = 0; i < count * ranks; i++) out[i] = value(rank, i / count, i % count);
    MPI_Alltoall(out, count, MPI_INT, in, count, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < count * ranks; i++) CHECK(in[i] == value(i / count, rank, i % count));

    for (int i = 0; i < count * ranks; i++) out[i] = rank + i;
    MPI_Reduce_scatter_block(out, in, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++) CHECK(in[i] == ranks * (rank * count + i) + ranks * (ranks - 1) / 2);

    double *sums = room(count * sizeof *sums), *parts = room(count * sizeof *parts);
    for (int i = 0; i < count; i++) parts[i] = rank == i % ranks ? 1e6 + i : -i;
    MPI_Allreduce(parts, sums, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++) CHECK(sums[i] == 1e6 + i);
    MPI_Scan(parts, sums, count, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++) CHECK(sums[i] == (!rank && i % ranks == 0 ? 1e6 + i : -i));
    for (int i = 0; i < count; i++) parts[i] = rank + 1;
    MPI_Exscan(parts, sums, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; rank && i < count; i++) CHECK(sums[i] == rank * (rank + 1) / 2);
    free(parts), free(sums), free(out), free(in);
}

/* Every rank contributes a part of its own length, one of them nothing. */
static void uneven(int count) {
    int *counts = room(ranks * sizeof *counts), *places = room(ranks * sizeof *places), total = 0;
    for (int i = 0; i < ranks; i++) counts[i] = i * count, places[i] = total, total += counts[i] + 1;
    int *all = room(total * sizeof *all), *own = room((count * ranks + 1) * sizeof *own);
    for (int i = 0; i < counts[rank]; i++) own[i] = value(rank, 9, i);
    MPI_Allgatherv(own, counts[rank], MPI_INT, all, counts, places, MPI_INT, MPI_COMM_WORLD);
    for (int from = 0; from < ranks; from++)
        for (int i = 0; i < counts[from]; i++) CHECK(all[places[from] + i] == value(from, 9, i));

    /* Each rank sends `rank * count` elements to every rank, and gets `from * count` from each. */
    int *out = room((size_t)(counts[rank] + 1) * ranks * sizeof *out);
    int *lengths = room(ranks * sizeof *lengths), *offsets = room(ranks * sizeof *offsets);
    for (int to = 0; to < ranks; to++) {
        lengths[to] = counts[rank], offsets[to] = to * counts[rank];
        for (int i = 0; i < counts[rank]; i++) out[offsets[to] + i] = value(rank, to, i);
    }
    MPI_Alltoallv(out, lengths, offsets, MPI_INT, all, counts, places, MPI_INT, MPI_COMM_WORLD);
    for (int from = 0; from < ranks; from++)
        for (int i = 0; i < counts[from]; i++) CHECK(all[places[from] + i] == value(from, rank, i));
    free(offsets), free(lengths), free(out), free(own), free(all), free(places), free(counts);
}

/* Several nonblocking operations at once, also in separate communicators. */
static void concurrent(void) {
    enum { COUNT = 5001 };
    MPI_Comm half, copy;
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    int in_half, mine, first, sum = 0;
    MPI_Comm_size(half, &in_half);
    for (int i = rank % 2; i < ranks; i += 2) sum += i;
    int *shared = room(COUNT * sizeof *shared), *gathered = room((size_t)COUNT * ranks * sizeof *gathered);
    int *own = room(COUNT * sizeof *own);
    for (int i = 0; i < COUNT; i++) own[i] = value(rank, 4, i), shared[i] = rank == 0 ? i : -1;
    MPI_Request requests[4];
    MPI_Ibcast(shared, COUNT, MPI_INT, 0, copy, &requests[0]);
    MPI_Iallreduce(&rank, &mine, 1, MPI_INT, MPI_SUM, half, &requests[1]);
    MPI_Iallgather(own, COUNT, MPI_INT, gathered, COUNT, MPI_INT, MPI_COMM_WORLD, &requests[2]);
    MPI_Ibarrier(copy, &requests[3]);
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
    CHECK(mine == sum);
    for (int i = 0; i < COUNT; i++) CHECK(shared[i] == i);
    for (int i = 0; i < COUNT * ranks; i++) CHECK(gathered[i] == value(i / COUNT, 4, i % COUNT));
    first = rank;
    MPI_Bcast(&first, 1, MPI_INT, 0, half);
    CHECK(first / 2 == (ranks - 1 - rank % 2) / 2 && first % 2 == rank % 2); /* The order was reversed. */
    free(own), free(gathered), free(shared);
    MPI_Comm_free(&half);
    MPI_Comm_free(&copy);
}

void collectives(void) {
    for (size_t kind = 0; kind < KINDS; kind++) {
        for (int root = 0; root < ranks; root += ranks > 1 ? ranks - 1 : 1) rooted(COUNTS[kind], root);
        rootless(COUNTS[kind]);
        uneven(COUNTS[kind]);
    }
    for (int i = 0; i < 100; i++) MPI_Barrier(MPI_COMM_WORLD);
    concurrent();
}
