/* Helpers of all parts: byte patterns, and checks that report rank and line. */
#ifndef CHECK_H
#define CHECK_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern int rank, ranks;

/* Aborts all ranks, because the received data differs from the data sent. */
#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "rank %d, %s:%d: check failed: %s\n", rank, __FILE__, __LINE__, #condition); \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                      \
        }                                                                                      \
    } while (0)

/* The byte at an index of the pattern for `seed`. */
static inline unsigned char pattern(unsigned seed, size_t place) {
    return (unsigned char)(seed * 31 + place * 7 + (place >> 8) * 13 + (place >> 16));
}

static inline void fill(void *to, size_t length, unsigned seed) {
    unsigned char *bytes = to;
    for (size_t i = 0; i < length; i++) bytes[i] = pattern(seed, i);
}

static inline int holds(const void *from, size_t length, unsigned seed) {
    const unsigned char *bytes = from;
    for (size_t i = 0; i < length; i++)
        if (bytes[i] != pattern(seed, i)) return 0;
    return 1;
}

/* Allocates memory, filled with 0xEE. */
static inline void *room(size_t length) {
    void *memory = malloc(length + 1);
    CHECK(memory);
    memset(memory, 0xEE, length + 1);
    return memory;
}

void messages(void);
void matched(void);
void truncation(void);
void collectives(void);
void access_to_windows(void);
void windows(void);

#endif
