/* dat_rmr_bind does what its manual page says. */
#include "world.h"

#define LOCAL (DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG)
#define R DAT_MEM_PRIV_REMOTE_READ_FLAG
#define W DAT_MEM_PRIV_REMOTE_WRITE_FLAG
#define DEFAULT DAT_COMPLETION_DEFAULT_FLAG

static struct world world;
static struct side *const peer = &world.peer, *const owner = &world.owner;
/* The owner's memory, without remote rights, and the peer's. */
static struct memory memory, buffer;
static DAT_RMR_HANDLE rmr;

static void begin_with(DAT_COMPLETION_FLAGS request) {
  open_world(&world, request);
  remember(owner, &memory, 4096, LOCAL);
  remember(peer, &buffer, 4096, LOCAL);
  memset(buffer.bytes, 0x5a, 4096);
  OK(dat_rmr_create(owner->pz, &rmr));
}

static void begin(void) { begin_with(DEFAULT); }

static void a_bind_covers_only_its_part(void) {
  begin();
  DAT_RMR_CONTEXT context = window(owner, rmr, &memory, 128, 64, R | W);
  ALLOWED(&world, WRITE, &buffer, 64, context, memory.bytes + 128);
  for (int i = 0; i < 4096; i++) CHECK(memory.bytes[i] == (i >= 128 && i < 192 ? 0x5a : 0));
  ALLOWED(&world, READ, &buffer, 64, context, memory.bytes + 128);
  REFUSED(&world, WRITE, &buffer, 64, context, memory.bytes + 127);
  REFUSED(&world, WRITE, &buffer, 64, context, memory.bytes + 129);
  REFUSED(&world, WRITE, &buffer, 65, context, memory.bytes + 128);
  REFUSED(&world, READ, &buffer, 1, context, memory.bytes + 192);
  REFUSED(&world, READ, &buffer, 1, context, memory.bytes + 127);
  for (int i = 0; i < 4096; i++) CHECK(memory.bytes[i] == (i >= 128 && i < 192 ? 0x5a : 0));
  ALLOWED(&world, WRITE, &buffer, 64, context, memory.bytes + 128);
}

static void privileges_limit_peers(void) {
  CHECK(DAT_MEM_PRIV_NONE_FLAG == 0 && DAT_MEM_PRIV_ALL_FLAG == 0x33 && R == 0x02 && W == 0x20);
  begin();
  for (int i = 0; i < 6; i++) {
    static const DAT_MEM_PRIV_FLAGS all[] = {DAT_MEM_PRIV_NONE_FLAG, R, W, R | W, DAT_MEM_PRIV_ALL_FLAG, LOCAL};
    DAT_RMR_CONTEXT context = window(owner, rmr, &memory, 0, 64, all[i]);
    if (all[i] & R) ALLOWED(&world, READ, &buffer, 64, context, memory.bytes);
    else REFUSED(&world, READ, &buffer, 64, context, memory.bytes);
    memset(memory.bytes, 0, 64);
    if (all[i] & W) ALLOWED(&world, WRITE, &buffer, 64, context, memory.bytes);
    else REFUSED(&world, WRITE, &buffer, 64, context, memory.bytes);
    memset(buffer.bytes, 0x5a, 64);
  }
}

static void a_bind_completes_with_its_cookie(void) {
  begin();
  static const DAT_UINT64 cookies[] = {0, ~0ull, 0x0123456789abcdefull, 5, 5};
  DAT_RMR_CONTEXT context;
  for (int i = 0; i < 5; i++) OK(bind_part(owner, rmr, &memory, 0, 64, R, cookies[i], DEFAULT, &context));
  for (int i = 0; i < 5; i++) BOUND(owner, rmr, cookies[i], DAT_DTO_SUCCESS);
  NOTHING(owner->request);
  NOTHING(owner->recv);
  NOTHING(owner->connect);
  /* Completions arrive in the order of posting, with those of sends and RDMA, on the request EVD. */
  struct memory theirs;
  remember(peer, &theirs, 4096, LOCAL | R | W);
  CHECK(theirs.remote != 0);
  OK(post_recv(peer, &buffer, 64, 1));
  OK(post_send(owner, &memory, 64, 11, DEFAULT));
  OK(bind_part(owner, rmr, &memory, 0, 64, R, 12, DEFAULT, &context));
  OK(post_rdma(owner, WRITE, &memory, 64, theirs.remote, theirs.bytes, 13));
  OK(bind_part(owner, rmr, &memory, 64, 64, R, 14, DEFAULT, &context));
  DONE(owner->request, 11, DAT_DTO_SUCCESS);
  BOUND(owner, rmr, 12, DAT_DTO_SUCCESS);
  DONE(owner->request, 13, DAT_DTO_SUCCESS);
  BOUND(owner, rmr, 14, DAT_DTO_SUCCESS);
  DONE(peer->recv, 1, DAT_DTO_SUCCESS);
}

static void a_suppressed_bind_reports_only_failure(void) {
  begin();
  DAT_RMR_CONTEXT context;
  OK(bind_part(owner, rmr, &memory, 0, 64, W, 1, DAT_COMPLETION_SUPPRESS_FLAG, &context));
  NOTHING(owner->request);
  ALLOWED(&world, WRITE, &buffer, 64, context, memory.bytes);
  OK(dat_ep_disconnect(owner->ep, DAT_CLOSE_ABRUPT_FLAG));
  EVENT(owner->connect, DAT_CONNECTION_EVENT_DISCONNECTED);
  OK(bind_part(owner, rmr, &memory, 0, 64, W, 2, DAT_COMPLETION_SUPPRESS_FLAG, &context));
  BOUND(owner, rmr, 2, DAT_DTO_ERR_FLUSHED);
}

static void a_bind_wakes_the_waiting_thread(void) {
  begin();
  struct waiter waiter = {0, owner->request, DAT_TIMEOUT_INFINITE, 0, {0}};
  pthread_t thread;
  pthread_create(&thread, NULL, wait_for_event, &waiter);
  until_it_waits(&waiter);
  DAT_RMR_CONTEXT context;
  CHECK(DAT_COMPLETION_DEFAULT_FLAG == 0);
  OK(bind_part(owner, rmr, &memory, 0, 64, R, 1, DEFAULT, &context));
  pthread_join(thread, NULL);
  CHECK(waiter.code == DAT_SUCCESS && waiter.event.event_number == DAT_RMR_BIND_COMPLETION_EVENT);
}

static void an_unsignalled_bind_wakes_no_thread(void) {
  begin_with(DAT_COMPLETION_UNSIGNALLED_FLAG);
  struct waiter waiter = {0, owner->request, 1000000, 0, {0}};
  pthread_t thread;
  pthread_create(&thread, NULL, wait_for_event, &waiter);
  until_it_waits(&waiter);
  DAT_RMR_CONTEXT context;
  OK(bind_part(owner, rmr, &memory, 0, 64, R, 1, DAT_COMPLETION_UNSIGNALLED_FLAG, &context));
  pthread_join(thread, NULL);
  CHECK(DAT_GET_TYPE(waiter.code) == DAT_TIMEOUT_EXPIRED);
  DAT_EVENT event = {0};
  while (DAT_GET_TYPE(dat_evd_dequeue(owner->request, &event)) == DAT_QUEUE_EMPTY) usleep(1000);
  CHECK(event.event_number == DAT_RMR_BIND_COMPLETION_EVENT && event.event_data.rmr_completion_event_data.user_cookie.as_64 == 1);
}

static void an_unsignalled_bind_needs_the_eps_attribute(void) {
  begin();
  DAT_RMR_CONTEXT context;
  FAILS(DAT_INVALID_PARAMETER, bind_part(owner, rmr, &memory, 0, 64, R, 1, DAT_COMPLETION_UNSIGNALLED_FLAG, &context));
  NOTHING(owner->request);
  OK(bind_part(owner, rmr, &memory, 0, 64, R, 2, DAT_COMPLETION_SUPPRESS_FLAG | DAT_COMPLETION_BARRIER_FENCE_FLAG, &context));
  NOTHING(owner->request);
}

/* Earlier RDMA reads of the owner are complete when the bind is. */
static void a_bind_with_a_barrier_waits_for_reads(void) {
  begin();
  struct memory theirs, ours;
  remember(peer, &theirs, 1 << 20, LOCAL | R);
  remember(owner, &ours, 1 << 20, LOCAL);
  for (int round = 1; round <= 50; round++) {
    memset(theirs.bytes, round, 1 << 20);
    DAT_RMR_CONTEXT context;
    OK(post_rdma(owner, READ, &ours, 1 << 20, theirs.remote, theirs.bytes, 1));
    OK(bind_part(owner, rmr, &ours, 0, 64, R, 2, DAT_COMPLETION_BARRIER_FENCE_FLAG, &context));
    DONE(owner->request, 1, DAT_DTO_SUCCESS);
    BOUND(owner, rmr, 2, DAT_DTO_SUCCESS);
    CHECK(ours.bytes[0] == round && ours.bytes[(1 << 20) - 1] == round);
  }
}

/* The peer writes through each context as soon as a message delivers it. */
static void *use_contexts(void *at) {
  int rounds = *(int *)at;
  for (int i = 0; i < rounds; i++) {
    DONE(peer->recv, 1, DAT_DTO_SUCCESS);
    DAT_RMR_CONTEXT context;
    memcpy(&context, buffer.bytes, sizeof context);
    OK(post_recv(peer, &buffer, 64, 1));
    OK(post_rdma(peer, WRITE, &buffer, 4, context, memory.bytes + 64 * (1 + i % 32), 2));
    CHECK(done(peer->request, 2, __LINE__) == DAT_DTO_SUCCESS);
    OK(post_send(peer, &buffer, 4, 3, DEFAULT));
    DONE(peer->request, 3, DAT_DTO_SUCCESS);
  }
  return NULL;
}

static void a_context_may_be_sent_after_its_bind(void) {
  begin();
  int rounds = 5000;
  struct memory answer;
  remember(owner, &answer, 4096, LOCAL);
  OK(post_recv(peer, &buffer, 64, 1));
  pthread_t thread;
  pthread_create(&thread, NULL, use_contexts, &rounds);
  for (int i = 0; i < rounds; i++) {
    DAT_RMR_CONTEXT context;
    DAT_COUNT offset = 64 * (1 + i % 32);
    OK(post_recv(owner, &answer, 64, 4));
    OK(bind_part(owner, rmr, &memory, offset, 64, W, 5, DAT_COMPLETION_SUPPRESS_FLAG, &context));
    memcpy(memory.bytes, &context, sizeof context);
    OK(post_send(owner, &memory, 4, 6, DEFAULT));
    DONE(owner->request, 6, DAT_DTO_SUCCESS);
    DONE(owner->recv, 4, DAT_DTO_SUCCESS);
    CHECK(memcmp(memory.bytes + offset, &context, sizeof context) == 0);
  }
  pthread_join(thread, NULL);
}

static void old_contexts_stay_refused(void) {
  begin();
  enum { BINDS = 300 };
  static DAT_RMR_CONTEXT contexts[BINDS];
  for (int i = 0; i < BINDS; i++) {
    contexts[i] = window(owner, rmr, &memory, 0, 64, R | W);
    for (int j = 0; j < i; j++) CHECK(contexts[i] != contexts[j]);
    if (i > 0) REFUSED(&world, WRITE, &buffer, 64, contexts[i - 1], memory.bytes);
    CHECK(memory.bytes[0] == 0);
  }
  REFUSED(&world, READ, &buffer, 64, contexts[0], memory.bytes);
  REFUSED(&world, READ, &buffer, 64, contexts[BINDS - 257], memory.bytes);
  ALLOWED(&world, WRITE, &buffer, 64, contexts[BINDS - 1], memory.bytes);
}

static void a_bind_of_length_zero_unbinds(void) {
  begin();
  DAT_RMR_CONTEXT context = window(owner, rmr, &memory, 0, 64, R | W), none;
  ALLOWED(&world, WRITE, &buffer, 64, context, memory.bytes);
  FAILS(DAT_INVALID_STATE, dat_lmr_free(memory.lmr));
  /* The rest of the triplet is ignored. */
  DAT_LMR_TRIPLET triplet = {~0ull, 0, 0xdeadbeef};
  OK(dat_rmr_bind(rmr, memory.lmr, &triplet, R, DAT_VA_TYPE_VA, owner->ep, cookie(1), DEFAULT, &none));
  BOUND(owner, rmr, 1, DAT_DTO_SUCCESS);
  REFUSED(&world, WRITE, &buffer, 64, context, memory.bytes);
  OK(dat_lmr_free(memory.lmr));
}

static void a_bind_needs_local_privileges(void) {
  begin();
  struct memory none, readable, writable;
  remember(owner, &none, 4096, DAT_MEM_PRIV_NONE_FLAG);
  remember(owner, &readable, 4096, DAT_MEM_PRIV_LOCAL_READ_FLAG);
  remember(owner, &writable, 4096, DAT_MEM_PRIV_LOCAL_WRITE_FLAG);
  DAT_RMR_CONTEXT context;
  FAILS(DAT_PRIVILEGES_VIOLATION, bind_part(owner, rmr, &none, 0, 64, R, 1, DEFAULT, &context));
  FAILS(DAT_PRIVILEGES_VIOLATION, bind_part(owner, rmr, &none, 0, 64, W, 1, DEFAULT, &context));
  FAILS(DAT_PRIVILEGES_VIOLATION, bind_part(owner, rmr, &writable, 0, 64, R, 1, DEFAULT, &context));
  FAILS(DAT_PRIVILEGES_VIOLATION, bind_part(owner, rmr, &readable, 0, 64, W, 1, DEFAULT, &context));
  FAILS(DAT_PRIVILEGES_VIOLATION, bind_part(owner, rmr, &readable, 0, 64, DAT_MEM_PRIV_ALL_FLAG, 1, DEFAULT, &context));
  NOTHING(owner->request);
  CHECK(state_of(owner->ep) == DAT_EP_STATE_CONNECTED);
  /* The LMR's own remote rights do not matter. */
  context = window(owner, rmr, &readable, 0, 64, R);
  ALLOWED(&world, READ, &buffer, 64, context, readable.bytes);
  context = window(owner, rmr, &writable, 0, 64, W);
  ALLOWED(&world, WRITE, &buffer, 64, context, writable.bytes);
  CHECK(writable.bytes[63] == 0);
  context = window(owner, rmr, &memory, 0, 64, DAT_MEM_PRIV_ALL_FLAG);
  ALLOWED(&world, READ, &buffer, 64, context, memory.bytes);
  ALLOWED(&world, WRITE, &buffer, 64, context, memory.bytes);
}

static void a_bind_needs_an_ep_that_is_or_was_connected(void) {
  begin();
  DAT_EP_HANDLE fresh;
  DAT_EP_ATTR attr = attributes(DEFAULT);
  OK(dat_ep_create(owner->ia, owner->pz, owner->recv, owner->request, owner->connect, &attr, &fresh));
  DAT_EP_HANDLE connected = owner->ep;
  DAT_RMR_CONTEXT context;
  owner->ep = fresh;
  FAILS(DAT_INVALID_STATE, bind_part(owner, rmr, &memory, 0, 64, R, 1, DEFAULT, &context));
  /* Connecting to a PSP that does not answer. */
  DAT_PSP_HANDLE psp;
  DAT_CONN_QUAL qual;
  OK(dat_psp_create_any(peer->ia, &qual, peer->cr, DAT_PSP_CONSUMER_FLAG, &psp));
  OK(dat_ep_connect(fresh, address_of(peer), qual, LONG, 0, NULL, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
  CHECK(state_of(fresh) == DAT_EP_STATE_ACTIVE_CONNECTION_PENDING);
  FAILS(DAT_INVALID_STATE, bind_part(owner, rmr, &memory, 0, 64, R, 1, DEFAULT, &context));
  NOTHING(owner->request);
  owner->ep = connected;
  context = window(owner, rmr, &memory, 0, 64, W);
  OK(dat_ep_disconnect(owner->ep, DAT_CLOSE_GRACEFUL_FLAG));
  EVENT(owner->connect, DAT_CONNECTION_EVENT_DISCONNECTED);
  EVENT(peer->connect, DAT_CONNECTION_EVENT_DISCONNECTED);
  CHECK(state_of(owner->ep) == DAT_EP_STATE_DISCONNECTED);
  OK(bind_part(owner, rmr, &memory, 64, 64, W, 3, DEFAULT, &context));
  BOUND(owner, rmr, 3, DAT_DTO_ERR_FLUSHED);
  OK(dat_ep_reset(owner->ep));
  OK(dat_ep_reset(peer->ep));
  /* The failed call did not bind. */
  connect_both(&world);
  REFUSED(&world, WRITE, &buffer, 64, context, memory.bytes + 64);
  CHECK(memory.bytes[64] == 0);
}

static void a_full_queue_refuses_a_bind(void) {
  begin();
  DAT_RMR_CONTEXT context;
  /* No receive is posted for the message, so the binds queue up after it. */
  OK(post_send(owner, &memory, 64, 1, DEFAULT));
  DAT_RETURN code = DAT_SUCCESS;
  int posted = 0;
  while (code == DAT_SUCCESS && posted < 100 * DEPTH) {
    code = bind_part(owner, rmr, &memory, 0, 64, R, 2, DEFAULT, &context);
    posted += code == DAT_SUCCESS;
  }
  CHECK(DAT_GET_TYPE(code) == DAT_INSUFFICIENT_RESOURCES && posted >= DEPTH - 1);
  NOTHING(owner->request);
  OK(post_recv(peer, &buffer, 64, 3));
  DONE(owner->request, 1, DAT_DTO_SUCCESS);
  for (int i = 0; i < posted; i++) BOUND(owner, rmr, 2, DAT_DTO_SUCCESS);
  window(owner, rmr, &memory, 0, 64, R);
}

static void errors_have_their_codes(void) {
  begin();
  DAT_RMR_CONTEXT context;
  DAT_LMR_TRIPLET good = part(&memory, 0, 64), triplet;
  DAT_CONTEXT c = cookie(1);
#define BIND(rmr, lmr, triplet, priv, ep, flags, context) dat_rmr_bind(rmr, lmr, triplet, priv, DAT_VA_TYPE_VA, ep, c, flags, context)
  DAT_RETURN code = BIND(rmr, memory.lmr, NULL, R, owner->ep, DEFAULT, &context);
  /* Class, type and subtype. */
  CHECK((code & 0x80000000) && (code & 0x3fff0000) == DAT_INVALID_PARAMETER && DAT_GET_TYPE(code) == DAT_INVALID_PARAMETER);
  FAILS(DAT_INVALID_PARAMETER, BIND(rmr, memory.lmr, &good, R, owner->ep, DEFAULT, NULL));
  FAILS(DAT_INVALID_PARAMETER, BIND(rmr, memory.lmr, &good, 0x7000, owner->ep, DEFAULT, &context));
  FAILS(DAT_INVALID_PARAMETER, BIND(rmr, memory.lmr, &good, R, owner->ep, 0x7000, &context));
  /* Outside the LMR: before, after, around, wrapped. */
  static const long offsets[] = {-1, 4096 - 63, 4096, -64, 1l << 40};
  for (int i = 0; i < 5; i++) {
    triplet = good;
    triplet.virtual_address += (DAT_VADDR)offsets[i];
    FAILS(DAT_INVALID_PARAMETER, BIND(rmr, memory.lmr, &triplet, R, owner->ep, DEFAULT, &context));
  }
  triplet = good;
  triplet.segment_length = 4097;
  FAILS(DAT_INVALID_PARAMETER, BIND(rmr, memory.lmr, &triplet, R, owner->ep, DEFAULT, &context));
  triplet.virtual_address = ~0ull - 7;
  triplet.segment_length = 64;
  FAILS(DAT_INVALID_PARAMETER, BIND(rmr, memory.lmr, &triplet, R, owner->ep, DEFAULT, &context));
  triplet = good;
  triplet.lmr_context ^= 0x5555;
  FAILS(DAT_INVALID_PARAMETER, BIND(rmr, memory.lmr, &triplet, R, owner->ep, DEFAULT, &context));
  struct memory other;
  remember(owner, &other, 4096, LOCAL);
  triplet = part(&other, 0, 64);
  FAILS(DAT_INVALID_PARAMETER, BIND(rmr, memory.lmr, &triplet, R, owner->ep, DEFAULT, &context));
  /* Handles: null, of other types, of freed objects. */
  DAT_RMR_HANDLE gone;
  OK(dat_rmr_create(owner->pz, &gone));
  OK(dat_rmr_free(gone));
  OK(dat_lmr_free(other.lmr));
  FAILS(DAT_INVALID_HANDLE, BIND(DAT_HANDLE_NULL, memory.lmr, &good, R, owner->ep, DEFAULT, &context));
  FAILS(DAT_INVALID_HANDLE, BIND(owner->ep, memory.lmr, &good, R, owner->ep, DEFAULT, &context));
  FAILS(DAT_INVALID_HANDLE, BIND(gone, memory.lmr, &good, R, owner->ep, DEFAULT, &context));
  FAILS(DAT_INVALID_HANDLE, BIND(rmr, memory.lmr, &good, R, DAT_HANDLE_NULL, DEFAULT, &context));
  FAILS(DAT_INVALID_HANDLE, BIND(rmr, memory.lmr, &good, R, rmr, DEFAULT, &context));
  FAILS(DAT_INVALID_HANDLE, BIND(rmr, owner->ep, &good, R, owner->ep, DEFAULT, &context));
  FAILS(DAT_INVALID_HANDLE, BIND(rmr, other.lmr, &good, R, owner->ep, DEFAULT, &context));
  FAILS(DAT_MODEL_NOT_SUPPORTED, dat_rmr_bind(rmr, memory.lmr, &good, R, DAT_VA_TYPE_ZB, owner->ep, c, DEFAULT, &context));
  NOTHING(owner->request);
  CHECK(state_of(owner->ep) == DAT_EP_STATE_CONNECTED);
  OK(BIND(rmr, memory.lmr, &good, R, owner->ep, DEFAULT, &context));
  BOUND(owner, rmr, 1, DAT_DTO_SUCCESS);
}

static void zones_must_match(void) {
  begin();
  DAT_PZ_HANDLE zone;
  OK(dat_pz_create(owner->ia, &zone));
  DAT_RMR_HANDLE foreign;
  OK(dat_rmr_create(zone, &foreign));
  DAT_RMR_CONTEXT context;
  FAILS(DAT_PROTECTION_VIOLATION, bind_part(owner, foreign, &memory, 0, 64, R, 1, DEFAULT, &context));
  DAT_PZ_HANDLE own = owner->pz;
  struct memory elsewhere;
  owner->pz = zone;
  remember(owner, &elsewhere, 4096, DAT_MEM_PRIV_ALL_FLAG);
  owner->pz = own;
  FAILS(DAT_PROTECTION_VIOLATION, bind_part(owner, rmr, &elsewhere, 0, 64, R, 1, DEFAULT, &context));
  FAILS(DAT_PROTECTION_VIOLATION, bind_part(owner, foreign, &elsewhere, 0, 64, R, 1, DEFAULT, &context));
  NOTHING(owner->request);
  /* Memory of another zone cannot be reached over this connection. */
  REFUSED(&world, READ, &buffer, 64, elsewhere.remote, elsewhere.bytes);
  FAILS(DAT_INVALID_STATE, dat_pz_free(zone));
}

static void a_failed_bind_breaks_the_connection(void) {
  begin();
  DAT_RMR_CONTEXT context;
  struct memory other;
  remember(owner, &other, 4096, LOCAL);
  /* No receive is posted for the message yet; the bind waits after it, and its LMR is freed in the meantime. */
  OK(post_send(owner, &memory, 64, 1, DEFAULT));
  OK(bind_part(owner, rmr, &other, 0, 64, R, 2, DEFAULT, &context));
  OK(dat_lmr_free(other.lmr));
  OK(post_recv(peer, &buffer, 64, 3));
  DONE(owner->request, 1, DAT_DTO_SUCCESS);
  BOUND(owner, rmr, 2, DAT_RMR_OPERATION_FAILED);
  EVENT(owner->connect, DAT_CONNECTION_EVENT_BROKEN);
  CHECK(state_of(owner->ep) == DAT_EP_STATE_DISCONNECTED);
  DAT_EVENT event = next_event(peer->connect, __LINE__);
  CHECK(event.event_number == DAT_CONNECTION_EVENT_BROKEN || event.event_number == DAT_CONNECTION_EVENT_DISCONNECTED);
  CHECK(state_of(peer->ep) == DAT_EP_STATE_DISCONNECTED);
}

static void freeing_an_rmr_unbinds_it(void) {
  begin();
  DAT_RMR_CONTEXT context = window(owner, rmr, &memory, 0, 64, W);
  ALLOWED(&world, WRITE, &buffer, 64, context, memory.bytes);
  OK(dat_rmr_free(rmr));
  memset(memory.bytes, 0, 64);
  REFUSED(&world, WRITE, &buffer, 64, context, memory.bytes);
  CHECK(memory.bytes[0] == 0);
  OK(dat_lmr_free(memory.lmr));
  OK(dat_rmr_create(owner->pz, &rmr));
  OK(dat_rmr_free(rmr));
  FAILS(DAT_INVALID_HANDLE, dat_rmr_free(rmr));
}

static void a_query_returns_what_was_bound(void) {
  begin();
  DAT_RMR_PARAM param;
  FAILS(DAT_INVALID_PARAMETER, dat_rmr_query(rmr, 0x80, &param));
  FAILS(DAT_INVALID_PARAMETER, dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, NULL));
  OK(dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, &param));
  CHECK(param.ia_handle == owner->ia && param.pz_handle == owner->pz);
  DAT_RMR_CONTEXT context = window(owner, rmr, &memory, 128, 64, R);
  OK(dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, &param));
  DAT_LMR_TRIPLET triplet = part(&memory, 128, 64);
  CHECK(memcmp(&param.lmr_triplet, &triplet, sizeof triplet) == 0);
  CHECK(param.mem_priv == R && param.rmr_context == context && param.va_type == DAT_VA_TYPE_VA);
}

static void a_rebind_releases_the_first_lmr(void) {
  begin();
  struct memory other;
  remember(owner, &other, 4096, LOCAL);
  DAT_RMR_CONTEXT first = window(owner, rmr, &memory, 0, 64, W);
  FAILS(DAT_INVALID_STATE, dat_lmr_free(memory.lmr));
  DAT_RMR_CONTEXT second = window(owner, rmr, &other, 0, 64, W);
  FAILS(DAT_INVALID_STATE, dat_lmr_free(other.lmr));
  OK(dat_lmr_free(memory.lmr));
  CHECK(first != second);
  ALLOWED(&world, WRITE, &buffer, 64, second, other.bytes);
  unbind(owner, rmr, &other);
  OK(dat_lmr_free(other.lmr));
}

/* Memory does not grow over 100,000 binds, with a new RMR after every hundred. */
static void many_binds_leave_nothing_behind(void) {
  begin();
  long before = 0;
  for (int i = 0; i < 100000; i++) {
    if (i == 20000) before = resident();
    DAT_RMR_CONTEXT context;
    OK(bind_part(owner, rmr, &memory, i % 4032, 64, R, 1, DEFAULT, &context));
    DAT_EVENT event;
    DAT_RETURN code;
    while (DAT_GET_TYPE(code = dat_evd_dequeue(owner->request, &event)) == DAT_QUEUE_EMPTY) {
    }
    CHECK(code == DAT_SUCCESS && event.event_data.rmr_completion_event_data.status == DAT_DTO_SUCCESS);
    if (i % 100 == 0) {
      OK(dat_rmr_free(rmr));
      OK(dat_rmr_create(owner->pz, &rmr));
    }
  }
  long grown = resident() - before;
  if (grown > 1 << 20) fail(__LINE__, "100,000 binds", "memory grew by more than a MiB");
  OK(dat_rmr_free(rmr));
  forget(&memory);
  forget(&buffer);
  OK(dat_ep_disconnect(owner->ep, DAT_CLOSE_ABRUPT_FLAG));
  EVENT(peer->connect, DAT_CONNECTION_EVENT_DISCONNECTED);
  close_side(owner);
  close_side(peer);
}

enum { THREADS = 4, ROUNDS = 2000 };

static void *bind_in_a_thread(void *at) {
  DAT_UINT64 number = (DAT_UINT64)(uintptr_t)at;
  DAT_RMR_HANDLE own;
  OK(dat_rmr_create(owner->pz, &own));
  for (int i = 0; i < ROUNDS; i++) {
    DAT_RMR_CONTEXT context;
    DAT_RETURN code;
    /* The queue may be full of the others' binds. */
    while ((code = bind_part(owner, own, &memory, 64 * (DAT_COUNT)number, 64, W, number, DEFAULT, &context)) != DAT_SUCCESS)
      CHECK(DAT_GET_TYPE(code) == DAT_INSUFFICIENT_RESOURCES);
  }
  return own;
}

static void threads_may_bind_at_once(void) {
  begin();
  pthread_t threads[THREADS];
  int seen[THREADS] = {0};
  for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, bind_in_a_thread, (void *)(uintptr_t)i);
  for (int i = 0; i < THREADS * ROUNDS; i++) {
    DAT_EVENT event = EVENT(owner->request, DAT_RMR_BIND_COMPLETION_EVENT);
    DAT_RMR_BIND_COMPLETION_EVENT_DATA *data = &event.event_data.rmr_completion_event_data;
    CHECK(data->status == DAT_DTO_SUCCESS && data->user_cookie.as_64 < THREADS);
    seen[data->user_cookie.as_64]++;
  }
  for (int i = 0; i < THREADS; i++) {
    void *own;
    pthread_join(threads[i], &own);
    CHECK(seen[i] == ROUNDS);
    DAT_RMR_PARAM param;
    OK(dat_rmr_query(own, DAT_RMR_FIELD_RMR_CONTEXT, &param));
    ALLOWED(&world, WRITE, &buffer, 64, param.rmr_context, memory.bytes + 64 * i);
  }
}

static void lmrs_have_their_contexts(void) {
  begin();
  /* Without remote rights, there is no context for a peer. */
  struct memory shared, secret;
  remember(owner, &shared, 4096, DAT_MEM_PRIV_ALL_FLAG);
  remember(owner, &secret, 4096, LOCAL);
  CHECK(shared.remote != 0 && shared.local != 0 && shared.remote != shared.local);
  ALLOWED(&world, WRITE, &buffer, 64, shared.remote, shared.bytes);
  CHECK(shared.bytes[63] == 0x5a);
  ALLOWED(&world, READ, &buffer, 64, shared.remote, shared.bytes);
  REFUSED(&world, READ, &buffer, 64, secret.remote, secret.bytes);
  REFUSED(&world, READ, &buffer, 64, shared.local, shared.bytes);
  /* A local buffer that is written needs the local write right. */
  struct memory readable, writable;
  remember(peer, &readable, 4096, DAT_MEM_PRIV_LOCAL_READ_FLAG);
  remember(peer, &writable, 4096, DAT_MEM_PRIV_LOCAL_WRITE_FLAG);
  ALLOWED(&world, WRITE, &readable, 64, shared.remote, shared.bytes);
  ALLOWED(&world, READ, &writable, 64, shared.remote, shared.bytes);
  /* dtest sends and writes from memory without local read, so that is allowed. */
  ALLOWED(&world, WRITE, &writable, 64, shared.remote, shared.bytes);
  /* Refused at once, or by a completion. */
  DAT_RETURN code = post_rdma(peer, READ, &readable, 64, shared.remote, shared.bytes, 5);
  if (code == DAT_SUCCESS) {
    DONE(peer->request, 5, DAT_DTO_ERR_LOCAL_PROTECTION);
    connect_again(&world, __LINE__);
  } else CHECK(DAT_GET_TYPE(code) == DAT_PRIVILEGES_VIOLATION);
}

static void freed_lmrs_are_refused(void) {
  begin();
  struct memory shared;
  remember(owner, &shared, 4096, DAT_MEM_PRIV_ALL_FLAG);
  ALLOWED(&world, READ, &buffer, 64, shared.remote, shared.bytes);
  OK(dat_lmr_free(shared.lmr));
  REFUSED(&world, READ, &buffer, 64, shared.remote, shared.bytes);
  FAILS(DAT_INVALID_HANDLE, dat_lmr_free(shared.lmr));
  DAT_RETURN code = post_send(owner, &shared, 64, 1, DEFAULT);
  if (code == DAT_SUCCESS) {
    DONE(owner->request, 1, DAT_DTO_ERR_LOCAL_PROTECTION);
    connect_again(&world, __LINE__);
  } else CHECK(DAT_GET_TYPE(code) == DAT_PROTECTION_VIOLATION);
  window(owner, rmr, &memory, 0, 64, R);
}

static void a_refusal_breaks_the_connection(void) {
  begin();
  DAT_RMR_CONTEXT context = window(owner, rmr, &memory, 0, 64, R);
  OK(post_recv(peer, &buffer, 64, 7));
  OK(post_rdma(peer, WRITE, &buffer, 64, context, memory.bytes, 8));
  DONE(peer->request, 8, DAT_DTO_ERR_REMOTE_ACCESS);
  EVENT(peer->connect, DAT_CONNECTION_EVENT_BROKEN);
  EVENT(owner->connect, DAT_CONNECTION_EVENT_BROKEN);
  CHECK(state_of(peer->ep) == DAT_EP_STATE_DISCONNECTED && state_of(owner->ep) == DAT_EP_STATE_DISCONNECTED);
  DONE(peer->recv, 7, DAT_DTO_ERR_FLUSHED);
}

#define C(name) {#name, name}
static const struct check checks[] = {
    C(a_bind_covers_only_its_part),
    C(privileges_limit_peers),
    C(a_bind_completes_with_its_cookie),
    C(a_suppressed_bind_reports_only_failure),
    C(a_bind_wakes_the_waiting_thread),
    C(an_unsignalled_bind_wakes_no_thread),
    C(an_unsignalled_bind_needs_the_eps_attribute),
    C(a_bind_with_a_barrier_waits_for_reads),
    C(a_context_may_be_sent_after_its_bind),
    C(old_contexts_stay_refused),
    C(a_bind_of_length_zero_unbinds),
    C(a_bind_needs_local_privileges),
    C(a_bind_needs_an_ep_that_is_or_was_connected),
    C(a_full_queue_refuses_a_bind),
    C(errors_have_their_codes),
    C(zones_must_match),
    C(a_failed_bind_breaks_the_connection),
    C(freeing_an_rmr_unbinds_it),
    C(a_query_returns_what_was_bound),
    C(a_rebind_releases_the_first_lmr),
    C(many_binds_leave_nothing_behind),
    C(threads_may_bind_at_once),
    C(lmrs_have_their_contexts),
    C(freed_lmrs_are_refused),
    C(a_refusal_breaks_the_connection),
    {NULL, NULL},
};

int main(int argc, char **argv) { return run_check(checks, argc, argv); }
