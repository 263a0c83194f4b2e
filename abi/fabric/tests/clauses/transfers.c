/* Transfers between the two sides. Each call waits until its transfer has completed. */

#include "suite.h"
#include <time.h>

/* The time limit for events that must happen. */
#define PATIENCE_S 20

const char *const operation_names[OPERATIONS] = {"write", "read", "atomic", "fetching atomic", "comparing atomic"};

uint64_t rights_for(enum operation operation) {
    switch (operation) {
    case READ: return FI_REMOTE_READ;
    case WRITE:
    case ATOMIC: return FI_REMOTE_WRITE;
    default: return REMOTE;
    }
}

void progress(struct world *w) {
    fi_cq_read(w->here.cq, NULL, 0);
    fi_cq_read(w->there.cq, NULL, 0);
}

static bool late(struct timespec since) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec - since.tv_sec > PATIENCE_S;
}

/* Pauses between two polls: yields at first, and later sleeps. */
static void pause_after(unsigned looks) {
    struct timespec moment = {.tv_nsec = looks < 200 ? 0 : 500000};
    nanosleep(&moment, NULL);
}

bool comes(struct world *w, bool (*so)(void *), void *of) {
    struct timespec since;
    clock_gettime(CLOCK_MONOTONIC, &since);
    for (unsigned looks = 0; !so(of); looks++) {
        progress(w);
        if (late(since)) return false;
        pause_after(looks);
    }
    return true;
}

struct place {
    const volatile unsigned char *bytes;
    size_t length;
};

static bool has_pattern(void *of) {
    struct place *place = of;
    for (size_t i = 0; i < place->length; i++)
        if (place->bytes[i] != 0x5A) return false;
    return true;
}

void wants_pattern(struct world *w, const void *at, size_t length, const char *what) {
    struct place place = {at, length};
    wants_that(comes(w, has_pattern, &place), what);
}

struct look {
    struct fid_cq *cq;
    struct fi_cq_data_entry *entry;
    int error;
};

static bool completed(void *of) {
    struct look *look = of;
    ssize_t read = fi_cq_read(look->cq, look->entry, 1);
    if (read == -FI_EAGAIN) return false;
    if (read == -FI_EAVAIL) {
        struct fi_cq_err_entry error = {0};
        if (fi_cq_readerr(look->cq, &error, 0) != 1) return false;
        look->error = error.err ? error.err : -FI_EOTHER;
        return true;
    }
    look->error = read == 1 ? 0 : (int)read;
    return true;
}

int completion(struct world *w, struct side *side, struct fi_cq_data_entry *entry) {
    struct look look = {.cq = side->cq, .entry = entry};
    return comes(w, completed, &look) ? look.error : NOTHING_CAME;
}

/* Repeats a call while it returns -FI_EAGAIN. */
#define AGAIN(w, code, call)                                                                                  \
    do {                                                                                                      \
        struct timespec since;                                                                                \
        clock_gettime(CLOCK_MONOTONIC, &since);                                                               \
        for (unsigned looks = 0; (code = (int)(call)) == -FI_EAGAIN; looks++) {                               \
            progress(w);                                                                                      \
            if (late(since)) return NOTHING_CAME;                                                             \
            pause_after(looks);                                                                               \
        }                                                                                                     \
    } while (0)

static int completed_after(struct world *w, int code) {
    struct fi_cq_data_entry entry;
    return code ? code : completion(w, &w->here, &entry);
}

int write_from(struct world *w, const void *from, size_t length, void *desc, const struct area *area) {
    int code;
    struct side *here = &w->here;
    AGAIN(w, code, fi_write(here->ep, from, length, desc, here->peer, area->base, area->key, NULL));
    return completed_after(w, code);
}

int write_with_data(struct world *w, const void *from, size_t length, void *desc, uint64_t data, const struct area *area) {
    int code;
    struct side *here = &w->here;
    AGAIN(w, code, fi_writedata(here->ep, from, length, desc, data, here->peer, area->base, area->key, NULL));
    return code;
}

int read_into(struct world *w, void *to, size_t length, void *desc, const struct area *area) {
    int code;
    struct side *here = &w->here;
    AGAIN(w, code, fi_read(here->ep, to, length, desc, here->peer, area->base, area->key, NULL));
    return completed_after(w, code);
}

/* Operands, comparands and results: a page of memory of `here` each, registered if the mode requires it. */
static struct {
    unsigned char *bytes;
    void *desc;
} buffers[3];

static void open_buffers(struct world *w) {
    for (int i = 0; i < 3 && !buffers[i].bytes; i++) {
        buffers[i].bytes = pages(1);
        buffers[i].desc = local(w, &w->here, buffers[i].bytes, PAGE, FI_READ | FI_WRITE);
    }
    memset(buffers[0].bytes, 0x5A, PAGE);
    memset(buffers[1].bytes, 0xEE, PAGE);
    memset(buffers[2].bytes, 0xEE, PAGE);
}

const void *last_result(void) { return buffers[2].bytes; }

int remote(struct world *w, enum operation operation, uint64_t address, size_t length, uint64_t key) {
    open_buffers(w);
    struct fid_ep *ep = w->here.ep;
    fi_addr_t peer = w->here.peer;
    void *operand = buffers[0].bytes, *comparand = buffers[1].bytes, *result = buffers[2].bytes;
    void **desc = (void *[]){buffers[0].desc, buffers[1].desc, buffers[2].desc};
    struct area target = {.base = address, .key = key};
    int code;
    switch (operation) {
    case WRITE: return write_from(w, operand, length, desc[0], &target);
    case READ: return read_into(w, result, length, desc[2], &target);
    case ATOMIC:
        AGAIN(w, code, fi_atomic(ep, operand, length / 8, desc[0], peer, address, key, FI_UINT64, FI_ATOMIC_WRITE, NULL));
        break;
    case FETCH:
        AGAIN(w, code, fi_fetch_atomic(ep, operand, length / 8, desc[0], result, desc[2], peer, address, key, FI_UINT64,
                                       FI_ATOMIC_WRITE, NULL));
        break;
    default:
        AGAIN(w, code, fi_compare_atomic(ep, operand, length / 8, desc[0], comparand, desc[1], result, desc[2], peer,
                                         address, key, FI_UINT64, FI_CSWAP, NULL));
    }
    return completed_after(w, code);
}

int access_area(struct world *w, enum operation operation, const struct area *area, uint64_t offset, size_t length) {
    return remote(w, operation, area->base + offset, length, area->key);
}

int message(struct world *w, const void *from, void *from_desc, void *to, void *to_desc, size_t length, bool tagged) {
    struct side *here = &w->here, *there = &w->there;
    struct fi_cq_data_entry entry;
    int code;
    if (tagged)
        AGAIN(w, code, fi_trecv(there->ep, to, length, to_desc, FI_ADDR_UNSPEC, 7, 0, NULL));
    else
        AGAIN(w, code, fi_recv(there->ep, to, length, to_desc, FI_ADDR_UNSPEC, NULL));
    if (code) return code;
    if (tagged)
        AGAIN(w, code, fi_tsend(here->ep, from, length, from_desc, here->peer, 7, NULL));
    else
        AGAIN(w, code, fi_send(here->ep, from, length, from_desc, here->peer, NULL));
    code = completed_after(w, code);
    return code ? code : completion(w, there, &entry);
}

void endpoints_work(struct world *w) {
    unsigned char *sent = pages(1), *received = pages(1);
    memset(sent, 0x5A, 64);
    void *from = local(w, &w->here, sent, PAGE, FI_SEND), *to = local(w, &w->there, received, PAGE, FI_RECV);
    wants("a message to the target afterwards", message(w, sent, from, received, to, 64, false), 0);
    wants_pattern(w, received, 64, "the message has its bytes");
    struct area area = share(w, REMOTE);
    wants("a write to another region afterwards", access_area(w, WRITE, &area, 0, 8), 0);
}
