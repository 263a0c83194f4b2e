/* Common to all fake runtimes: "device" memory that traps when the processor touches it by its address. Each byte has a
 * second address, which only the fake uses. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum place { DEVICE = 1, MANAGED = 2, HOST = 3 };
enum { ARENA = 64 << 20, ALLOCATIONS = 256, PAGE = 4096 };

struct allocation {
    uint64_t start, len, id;
    enum place place;
    int device;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *device, *shadow;
static struct allocation allocations[ALLOCATIONS];
static uint64_t ids, copies, fail_in, started;

static void set_up(void) {
    if (device) return;
    int fd = memfd_create("device", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, ARENA)) abort();
    device = mmap(NULL, ARENA, PROT_NONE, MAP_SHARED, fd, 0);
    shadow = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (device == MAP_FAILED || shadow == MAP_FAILED) abort();
    close(fd);
}

static int in_arena(uint64_t at) { return at - (uint64_t)device < ARENA; }

/* The allocation with this address, if the fake has one. */
static struct allocation *find(uint64_t at) {
    for (int i = 0; i < ALLOCATIONS; i++)
        if (allocations[i].len && at - allocations[i].start < allocations[i].len) return &allocations[i];
    return NULL;
}

/* The lowest free address, so that freed addresses are reused at once. */
uint64_t fake_alloc(int place, int number, uint64_t len) {
    pthread_mutex_lock(&lock);
    set_up();
    uint64_t at = 0;
    struct allocation *slot = NULL;
    for (int i = 0; i < ALLOCATIONS && !slot; i++)
        if (!allocations[i].len) slot = &allocations[i];
    if (slot && place == HOST) {
        at = (uint64_t)aligned_alloc(PAGE, (len + PAGE - 1) / PAGE * PAGE);
    } else if (slot) {
        uint64_t base = (uint64_t)device;
        for (at = base; at + len <= base + ARENA; at += PAGE) {
            struct allocation *met = NULL;
            for (uint64_t page = at; page < at + len && !met; page += PAGE) met = find(page);
            if (!met) break;
        }
        if (at + len > base + ARENA) at = 0;
    }
    if (at) *slot = (struct allocation){at, len, ++ids, place, number};
    started = 1;
    pthread_mutex_unlock(&lock);
    return at;
}

static void went(uint64_t at);

int fake_free(uint64_t at) {
    pthread_mutex_lock(&lock);
    struct allocation *it = find(at);
    int known = it && it->start == at;
    if (known && it->place == HOST) free((void *)at);
    if (known) it->len = 0;
    pthread_mutex_unlock(&lock);
    if (known) went(at);
    return known ? 0 : -1;
}

/* Reads or writes device memory by its second address. */
void fake_peek(uint64_t at, void *into, uint64_t len) {
    memcpy(into, in_arena(at) ? shadow + (at - (uint64_t)device) : (void *)at, len);
}

void fake_poke(uint64_t at, const void *from, uint64_t len) {
    memcpy(in_arena(at) ? shadow + (at - (uint64_t)device) : (void *)at, from, len);
}

/* How many copies were requested. */
uint64_t fake_copies(void) { return __atomic_load_n(&copies, __ATOMIC_SEQ_CST); }

/* Makes the n-th copy from now on fail, and all later ones; 0 turns this off. */
void fake_fail(uint64_t n) {
    pthread_mutex_lock(&lock);
    fail_in = n;
    pthread_mutex_unlock(&lock);
}

/* Copies by the second addresses; fails for bytes outside all allocations, and when a test has requested it. */
static int copy(uint64_t dst, uint64_t src, uint64_t len) {
    pthread_mutex_lock(&lock);
    copies++;
    int failed = 0;
    if (fail_in && --fail_in == 0) {
        fail_in = 1;
        failed = 1;
    }
    for (int side = 0; side < 2 && !failed; side++) {
        uint64_t at = side ? src : dst;
        struct allocation *it = find(at);
        if (it ? at + len > it->start + it->len : in_arena(at)) failed = 1;
    }
    if (!failed) {
        char *to = in_arena(dst) ? shadow + (dst - (uint64_t)device) : (char *)dst;
        char *from = in_arena(src) ? shadow + (src - (uint64_t)device) : (char *)src;
        memcpy(to, from, len);
    }
    pthread_mutex_unlock(&lock);
    return failed;
}
