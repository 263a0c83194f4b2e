/* Messages between two ranks: every length at which the protocol changes, every kind of send and receive. */

#include "check.h"

static const size_t LENGTHS[] = {0,    1,     7,     64,    200,    1000,    4095,    4096,   4097,
                                 8191, 8192,  8193,  16384, 16385,  65536,   100001,  1 << 20, (5 << 20) + 3};
#define KINDS (sizeof LENGTHS / sizeof *LENGTHS)

/* Each rank sends to every rank, including itself, with all requests open at once. */
static void all_to_all(void) {
    for (size_t kind = 0; kind < KINDS; kind++) {
        size_t length = LENGTHS[kind];
        unsigned char *in = room(length * ranks), *out = room(length * ranks);
        MPI_Request *requests = room(2 * ranks * sizeof *requests);
        for (int peer = 0; peer < ranks; peer++) {
            fill(out + peer * length, length, rank * 16 + peer + kind);
            MPI_Irecv(in + peer * length, length, MPI_BYTE, peer, kind, MPI_COMM_WORLD, &requests[peer]);
        }
        for (int peer = 0; peer < ranks; peer++)
            MPI_Isend(out + peer * length, length, MPI_BYTE, peer, kind, MPI_COMM_WORLD, &requests[ranks + peer]);
        MPI_Waitall(2 * ranks, requests, MPI_STATUSES_IGNORE);
        for (int peer = 0; peer < ranks; peer++) CHECK(holds(in + peer * length, length, peer * 16 + rank + kind));
        free(requests), free(out), free(in);
    }
}

/* The receiver is late and probes: any source, any tag. Probes may find synchronous sends; matched probes do not,
 * because Open MPI 4 then never acknowledges them, with any provider. */
static void unexpected(int matched) {
    if (rank) {
        for (size_t kind = 0; kind < KINDS; kind++) {
            unsigned char *out = room(LENGTHS[kind]);
            fill(out, LENGTHS[kind], rank + kind);
            int tag = (int)kind * 10 + rank;
            if (kind % 3 == 0 && !matched) MPI_Ssend(out, LENGTHS[kind], MPI_BYTE, 0, tag, MPI_COMM_WORLD);
            else MPI_Send(out, LENGTHS[kind], MPI_BYTE, 0, tag, MPI_COMM_WORLD);
            free(out);
        }
        return;
    }
    int next[64] = {0};
    for (size_t i = 0; i < KINDS * (ranks - 1); i++) {
        MPI_Status status, late;
        MPI_Message message;
        int length, arrived;
        if (matched) MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &message, &status);
        else MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &length);
        int from = status.MPI_SOURCE, kind = next[from]++;
        /* Messages from one sender do not overtake each other. */
        CHECK(status.MPI_TAG == kind * 10 + from && (size_t)length == LENGTHS[kind]);
        unsigned char *in = room(length + 100);
        if (matched) MPI_Mrecv(in, length + 100, MPI_BYTE, &message, &late);
        else MPI_Recv(in, length + 100, MPI_BYTE, from, MPI_ANY_TAG, MPI_COMM_WORLD, &late);
        MPI_Get_count(&late, MPI_BYTE, &arrived);
        CHECK(arrived == length && late.MPI_TAG == status.MPI_TAG && holds(in, length, from + kind));
        CHECK(in[length] == 0xEE);
        free(in);
    }
    int flag;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
    CHECK(!flag);
}

/* Persistent requests of every mode. */
static void persistent(void) {
    enum { ROUNDS = 20, LENGTH = 20000 };
    int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    unsigned char *in = room(3 * LENGTH), *out = room(3 * LENGTH);
    MPI_Request requests[6];
    const int lengths[3] = {64, 8000, LENGTH};
    for (int i = 0; i < 3; i++) MPI_Recv_init(in + i * LENGTH, lengths[i], MPI_BYTE, from, i, MPI_COMM_WORLD, &requests[i]);
    MPI_Send_init(out, lengths[0], MPI_BYTE, to, 0, MPI_COMM_WORLD, &requests[3]);
    MPI_Ssend_init(out + LENGTH, lengths[1], MPI_BYTE, to, 1, MPI_COMM_WORLD, &requests[4]);
    MPI_Rsend_init(out + 2 * LENGTH, lengths[2], MPI_BYTE, to, 2, MPI_COMM_WORLD, &requests[5]);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 3; i++) fill(out + i * LENGTH, lengths[i], rank + round * 3 + i);
        MPI_Startall(3, requests);
        MPI_Barrier(MPI_COMM_WORLD); /* A ready send requires the receive to be posted. */
        MPI_Startall(3, requests + 3);
        MPI_Waitall(6, requests, MPI_STATUSES_IGNORE);
        for (int i = 0; i < 3; i++) CHECK(holds(in + i * LENGTH, lengths[i], from + round * 3 + i));
    }
    for (int i = 0; i < 6; i++) MPI_Request_free(&requests[i]);
    free(out), free(in);
}

/* A canceled receive takes no message, and the next receive gets the next message. */
static void cancel(void) {
    int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks, cancelled;
    unsigned char wrong[16], in[16], out[16];
    memset(wrong, 0xEE, sizeof wrong);
    MPI_Request request;
    MPI_Status status;
    MPI_Irecv(wrong, sizeof wrong, MPI_BYTE, from, 77, MPI_COMM_WORLD, &request);
    MPI_Cancel(&request);
    MPI_Wait(&request, &status);
    MPI_Test_cancelled(&status, &cancelled);
    CHECK(cancelled);
    MPI_Barrier(MPI_COMM_WORLD);
    fill(out, sizeof out, rank);
    MPI_Sendrecv(out, sizeof out, MPI_BYTE, to, 77, in, sizeof in, MPI_BYTE, from, 77, MPI_COMM_WORLD, &status);
    CHECK(holds(in, sizeof in, from) && wrong[0] == 0xEE);
}

/* Many small messages and some large ones at once, in order: more than any queue holds. */
static void flood(void) {
    enum { COUNT = 3000, LARGE = 50000 };
    int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    MPI_Request *requests = room(2 * COUNT * sizeof *requests);
    int *out = room(COUNT * sizeof *out), *in = room(COUNT * sizeof *in);
    unsigned char *large = room(LARGE), *arrived = room(LARGE);
    fill(large, LARGE, rank);
    for (int i = 0; i < COUNT; i++) {
        out[i] = rank * COUNT + i;
        MPI_Isend(&out[i], 1, MPI_INT, to, 5, MPI_COMM_WORLD, &requests[i]);
    }
    MPI_Request request;
    MPI_Isend(large, LARGE, MPI_BYTE, to, 6, MPI_COMM_WORLD, &request);
    MPI_Recv(arrived, LARGE, MPI_BYTE, from, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int i = 0; i < COUNT; i++) MPI_Irecv(&in[i], 1, MPI_INT, from, 5, MPI_COMM_WORLD, &requests[COUNT + i]);
    MPI_Waitall(2 * COUNT, requests, MPI_STATUSES_IGNORE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    for (int i = 0; i < COUNT; i++) CHECK(in[i] == from * COUNT + i);
    CHECK(holds(arrived, LARGE, from));
    free(arrived), free(large), free(in), free(out), free(requests);
}

/* Data with gaps, on both sides. */
static void layouts(void) {
    enum { ROWS = 300, COLUMNS = 40 };
    int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    static int out[ROWS][COLUMNS], in[ROWS][COLUMNS];
    memset(in, 0, sizeof in);
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < COLUMNS; column++) out[row][column] = rank * 1000000 + row * 100 + column;
    MPI_Datatype column;
    MPI_Type_vector(ROWS, 3, COLUMNS, MPI_INT, &column);
    MPI_Type_commit(&column);
    MPI_Sendrecv(&out[0][1], 1, column, to, 8, &in[0][5], 1, column, from, 8, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Type_free(&column);
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < COLUMNS; i++)
            CHECK(in[row][i] == (i >= 5 && i < 8 ? from * 1000000 + row * 100 + i - 4 : 0));
}

/* A message longer than its receive: the part that fits arrives, and the receiver learns that more was cut off. */
void truncation(void) {
    int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (size_t length = 64; length <= 1 << 16; length <<= 5) {
        unsigned char *long_one = room(length), *short_one = room(length);
        MPI_Request request;
        MPI_Status status;
        int class;
        fill(long_one, length, rank);
        MPI_Irecv(short_one, length / 2, MPI_BYTE, from, 9, MPI_COMM_WORLD, &request);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Send(long_one, length, MPI_BYTE, to, 9, MPI_COMM_WORLD);
        MPI_Error_class(MPI_Wait(&request, &status), &class);
        CHECK(class == MPI_ERR_TRUNCATE && short_one[length / 2] == 0xEE);
        free(short_one), free(long_one);
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

/* Messages that are taken out of the queue before a receive is posted for them (matched probes). */
void matched(void) { unexpected(1); }

void messages(void) {
    all_to_all();
    MPI_Barrier(MPI_COMM_WORLD);
    unexpected(0);
    MPI_Barrier(MPI_COMM_WORLD);
    persistent();
    cancel();
    flood();
    layouts();
}
