/* UCX's registration cache with a registrar that does nothing. For each word on standard input ("hit", "threads" or "miss") prints the
 * nanoseconds of one lookup. */

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <ucm/api/ucm.h>
#include <ucs/memory/rcache.h>

enum { PAGE = 4096, PAGES = 1000, ENTRIES = 1024, ROUNDS = 4000, RUNS = 5, THREADS = 2 };

static ucs_rcache_t *cache;
static char *memory;

static ucs_status_t reg(void *context, ucs_rcache_t *in, void *arg, ucs_rcache_region_t *region, uint16_t flags) {
    (void)context, (void)in, (void)arg, (void)region, (void)flags;
    return UCS_OK;
}

static void dereg(void *context, ucs_rcache_t *in, ucs_rcache_region_t *region) {
    (void)context, (void)in, (void)region;
}

static void dump(void *context, ucs_rcache_t *in, ucs_rcache_region_t *region, char *text, size_t room) {
    (void)context, (void)in, (void)region;
    if (room) *text = 0;
}

static void lookup(size_t page) {
    ucs_rcache_region_t *region;
    if (ucs_rcache_get(cache, memory + page * PAGE, PAGE, PROT_READ | PROT_WRITE, NULL, &region) != UCS_OK) exit(2);
    ucs_rcache_region_put(cache, region);
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1e9 + at.tv_nsec;
}

static double hits(size_t page) {
    double best = 1e12;
    for (int run = 0; run < RUNS; run++) {
        double begun = now();
        for (int i = 0; i < ROUNDS; i++) lookup(page);
        double ns = (now() - begun) / ROUNDS;
        if (ns < best) best = ns;
    }
    return best;
}

struct own {
    pthread_t thread;
    size_t page;
    double ns;
};

static void *one(void *arg) {
    struct own *own = arg;
    own->ns = hits(own->page);
    return NULL;
}

static double threads(void) {
    struct own own[THREADS] = {{.page = 7}, {.page = 800}};
    double most = 0;
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&own[i].thread, NULL, one, &own[i])) exit(2);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(own[i].thread, NULL);
        if (own[i].ns > most) most = own[i].ns;
    }
    return most;
}

static void ended(void *arg) {
    (void)arg;
}

/* Each lookup ends its entry. Version 1.13 never evicts one. */
static double misses(void) {
    double best = 1e12;
    for (int run = 0; run < RUNS; run++) {
        double begun = now();
        for (int i = 0; i < ROUNDS; i++) {
            ucs_rcache_region_t *region;
            if (ucs_rcache_get(cache, memory, PAGE, PROT_READ | PROT_WRITE, NULL, &region) != UCS_OK) exit(2);
            ucs_rcache_region_invalidate(cache, region, ended, NULL);
            ucs_rcache_region_put(cache, region);
        }
        double ns = (now() - begun) / ROUNDS;
        if (ns < best) best = ns;
    }
    return best;
}

int main(void) {
    memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 2;
    memset(memory, 1, PAGES * PAGE);
    ucs_rcache_ops_t ops = {.mem_reg = reg, .mem_dereg = dereg, .dump_region = dump};
    ucs_rcache_params_t params = {
        .region_struct_size = sizeof(ucs_rcache_region_t),
        .alignment = PAGE,
        .max_alignment = PAGE,
        .ucm_events = UCM_EVENT_VM_UNMAPPED,
        .ucm_event_priority = 1000,
        .ops = &ops,
        .flags = UCS_RCACHE_FLAG_NO_PFN_CHECK,
        .max_regions = ENTRIES,
        .max_size = SIZE_MAX,
        .max_unreleased = SIZE_MAX,
    };
    if (ucs_rcache_create(&params, "bench", NULL, &cache) != UCS_OK) return 2;
    char word[16];
    while (scanf("%15s", word) == 1) {
        double ns = 0;
        if (!strcmp(word, "miss")) ns = misses();
        else {
            lookup(7), lookup(800);
            ns = strcmp(word, "hit") ? threads() : hits(7);
        }
        printf("%f\n", ns);
        fflush(stdout);
    }
    ucs_rcache_destroy(cache);
    return 0;
}
