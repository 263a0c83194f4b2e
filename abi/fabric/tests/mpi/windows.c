/* One-sided access: windows of every kind, every operation, every kind of synchronization. */

#include "check.h"

enum { SLOTS = 20000 };

/* The rank whose window this one accesses, and the rank that accesses this one's. */
static int next_one(void) { return (rank + 1) % ranks; }
static int one_before(void) { return (rank + ranks - 1) % ranks; }

/* Frees a window only when every message sent for it has completed. Open MPI's osc/pt2pt frees the module of a window
 * while its own last control messages are pending, and writes to it when they complete; where a small send does not
 * complete at once, as in a network, that memory may belong to another owner by then. A synchronous send to every rank
 * completes after all earlier sends to that rank. */
static void free_window(MPI_Win *window) {
    MPI_Request *requests = room(ranks * sizeof *requests);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int peer = 0; peer < ranks; peer++) MPI_Irecv(NULL, 0, MPI_BYTE, peer, 2, MPI_COMM_WORLD, &requests[peer]);
    for (int peer = 0; peer < ranks; peer++) MPI_Ssend(NULL, 0, MPI_BYTE, peer, 2, MPI_COMM_WORLD);
    MPI_Waitall(ranks, requests, MPI_STATUSES_IGNORE);
    free(requests);
    MPI_Win_free(window);
}

/* Put and get between fences, of lengths that take different paths. */
static void fences(long *memory, MPI_Win window) {
    static const int LENGTHS[] = {1, 7, 500, 4097, SLOTS};
    long *out = room(SLOTS * sizeof *out), *in = room(SLOTS * sizeof *in);
    for (size_t kind = 0; kind < sizeof LENGTHS / sizeof *LENGTHS; kind++) {
        int count = LENGTHS[kind];
        for (int i = 0; i < count; i++) out[i] = rank * 1000000L + kind * 100000 + i;
        for (int i = 0; i < SLOTS; i++) memory[i] = -1;
        MPI_Win_fence(MPI_MODE_NOPRECEDE, window);
        MPI_Put(out, count, MPI_LONG, next_one(), SLOTS - count, count, MPI_LONG, window);
        MPI_Win_fence(0, window);
        for (int i = 0; i < SLOTS; i++)
            CHECK(memory[i] == (i < SLOTS - count ? -1 : one_before() * 1000000L + (long)kind * 100000 + i - (SLOTS - count)));
        MPI_Get(in, count, MPI_LONG, next_one(), SLOTS - count, count, MPI_LONG, window);
        MPI_Win_fence(MPI_MODE_NOSUCCEED, window);
        for (int i = 0; i < count; i++) CHECK(in[i] == out[i]);
    }
    /* With gaps at the target. */
    MPI_Datatype comb;
    MPI_Type_vector(100, 2, 5, MPI_LONG, &comb);
    MPI_Type_commit(&comb);
    for (int i = 0; i < SLOTS; i++) memory[i] = -1;
    MPI_Win_fence(0, window);
    MPI_Put(out, 200, MPI_LONG, next_one(), 3, 1, comb, window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < 500; i++) {
        long expected = i % 5 < 2 ? one_before() * 1000000L + 400000 + i / 5 * 2 + i % 5 : -1;
        CHECK(memory[i + 3] == expected);
    }
    MPI_Win_fence(0, window);
    MPI_Type_free(&comb);
    free(in), free(out);
}

/* All ranks add to all ranks' cells at once; no addition may be lost. */
static void atomics(long *memory, MPI_Win window) {
    enum { ROUNDS = 12, WIDE = 3000 };
    for (int i = 0; i < SLOTS; i++) memory[i] = 0;
    MPI_Win_fence(0, window);
    long *ones = room(WIDE * sizeof *ones), *before = room(WIDE * sizeof *before), one = 1, got, seen = -1;
    for (int i = 0; i < WIDE; i++) ones[i] = 1;
    MPI_Win_fence(0, window);
    for (int target = 0; target < ranks; target++) MPI_Accumulate(ones, WIDE, MPI_LONG, target, 100, WIDE, MPI_LONG, MPI_SUM, window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < WIDE; i++) CHECK(memory[100 + i] == ranks);
    MPI_Win_fence(0, window);

    MPI_Win_lock_all(0, window);
    for (int round = 0; round < ROUNDS; round++) {
        MPI_Fetch_and_op(&one, &got, MPI_LONG, 0, 0, MPI_SUM, window);
        MPI_Win_flush(0, window);
        CHECK(got > seen && got < (long)ROUNDS * ranks); /* A counter that all ranks share only grows. */
        seen = got;
        /* A lock made of compare-and-swap, and a cell that it protects: read, add, write back. */
        long unowned = 0, me = rank + 1, owner, cell;
        do {
            MPI_Compare_and_swap(&me, &unowned, &owner, MPI_LONG, 0, 1, window);
            MPI_Win_flush(0, window);
        } while (owner != unowned);
        MPI_Get_accumulate(NULL, 0, MPI_LONG, &cell, 1, MPI_LONG, 0, 2, 1, MPI_LONG, MPI_NO_OP, window);
        MPI_Win_flush(0, window);
        cell += 1;
        MPI_Accumulate(&cell, 1, MPI_LONG, 0, 2, 1, MPI_LONG, MPI_REPLACE, window);
        MPI_Win_flush(0, window);
        MPI_Accumulate(&unowned, 1, MPI_LONG, 0, 1, 1, MPI_LONG, MPI_REPLACE, window);
        MPI_Win_flush(0, window);
    }
    MPI_Get_accumulate(ones, WIDE, MPI_LONG, before, WIDE, MPI_LONG, next_one(), 5000, WIDE, MPI_LONG, MPI_SUM, window);
    MPI_Win_flush_all(window);
    for (int i = 0; i < WIDE; i++) CHECK(before[i] == 0);
    MPI_Win_unlock_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, window);
    if (!rank) CHECK(memory[0] == (long)ROUNDS * ranks && memory[1] == 0 && memory[2] == (long)ROUNDS * ranks);
    for (int i = 0; i < WIDE; i++) CHECK(memory[5000 + i] == 1);
    MPI_Win_unlock(rank, window);
    MPI_Barrier(MPI_COMM_WORLD);
    free(before), free(ones);
}

/* Types and operations other than sums of long. */
static void types(long *memory, MPI_Win window) {
    double *doubles = (double *)memory, given = rank + 0.5;
    int *ints = (int *)(memory + 10), bits = 1 << rank;
    MPI_Win_fence(0, window);
    for (int i = 0; i < 20; i++) memory[i] = 0;
    MPI_Win_fence(0, window);
    MPI_Accumulate(&given, 1, MPI_DOUBLE, 0, 0, 1, MPI_DOUBLE, MPI_SUM, window);
    MPI_Accumulate(&given, 1, MPI_DOUBLE, 0, 1, 1, MPI_DOUBLE, MPI_MAX, window);
    MPI_Accumulate(&bits, 1, MPI_INT, 0, 10, 1, MPI_INT, MPI_BOR, window);
    MPI_Win_fence(0, window);
    if (!rank) CHECK(doubles[0] == ranks * ranks / 2.0 && doubles[1] == ranks - 0.5 && ints[0] == (1 << ranks) - 1);
    MPI_Win_fence(0, window);
}

/* Post, start, complete, wait: only neighbours synchronise. */
static void neighbours(long *memory, MPI_Win window) {
    MPI_Group all, to, from;
    int target = next_one(), origin = one_before();
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_incl(all, 1, &target, &to);
    MPI_Group_incl(all, 1, &origin, &from);
    for (long round = 0; round < 10; round++) {
        long out[50];
        for (int i = 0; i < 50; i++) out[i] = rank * 1000 + round * 50 + i, memory[i] = -1;
        MPI_Win_post(from, 0, window);
        MPI_Win_start(to, 0, window);
        MPI_Put(out, 50, MPI_LONG, target, 0, 50, MPI_LONG, window);
        MPI_Win_complete(window);
        if (round % 2) {
            MPI_Win_wait(window);
        } else {
            int done = 0;
            while (!done) MPI_Win_test(window, &done);
        }
        for (int i = 0; i < 50; i++) CHECK(memory[i] == origin * 1000 + round * 50 + i);
    }
    MPI_Group_free(&from), MPI_Group_free(&to), MPI_Group_free(&all);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Locks: shared ones to read, exclusive ones to write; requests waited for one by one. */
static void locks(long *memory, MPI_Win window) {
    enum { ROUNDS = 8, WIDE = 9000 };
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, window);
    for (int i = 0; i < WIDE; i++) memory[i] = 0;
    MPI_Win_unlock(rank, window);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int round = 0; round < ROUNDS; round++) {
        long cell[2];
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
        MPI_Get(cell, 2, MPI_LONG, 0, 0, 2, MPI_LONG, window);
        MPI_Win_flush(0, window);
        CHECK(cell[1] == 3 * cell[0]);
        cell[0] += 1, cell[1] += 3;
        MPI_Put(cell, 2, MPI_LONG, 0, 0, 2, MPI_LONG, window);
        MPI_Win_unlock(0, window);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    long *out = room(WIDE * sizeof *out), *in = room(WIDE * sizeof *in), total;
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
    MPI_Get(&total, 1, MPI_LONG, 0, 0, 1, MPI_LONG, window);
    MPI_Win_unlock(0, window);
    CHECK(total == (long)ROUNDS * ranks);
    for (int i = 0; i < WIDE; i++) out[i] = rank * 7 + i;
    MPI_Request request;
    MPI_Win_lock_all(MPI_MODE_NOCHECK, window);
    MPI_Rput(out, WIDE, MPI_LONG, next_one(), 10, WIDE, MPI_LONG, window, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    fill(out, WIDE * sizeof *out, 3); /* The origin may reuse its buffer. */
    MPI_Win_flush(next_one(), window);
    MPI_Rget(in, WIDE, MPI_LONG, next_one(), 10, WIDE, MPI_LONG, window, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    for (int i = 0; i < WIDE; i++) CHECK(in[i] == rank * 7 + i);
    MPI_Win_unlock_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    free(in), free(out);
}

/* A window to which memory is attached later, addressed by its virtual address. */
static void dynamic(void) {
    MPI_Win window;
    MPI_Aint own, there;
    MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    for (int round = 0; round < 3; round++) {
        long *memory = room(1000 * sizeof *memory), out[1000], in[1000];
        MPI_Win_attach(window, memory, 1000 * sizeof *memory);
        MPI_Get_address(memory, &own);
        MPI_Sendrecv(&own, 1, MPI_AINT, one_before(), 1, &there, 1, MPI_AINT, next_one(), 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < 1000; i++) out[i] = rank * 5000 + round * 1000 + i;
        MPI_Win_lock_all(0, window);
        MPI_Put(out, 1000, MPI_LONG, next_one(), there, 1000, MPI_LONG, window);
        MPI_Win_flush(next_one(), window);
        MPI_Get(in, 1000, MPI_LONG, next_one(), there, 1000, MPI_LONG, window);
        MPI_Win_flush(next_one(), window);
        MPI_Win_unlock_all(window);
        CHECK(!memcmp(in, out, sizeof in));
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, window);
        for (int i = 0; i < 1000; i++) CHECK(memory[i] == one_before() * 5000 + round * 1000 + i);
        MPI_Win_unlock(rank, window);
        MPI_Win_detach(window, memory);
        MPI_Barrier(MPI_COMM_WORLD);
        free(memory);
    }
    free_window(&window);
}

/* Memory shared by all ranks of a host: stores by the program and operations of the network at once. */
static void shared(void) {
    MPI_Comm host;
    MPI_Win window;
    MPI_Aint size;
    long *own, *theirs, one = 1, got;
    int unit, in_host, place;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_size(host, &in_host);
    MPI_Comm_rank(host, &place);
    MPI_Win_allocate_shared(100 * sizeof *own, sizeof *own, MPI_INFO_NULL, host, &own, &window);
    MPI_Win_lock_all(0, window);
    for (int i = 0; i < 100; i++) own[i] = place * 100 + i;
    MPI_Win_sync(window), MPI_Barrier(host), MPI_Win_sync(window);
    for (int peer = 0; peer < in_host; peer++) {
        MPI_Win_shared_query(window, peer, &size, &unit, &theirs);
        CHECK(size == 100 * sizeof *own && unit == sizeof *own);
        for (int i = 0; i < 100; i++) CHECK(theirs[i] == peer * 100 + i);
    }
    MPI_Barrier(host);
    for (int i = 0; i < 100; i++) {
        MPI_Fetch_and_op(&one, &got, MPI_LONG, 0, 7, MPI_SUM, window);
        MPI_Win_flush(0, window);
    }
    MPI_Win_unlock_all(window);
    MPI_Barrier(host);
    if (!place) CHECK(own[7] == 7 + 100L * in_host);
    MPI_Win_free(&window);
    MPI_Comm_free(&host);
}

/* Calls a function with a window on the program's own memory, and with one on memory that MPI allocated. */
static void each_window(void (*function)(long *memory, MPI_Win window)) {
    MPI_Win window;
    long *memory = room(SLOTS * sizeof *memory);
    MPI_Win_create(memory, SLOTS * sizeof *memory, sizeof *memory, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    function(memory, window);
    free_window(&window);
    free(memory);
    MPI_Win_allocate(SLOTS * sizeof *memory, sizeof *memory, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    function(memory, window);
    free_window(&window);
}

static void put_and_get(long *memory, MPI_Win window) {
    fences(memory, window);
    neighbours(memory, window);
    locks(memory, window);
}

static void accumulate(long *memory, MPI_Win window) {
    atomics(memory, window);
    types(memory, window);
}

void access_to_windows(void) {
    each_window(put_and_get);
    dynamic();
}

void windows(void) {
    each_window(accumulate);
    shared();
}
