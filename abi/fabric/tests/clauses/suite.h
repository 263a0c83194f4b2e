/* Shared by the checks: the two sides of a transfer, regions prepared as the mode bits require, and verdicts.
 *
 * A check is a function that runs in its own process, once for each mode of registration and API version. It ends
 * by returning (the clauses are met), by `differs`, or by `does_not_apply`. */
#ifndef SUITE_H
#define SUITE_H

#include <errno.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct world;

struct check {
    const char *name;
    /* The clauses that the check proves, by their numbers in docs/spec/clauses.md. */
    const char *clauses;
    /* What the clauses require, in one sentence. */
    const char *what;
    void (*run)(struct world *);
    /* Capabilities that the check needs besides messages, RMA and atomics. */
    uint64_t caps;
    /* The mode bits that the check concerns: one that must be in force, and those that must not. */
    int needs, without;
    /* The API versions that the check concerns; 0 means all from 1.5 on. */
    uint32_t from, below;
    /* The check calls fi_getinfo itself, so no sides are opened for it. */
    bool bare;
    /* The check concerns calls that the manual page forbids and other providers allow: `rkey` follows the page only in
     * strict mode. */
    bool strict;
    /* The check concerns `rkey`'s behaviour outside strict mode. */
    bool lenient;
};

/* A check, collected by the linker: name, clauses, requirement, and further members. */
#define CHECK(name, clauses, what, ...)                                                                   \
    static void name(struct world *);                                                                     \
    static const struct check check_##name __attribute__((section("checks"), used, aligned(8))) = {       \
        #name, clauses, what, name, __VA_ARGS__};                                                         \
    static void name(struct world *w)

/* One side: a program with one endpoint. */
struct side {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_cq *cq;
    struct fid_av *av;
    struct fid_ep *ep;
    /* The other side. */
    fi_addr_t peer;
};

struct world {
    const struct check *check;
    const char *provider;
    uint32_t api;
    /* `here` initiates transfers, `there` has the regions that they name. */
    struct side here, there;
};

/* Registered memory: its bytes, and how a peer names it. */
struct area {
    unsigned char *bytes;
    size_t length;
    struct fid_mr *mr;
    uint64_t base, key;
};

/* struct fi_mr_attr of versions from 2.0 on: the headers that this is compiled with may lack the last members, but
 * later libraries read all of them. */
struct attributes {
    struct fi_mr_attr known;
    void *hmem_data;
    size_t page_size;
    const struct fid_mr *base_mr;
    size_t sub_mr_cnt;
};
_Static_assert(sizeof(struct fi_mr_attr) == 80, "the structure of 1.17: what follows it is in struct attributes");

#define PAGE ((size_t)4096)
/* Every bit that a program may offer from API version 1.5 on. */
#define ALL_BITS                                                                                              \
    (FI_MR_LOCAL | FI_MR_RAW | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_MMU_NOTIFY |        \
     FI_MR_RMA_EVENT | FI_MR_ENDPOINT | FI_MR_HMEM | FI_MR_COLLECTIVE)
#define BASIC_BITS (FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY)
#define CHOSEN_KEYS (FI_MR_PROV_KEY | FI_MR_RAW)
#define REMOTE (FI_REMOTE_READ | FI_REMOTE_WRITE)
#define EVERY_RIGHT (FI_SEND | FI_RECV | FI_READ | FI_WRITE | REMOTE)
/* No completion arrived in time. */
#define NOTHING_CAME 100000

/* verdict.c: how a check fails, and how codes are printed. */
_Noreturn void differs(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void does_not_apply(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *code_name(long code);
/* The call must return this code. */
void wants(const char *call, long came, long wanted);
/* The call must return an error. */
void wants_refusal(const char *call, long came);
/* The transfer must fail: in the call, or in its completion. */
void wants_failure(const char *transfer, long came);
/* The condition must hold. */
void wants_that(bool so, const char *what);
/* The pattern that writes carry must arrive here. */
void wants_pattern(struct world *w, const void *at, size_t length, const char *what);
/* The child calls this: verdicts are written to this descriptor. */
void verdicts_go_to(int descriptor);

/* sides.c */
struct fi_info *hints(struct world *w, int mr_mode);
/* The provider's information for these hints, or the error of fi_getinfo; frees the hints. */
int ask(struct world *w, uint32_t api, struct fi_info *hints, struct fi_info **info);
void open_world(struct world *w);
void open_side(struct world *w, struct side *side);
/* Another endpoint in the domain of the side, with its own queue and address vector. */
void open_endpoint(struct side *side);
void close_side(struct side *side);
void close_endpoint(struct side *side);
fi_addr_t name_of(struct side *side, struct fid_ep *other);
/* Whether `rkey` is in strict mode (FI_RKEY_STRICT=1). */
bool strict_mode(void);
/* The mode bits in force. */
int mode(const struct world *w);

/* regions.c */
unsigned char *pages(size_t count);
/* Registration alone, without further steps. */
int reg(struct side *side, void *at, size_t length, uint64_t access, uint64_t key, uint64_t flags, struct fid_mr **mr);
/* The attributes of these buffers for fi_mr_regattr, with the next key. */
struct attributes attributes(const struct iovec *parts, size_t count, uint64_t access);
int regattr(struct side *side, const struct attributes *attr, uint64_t flags, struct fid_mr **mr);
/* The steps between registration and use; sets how the peer names the region. */
void make_usable(struct world *w, struct side *side, struct area *area);
void name_area(struct world *w, struct side *side, struct area *area);
/* A page of `there` with these rights and the pattern in it, ready for use. */
struct area share(struct world *w, uint64_t access);
/* Like `share`, at this address, where memory exists already or not yet. */
struct area share_at(struct world *w, unsigned char *at, uint64_t access);
void close_area(struct area *area);
/* Ends a check of regions that are closed before their endpoints, where that is not allowed. */
void needs_closable_regions(struct world *w);
/* Registers memory of this side for its own transfers. */
void *describe(struct world *w, struct side *side, void *at, size_t length, uint64_t access);
/* The descriptor that a transfer of this side needs for its own memory; NULL where none is required. */
void *local(struct world *w, struct side *side, void *at, size_t length, uint64_t access);
/* A key that no region of the test has requested yet. */
uint64_t next_key(void);

/* transfers.c */
enum operation { WRITE, READ, ATOMIC, FETCH, COMPARE, OPERATIONS };
extern const char *const operation_names[OPERATIONS];
/* The rights that an operation needs at the target. */
uint64_t rights_for(enum operation operation);
/* Transfers of `here`; they return 0, the positive error of the completion, or the negative code of the call. */
int remote(struct world *w, enum operation operation, uint64_t address, size_t length, uint64_t key);
/* The bytes that the last `remote` read or fetched. */
const void *last_result(void);
int access_area(struct world *w, enum operation operation, const struct area *area, uint64_t offset, size_t length);
int write_from(struct world *w, const void *from, size_t length, void *desc, const struct area *area);
/* Starts a write with completion data, without waiting. */
int write_with_data(struct world *w, const void *from, size_t length, void *desc, uint64_t data, const struct area *area);
int read_into(struct world *w, void *to, size_t length, void *desc, const struct area *area);
int completion(struct world *w, struct side *side, struct fi_cq_data_entry *entry);
/* One message from `here` to `there`, with separate descriptors, tagged or not. */
int message(struct world *w, const void *from, void *from_desc, void *to, void *to_desc, size_t length, bool tagged);
/* Checks that messages still pass in both directions. */
void endpoints_work(struct world *w);
/* Polls the queues of both sides, so that their transfers make progress. */
void progress(struct world *w);
/* Waits for an event while making progress; returns false if it does not happen. */
bool comes(struct world *w, bool (*so)(void *), void *of);

#endif
