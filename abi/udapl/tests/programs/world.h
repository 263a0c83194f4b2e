/* Shared by the programs here: an owner of memory and its peer, each with an IA and an EP, connected to each other.
   Every check ends the program with a message if it fails. */
#include <netinet/in.h>

#include <dat2/udat.h>
#include <dat2/dat_ib_extensions.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LONG 120000000 /* 120 s: only a hang takes that long */
#define DEPTH 64

static void fail(int line, const char *what, const char *is) {
  printf("line %d: %s: %s\n", line, what, is);
  fflush(stdout);
  _exit(1);
}

static const char *name_of(DAT_RETURN code) {
  static __thread char text[120];
  const char *major = "?", *minor = "?";
  dat_strerror(code, &major, &minor);
  snprintf(text, sizeof text, "%#x %s %s", code, major, minor);
  return text;
}

#define CHECK(condition) \
  do { \
    if (!(condition)) fail(__LINE__, #condition, "false"); \
  } while (0)
/* The call succeeds. */
#define OK(call) \
  do { \
    DAT_RETURN code_ = (call); \
    if (code_ != DAT_SUCCESS) fail(__LINE__, #call, name_of(code_)); \
  } while (0)
/* The call fails with this type. */
#define FAILS(type, call) \
  do { \
    DAT_RETURN code_ = (call); \
    if (DAT_GET_TYPE(code_) != (type) || !(code_ & DAT_CLASS_ERROR)) fail(__LINE__, #call " wants " #type, name_of(code_)); \
  } while (0)

struct side {
  DAT_IA_HANDLE ia;
  DAT_PZ_HANDLE pz;
  DAT_EVD_HANDLE async, recv, request, connect, cr;
  DAT_EP_HANDLE ep;
};

/* The peer reads and writes; the owner binds. */
struct world {
  struct side peer, owner;
};

struct memory {
  unsigned char *bytes;
  DAT_COUNT len;
  DAT_LMR_HANDLE lmr;
  DAT_LMR_CONTEXT local;
  DAT_RMR_CONTEXT remote;
};

static DAT_EP_ATTR attributes(DAT_COMPLETION_FLAGS request) {
  DAT_EP_ATTR attr;
  memset(&attr, 0, sizeof attr);
  attr.service_type = DAT_SERVICE_TYPE_RC;
  attr.max_message_size = 1 << 20;
  attr.max_rdma_size = 1 << 20;
  attr.qos = DAT_QOS_BEST_EFFORT;
  attr.request_completion_flags = request;
  attr.max_recv_dtos = DEPTH;
  attr.max_request_dtos = DEPTH;
  attr.max_recv_iov = 4;
  attr.max_request_iov = 4;
  attr.max_rdma_read_in = 4;
  attr.max_rdma_read_out = 4;
  attr.max_rdma_read_iov = 4;
  attr.max_rdma_write_iov = 4;
  return attr;
}

static void create_ep(struct side *side, DAT_COMPLETION_FLAGS request) {
  DAT_EP_ATTR attr = attributes(request);
  OK(dat_ep_create(side->ia, side->pz, side->recv, side->request, side->connect, &attr, &side->ep));
}

/* RKEY_TEST_IA names another IA than that of the loopback interface. */
static void open_side(struct side *side, DAT_COMPLETION_FLAGS request) {
  char *ia = getenv("RKEY_TEST_IA");
  memset(side, 0, sizeof *side);
  side->async = DAT_HANDLE_NULL;
  OK(dat_ia_open(ia ? ia : "rkey-lo", 8, &side->async, &side->ia));
  OK(dat_pz_create(side->ia, &side->pz));
  OK(dat_evd_create(side->ia, 4 * DEPTH, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &side->recv));
  OK(dat_evd_create(side->ia, 4 * DEPTH, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG, &side->request));
  OK(dat_evd_create(side->ia, 16, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &side->connect));
  OK(dat_evd_create(side->ia, 16, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &side->cr));
  create_ep(side, request);
}

/* The next event of an EVD. */
static DAT_EVENT next_event(DAT_EVD_HANDLE evd, int line) {
  DAT_EVENT event;
  DAT_COUNT more;
  memset(&event, 0xee, sizeof event);
  DAT_RETURN code = dat_evd_wait(evd, LONG, 1, &event, &more);
  if (code != DAT_SUCCESS) fail(line, "dat_evd_wait for an event", name_of(code));
  return event;
}

static DAT_EVENT event_of(DAT_EVD_HANDLE evd, DAT_EVENT_NUMBER wanted, int line) {
  DAT_EVENT event = next_event(evd, line);
  if (event.event_number != wanted) {
    char text[80];
    snprintf(text, sizeof text, "%#x instead of %#x", event.event_number, wanted);
    fail(line, "event", text);
  }
  return event;
}
#define EVENT(evd, number) event_of(evd, number, __LINE__)

/* The EVD is empty, and nothing arrives for a while. */
static void nothing_on(DAT_EVD_HANDLE evd, int line) {
  DAT_EVENT event;
  DAT_COUNT more;
  DAT_RETURN code = dat_evd_wait(evd, 50000, 1, &event, &more);
  if (DAT_GET_TYPE(code) != DAT_TIMEOUT_EXPIRED) fail(line, "no event is expected", code ? name_of(code) : "an event came");
}
#define NOTHING(evd) nothing_on(evd, __LINE__)

static DAT_EP_STATE state_of(DAT_EP_HANDLE ep) {
  DAT_EP_STATE state;
  DAT_BOOLEAN recv_idle, request_idle;
  OK(dat_ep_get_status(ep, &state, &recv_idle, &request_idle));
  return state;
}

static DAT_IA_ADDRESS_PTR address_of(struct side *side) {
  DAT_IA_ATTR attr;
  OK(dat_ia_query(side->ia, NULL, DAT_IA_FIELD_IA_ADDRESS_PTR, &attr, 0, NULL));
  return attr.ia_address_ptr;
}

static void connect_both(struct world *world) {
  struct side *peer = &world->peer, *owner = &world->owner;
  DAT_PSP_HANDLE psp;
  DAT_CONN_QUAL qual;
  OK(dat_psp_create_any(owner->ia, &qual, owner->cr, DAT_PSP_CONSUMER_FLAG, &psp));
  OK(dat_ep_connect(peer->ep, address_of(owner), qual, LONG, 0, NULL, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
  DAT_EVENT request = EVENT(owner->cr, DAT_CONNECTION_REQUEST_EVENT);
  OK(dat_cr_accept(request.event_data.cr_arrival_event_data.cr_handle, owner->ep, 0, NULL));
  EVENT(owner->connect, DAT_CONNECTION_EVENT_ESTABLISHED);
  EVENT(peer->connect, DAT_CONNECTION_EVENT_ESTABLISHED);
  CHECK(state_of(owner->ep) == DAT_EP_STATE_CONNECTED && state_of(peer->ep) == DAT_EP_STATE_CONNECTED);
  OK(dat_psp_free(psp));
}

static void open_world(struct world *world, DAT_COMPLETION_FLAGS request) {
  open_side(&world->peer, DAT_COMPLETION_DEFAULT_FLAG);
  open_side(&world->owner, request);
  connect_both(world);
}

static void close_side(struct side *side) {
  OK(dat_ep_free(side->ep));
  OK(dat_evd_free(side->recv));
  OK(dat_evd_free(side->request));
  OK(dat_evd_free(side->connect));
  OK(dat_evd_free(side->cr));
  OK(dat_pz_free(side->pz));
  OK(dat_ia_close(side->ia, DAT_CLOSE_GRACEFUL_FLAG));
}

static void empty(DAT_EVD_HANDLE evd) {
  DAT_EVENT event;
  while (dat_evd_dequeue(evd, &event) == DAT_SUCCESS) {
  }
}

/* Ends a connection that a failure has broken, and makes a new one. */
static void connect_again(struct world *world, int line) {
  struct side *sides[2] = {&world->peer, &world->owner};
  for (int i = 0; i < 2; i++) {
    DAT_EVENT event = next_event(sides[i]->connect, line);
    DAT_EVENT_NUMBER number = event.event_number;
    if (number != DAT_CONNECTION_EVENT_BROKEN && number != DAT_CONNECTION_EVENT_DISCONNECTED) fail(line, "the connection", "not ended");
    CHECK(event.event_data.connect_event_data.ep_handle == sides[i]->ep);
    CHECK(state_of(sides[i]->ep) == DAT_EP_STATE_DISCONNECTED);
  }
  for (int i = 0; i < 2; i++) {
    OK(dat_ep_reset(sides[i]->ep));
    CHECK(state_of(sides[i]->ep) == DAT_EP_STATE_UNCONNECTED);
    empty(sides[i]->recv);
    empty(sides[i]->request);
  }
  connect_both(world);
}

static void remember(struct side *side, struct memory *memory, DAT_COUNT len, DAT_MEM_PRIV_FLAGS priv) {
  DAT_REGION_DESCRIPTION at;
  DAT_VLEN registered;
  DAT_VADDR address;
  memory->len = len;
  memory->bytes = aligned_alloc(4096, (size_t)(len + 4095) / 4096 * 4096);
  memset(memory->bytes, 0, (size_t)len);
  at.for_va = memory->bytes;
  OK(dat_lmr_create(side->ia, DAT_MEM_TYPE_VIRTUAL, at, (DAT_VLEN)len, side->pz, priv, DAT_VA_TYPE_VA, &memory->lmr,
                    &memory->local, &memory->remote, &registered, &address));
  CHECK(registered >= (DAT_VLEN)len && address <= (DAT_VADDR)(uintptr_t)memory->bytes);
}

static void forget(struct memory *memory) {
  OK(dat_lmr_free(memory->lmr));
  free(memory->bytes);
}

static DAT_LMR_TRIPLET part(const struct memory *memory, DAT_COUNT offset, DAT_COUNT len) {
  DAT_LMR_TRIPLET triplet;
  triplet.virtual_address = (DAT_VADDR)(uintptr_t)memory->bytes + (DAT_VADDR)offset;
  triplet.segment_length = (DAT_SEG_LENGTH)len;
  triplet.lmr_context = memory->local;
  return triplet;
}

static DAT_CONTEXT cookie(DAT_UINT64 number) {
  DAT_CONTEXT context;
  context.as_64 = number;
  return context;
}

/* Binds a part of the memory, without waiting. */
static DAT_RETURN bind_part(struct side *side, DAT_RMR_HANDLE rmr, const struct memory *memory, DAT_COUNT offset, DAT_COUNT len,
                            DAT_MEM_PRIV_FLAGS priv, DAT_UINT64 number, DAT_COMPLETION_FLAGS flags, DAT_RMR_CONTEXT *context) {
  DAT_LMR_TRIPLET triplet = part(memory, offset, len);
  return dat_rmr_bind(rmr, memory->lmr, &triplet, priv, DAT_VA_TYPE_VA, side->ep, cookie(number), flags, context);
}

/* The completion of a bind, which must have this status. */
static void bound(struct side *side, DAT_RMR_HANDLE rmr, DAT_UINT64 number, DAT_DTO_COMPLETION_STATUS status, int line) {
  DAT_EVENT event = event_of(side->request, DAT_RMR_BIND_COMPLETION_EVENT, line);
  DAT_RMR_BIND_COMPLETION_EVENT_DATA *data = &event.event_data.rmr_completion_event_data;
  if (data->rmr_handle != rmr) fail(line, "the RMR of a bind", "wrong");
  if (data->user_cookie.as_64 != number) fail(line, "the cookie of a bind", "wrong");
  if (data->status != status) {
    char text[80];
    snprintf(text, sizeof text, "%d instead of %d", data->status, status);
    fail(line, "the status of a bind", text);
  }
}
#define BOUND(side, rmr, number, status) bound(side, rmr, number, status, __LINE__)

/* Binds a part and waits. Returns the new context. */
static DAT_RMR_CONTEXT window(struct side *side, DAT_RMR_HANDLE rmr, const struct memory *memory, DAT_COUNT offset, DAT_COUNT len,
                              DAT_MEM_PRIV_FLAGS priv) {
  DAT_RMR_CONTEXT context = 0;
  OK(bind_part(side, rmr, memory, offset, len, priv, 77, DAT_COMPLETION_DEFAULT_FLAG, &context));
  BOUND(side, rmr, 77, DAT_DTO_SUCCESS);
  return context;
}

static void unbind(struct side *side, DAT_RMR_HANDLE rmr, const struct memory *memory) {
  DAT_RMR_CONTEXT context;
  OK(bind_part(side, rmr, memory, 0, 0, DAT_MEM_PRIV_NONE_FLAG, 78, DAT_COMPLETION_DEFAULT_FLAG, &context));
  BOUND(side, rmr, 78, DAT_DTO_SUCCESS);
}

/* The status of the next DTO on an EVD. */
static DAT_DTO_COMPLETION_STATUS done(DAT_EVD_HANDLE evd, DAT_UINT64 number, int line) {
  DAT_EVENT event = event_of(evd, DAT_DTO_COMPLETION_EVENT, line);
  DAT_DTO_COMPLETION_EVENT_DATA *data = &event.event_data.dto_completion_event_data;
  if (data->user_cookie.as_64 != number) fail(line, "the cookie of a DTO", "wrong");
  return data->status;
}
#define DONE(evd, number, wanted) CHECK(done(evd, number, __LINE__) == (wanted))

enum direction { READ, WRITE };

static DAT_RETURN post_rdma(struct side *side, enum direction direction, const struct memory *local, DAT_COUNT len,
                            DAT_RMR_CONTEXT context, const void *at, DAT_UINT64 number) {
  DAT_LMR_TRIPLET here = part(local, 0, len);
  DAT_RMR_TRIPLET there;
  there.virtual_address = (DAT_VADDR)(uintptr_t)at;
  there.segment_length = (DAT_SEG_LENGTH)len;
  there.rmr_context = context;
  if (direction == READ)
    return dat_ep_post_rdma_read(side->ep, 1, &here, cookie(number), &there, DAT_COMPLETION_DEFAULT_FLAG);
  return dat_ep_post_rdma_write(side->ep, 1, &here, cookie(number), &there, DAT_COMPLETION_DEFAULT_FLAG);
}

/* An access of the peer, and its status. */
static DAT_DTO_COMPLETION_STATUS rdma(struct world *world, enum direction direction, const struct memory *local, DAT_COUNT len,
                                      DAT_RMR_CONTEXT context, const void *at) {
  OK(post_rdma(&world->peer, direction, local, len, context, at, 99));
  return done(world->peer.request, 99, __LINE__);
}

static void allowed_at(struct world *world, enum direction direction, const struct memory *local, DAT_COUNT len,
                       DAT_RMR_CONTEXT context, const void *at, int line) {
  if (rdma(world, direction, local, len, context, at) != DAT_DTO_SUCCESS) fail(line, "an access that must succeed", "refused");
}
#define ALLOWED(...) allowed_at(__VA_ARGS__, __LINE__)

/* The access is refused and breaks the connection; a new one is made. */
static void refused_at(struct world *world, enum direction direction, const struct memory *local, DAT_COUNT len,
                       DAT_RMR_CONTEXT context, const void *at, int line) {
  DAT_DTO_COMPLETION_STATUS status = rdma(world, direction, local, len, context, at);
  if (status != DAT_DTO_ERR_REMOTE_ACCESS) {
    char text[80];
    snprintf(text, sizeof text, "status %d", status);
    fail(line, "an access that must be refused", text);
  }
  connect_again(world, line);
}
#define REFUSED(...) refused_at(__VA_ARGS__, __LINE__)

static DAT_RETURN post_send(struct side *side, const struct memory *memory, DAT_COUNT len, DAT_UINT64 number, DAT_COMPLETION_FLAGS flags) {
  DAT_LMR_TRIPLET here = part(memory, 0, len);
  return dat_ep_post_send(side->ep, 1, &here, cookie(number), flags);
}

static DAT_RETURN post_recv(struct side *side, const struct memory *memory, DAT_COUNT len, DAT_UINT64 number) {
  DAT_LMR_TRIPLET here = part(memory, 0, len);
  return dat_ep_post_recv(side->ep, 1, &here, cookie(number), DAT_COMPLETION_DEFAULT_FLAG);
}

/* A thread that waits for an EVD. */
struct waiter {
  atomic_int thread;
  DAT_EVD_HANDLE evd;
  DAT_TIMEOUT timeout;
  DAT_RETURN code;
  DAT_EVENT event;
};

static void *wait_for_event(void *at) {
  struct waiter *waiter = at;
  DAT_COUNT more;
  waiter->thread = (int)syscall(SYS_gettid);
  waiter->code = dat_evd_wait(waiter->evd, waiter->timeout, 1, &waiter->event, &more);
  return NULL;
}

/* Whether the thread of a waiter sleeps or has ended. */
static int rests(struct waiter *waiter) {
  char path[64], line[512] = "";
  if (!waiter->thread) return 0;
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", waiter->thread);
  FILE *file = fopen(path, "r");
  if (!file) return 1;
  char *state = fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
  fclose(file);
  return !state || !state[1] || state[2] == 'S';
}

/* Waits until the thread waits for the EVD. A thread that waits for a lock also sleeps, but only for a moment. */
static void until_it_waits(struct waiter *waiter) {
  for (int looks = 0; looks < 5; usleep(2000)) looks = rests(waiter) ? looks + 1 : 0;
}

/* Resident memory in bytes. For smaps_rollup, the kernel counts the pages; the figure in status can lag behind. */
static long resident(void) {
  char line[256];
  long kib = 0;
  FILE *file = fopen("/proc/self/smaps_rollup", "r");
  if (!file) file = fopen("/proc/self/status", "r");
  CHECK(file);
  while (fgets(line, sizeof line, file) && sscanf(line, "Rss: %ld", &kib) != 1 && sscanf(line, "VmRSS: %ld", &kib) != 1) {
  }
  fclose(file);
  CHECK(kib > 0);
  return kib * 1024;
}

struct check {
  const char *name;
  void (*run)(void);
};

/* Runs the check that the command line names. */
static int run_check(const struct check *checks, int argc, char **argv) {
  for (; argc == 2 && checks->name; checks++) {
    if (strcmp(checks->name, argv[1]) == 0) {
      checks->run();
      printf("done\n");
      return 0;
    }
  }
  printf("usage: %s CHECK, with the name of a check in this program\n", argv[0]);
  return 2;
}
