/* Handles that are null, freed or of another type, null pointers and absurd sizes: each call returns an error of its kind.
   Nothing may crash, and the objects still work in the end. */
#include "world.h"

static struct world world;
static struct side *const s = &world.owner;
static struct memory memory, buffer;
static DAT_RMR_HANDLE rmr;
static DAT_CNO_HANDLE cno;
static DAT_SRQ_HANDLE srq;
static DAT_PSP_HANDLE psp;
static DAT_RSP_HANDLE rsp;
static DAT_EP_HANDLE spare;

/* Objects of each type, live and freed. The handle of an IA is a number, which libdat2 would take for a pointer. */
enum kind { PZ, EVD, CNO, EP, LMR, RMR, PSP, RSP, SRQ, KINDS };
static DAT_HANDLE live[KINDS], gone[KINDS];

static const DAT_OS_WAIT_PROXY_AGENT no_agent = {NULL, NULL};

/* An RSP with a free connection qualifier. */
static void reserve(DAT_EP_HANDLE ep, DAT_RSP_HANDLE *made) {
  DAT_RETURN code = ~0u;
  for (DAT_CONN_QUAL qual = 20000; code != DAT_SUCCESS && qual < 30000; qual++) code = dat_rsp_create(s->ia, qual, ep, s->cr, made);
  OK(code);
}

static void begin(void) {
  open_world(&world, DAT_COMPLETION_DEFAULT_FLAG);
  remember(s, &memory, 4096, DAT_MEM_PRIV_ALL_FLAG);
  remember(&world.peer, &buffer, 4096, DAT_MEM_PRIV_ALL_FLAG);
  OK(dat_rmr_create(s->pz, &rmr));
  OK(dat_cno_create(s->ia, no_agent, &cno));
  DAT_SRQ_ATTR attr = {16, 2, DAT_SRQ_LW_DEFAULT};
  OK(dat_srq_create(s->ia, s->pz, &attr, &srq));
  DAT_CONN_QUAL qual;
  OK(dat_psp_create_any(s->ia, &qual, s->cr, DAT_PSP_CONSUMER_FLAG, &psp));
  DAT_EP_ATTR ep = attributes(0);
  OK(dat_ep_create(s->ia, s->pz, s->recv, s->request, s->connect, &ep, &spare));
  reserve(spare, &rsp);
  DAT_HANDLE all[KINDS] = {s->pz, s->request, cno, s->ep, memory.lmr, rmr, psp, rsp, srq};
  memcpy(live, all, sizeof live);
}

static void free_others(void) {
  struct memory other;
  DAT_CONN_QUAL qual;
  DAT_EP_ATTR attr = attributes(0);
  DAT_EP_HANDLE reserved;
  remember(s, &other, 4096, DAT_MEM_PRIV_ALL_FLAG);
  gone[LMR] = other.lmr;
  forget(&other);
  OK(dat_pz_create(s->ia, &gone[PZ]));
  OK(dat_pz_free(gone[PZ]));
  OK(dat_evd_create(s->ia, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &gone[EVD]));
  OK(dat_evd_free(gone[EVD]));
  OK(dat_cno_create(s->ia, no_agent, &gone[CNO]));
  OK(dat_cno_free(gone[CNO]));
  OK(dat_ep_create(s->ia, s->pz, s->recv, s->request, s->connect, &attr, &gone[EP]));
  OK(dat_ep_free(gone[EP]));
  OK(dat_rmr_create(s->pz, &gone[RMR]));
  OK(dat_rmr_free(gone[RMR]));
  OK(dat_psp_create_any(s->ia, &qual, s->cr, DAT_PSP_CONSUMER_FLAG, &gone[PSP]));
  OK(dat_psp_free(gone[PSP]));
  OK(dat_ep_create(s->ia, s->pz, s->recv, s->request, s->connect, &attr, &reserved));
  reserve(reserved, &gone[RSP]);
  OK(dat_rsp_free(gone[RSP]));
  OK(dat_ep_free(reserved));
  DAT_SRQ_ATTR srq_attr = {16, 2, DAT_SRQ_LW_DEFAULT};
  OK(dat_srq_create(s->ia, s->pz, &srq_attr, &gone[SRQ]));
  OK(dat_srq_free(gone[SRQ]));
}

/* Calls each function with one wrong handle. */
static DAT_RETURN use(int call, enum kind *of, DAT_HANDLE h) {
  static DAT_LMR_TRIPLET iov;
  static DAT_RMR_TRIPLET remote;
  DAT_EVENT event = {0};
  DAT_COUNT n, m;
  DAT_BOOLEAN a, b;
  DAT_EP_STATE state;
  DAT_RMR_CONTEXT context;
  DAT_HANDLE made;
  static union {
    DAT_EVD_PARAM evd;
    DAT_CNO_PARAM cno;
    DAT_EP_PARAM ep;
    DAT_LMR_PARAM lmr;
    DAT_RMR_PARAM rmr;
    DAT_PSP_PARAM psp;
    DAT_RSP_PARAM rsp;
    DAT_SRQ_PARAM srq;
    DAT_PZ_PARAM pz;
  } param;
  DAT_EP_ATTR attr = attributes(0);
  DAT_CONTEXT c = cookie(1);
  iov = part(&memory, 0, 64);
  memset(&remote, 0, sizeof remote);
#define CASE(number, kind, expression) \
  case number: *of = kind; return expression
  switch (call) {
    CASE(0, PZ, dat_pz_query(h, DAT_PZ_FIELD_ALL, &param.pz));
    CASE(1, PZ, dat_rmr_create(h, &made));
    CASE(2, PZ, dat_ep_create(s->ia, h, s->recv, s->request, s->connect, &attr, &made));
    CASE(3, EVD, dat_evd_query(h, DAT_EVD_FIELD_ALL, &param.evd));
    CASE(4, EVD, dat_evd_wait(h, 0, 1, &event, &n));
    CASE(5, EVD, dat_evd_dequeue(h, &event));
    CASE(6, EVD, dat_evd_resize(h, 16));
    CASE(7, EVD, dat_evd_enable(h));
    CASE(8, EVD, dat_evd_disable(h));
    CASE(9, EVD, dat_evd_set_unwaitable(h));
    CASE(10, EVD, dat_evd_clear_unwaitable(h));
    CASE(11, EVD, dat_evd_modify_cno(h, DAT_HANDLE_NULL));
    CASE(12, EVD, dat_evd_post_se(h, &event));
    CASE(13, EVD, dat_ep_create(s->ia, s->pz, h, s->request, s->connect, &attr, &made));
    CASE(14, EVD, dat_ep_create(s->ia, s->pz, s->recv, h, s->connect, &attr, &made));
    CASE(15, EVD, dat_ep_create(s->ia, s->pz, s->recv, s->request, h, &attr, &made));
    CASE(16, EVD, dat_psp_create(s->ia, 54321, h, DAT_PSP_CONSUMER_FLAG, &made));
    CASE(17, CNO, dat_cno_query(h, DAT_CNO_FIELD_IA_HANDLE, &param.cno));
    CASE(18, CNO, dat_cno_wait(h, 0, &made));
    CASE(19, CNO, dat_cno_modify_agent(h, no_agent));
    CASE(20, CNO, dat_evd_create(s->ia, 8, h, DAT_EVD_DTO_FLAG, &made));
    CASE(21, EP, dat_ep_query(h, DAT_EP_FIELD_ALL, &param.ep));
    CASE(22, EP, dat_ep_get_status(h, &state, &a, &b));
    CASE(23, EP, dat_ep_modify(h, 0, &param.ep));
    CASE(24, EP, dat_ep_connect(h, address_of(s), 54321, 1000, 0, NULL, 0, 0));
    CASE(25, EP, dat_ep_dup_connect(h, s->ep, 1000, 0, NULL, 0));
    CASE(26, EP, dat_ep_disconnect(h, DAT_CLOSE_ABRUPT_FLAG));
    CASE(27, EP, dat_ep_reset(h));
    CASE(28, EP, dat_ep_post_send(h, 1, &iov, c, 0));
    CASE(29, EP, dat_ep_post_recv(h, 1, &iov, c, 0));
    CASE(30, EP, dat_ep_post_rdma_read(h, 1, &iov, c, &remote, 0));
    CASE(31, EP, dat_ep_post_rdma_write(h, 1, &iov, c, &remote, 0));
    CASE(32, EP, dat_ep_recv_query(h, &n, &m));
    CASE(33, EP, dat_ep_set_watermark(h, DAT_WATERMARK_INFINITE, DAT_WATERMARK_INFINITE));
    CASE(34, EP, dat_rsp_create(s->ia, 54322, h, s->cr, &made));
    CASE(35, LMR, dat_lmr_query(h, DAT_LMR_FIELD_ALL, &param.lmr));
    CASE(36, RMR, dat_rmr_query(h, DAT_RMR_FIELD_ALL, &param.rmr));
    CASE(37, RMR, dat_rmr_bind(h, memory.lmr, &iov, 0, 0, s->ep, c, 0, &context));
    CASE(38, PSP, dat_psp_query(h, DAT_PSP_FIELD_ALL, &param.psp));
    CASE(39, RSP, dat_rsp_query(h, DAT_RSP_FIELD_ALL, &param.rsp));
    CASE(40, SRQ, dat_srq_query(h, DAT_SRQ_FIELD_ALL, &param.srq));
    CASE(41, SRQ, dat_srq_post_recv(h, 1, &iov, c));
    CASE(42, SRQ, dat_srq_resize(h, 16));
    CASE(43, SRQ, dat_srq_set_lw(h, 1));
    CASE(44, SRQ, dat_ep_create_with_srq(s->ia, s->pz, s->recv, s->request, s->connect, h, &attr, &made));
    CASE(45, PZ, dat_pz_free(h));
    CASE(46, EVD, dat_evd_free(h));
    CASE(47, CNO, dat_cno_free(h));
    CASE(48, EP, dat_ep_free(h));
    CASE(49, LMR, dat_lmr_free(h));
    CASE(50, RMR, dat_rmr_free(h));
    CASE(51, PSP, dat_psp_free(h));
    CASE(52, RSP, dat_rsp_free(h));
    CASE(53, SRQ, dat_srq_free(h));
  default: return DAT_SUCCESS;
  }
}
enum { CALLS = 54 };

/* A null handle in these places means "none", which is allowed. */
static int none_is_allowed(int call) { return (call >= 13 && call <= 15) || call == 20; }

static void refuse(int call, const char *what, DAT_HANDLE h) {
  enum kind of = KINDS;
  DAT_RETURN code = use(call, &of, h);
  if (DAT_GET_TYPE(code) == DAT_INVALID_HANDLE) return;
  printf("call %d with %s: %s\n", call, what, name_of(code));
  exit(1);
}

static void wrong_handles_are_refused(void) {
  begin();
  free_others();
  for (int call = 0; call < CALLS; call++) {
    enum kind of = KINDS;
    if (!none_is_allowed(call)) refuse(call, "no handle", DAT_HANDLE_NULL);
    /* A call that gets a handle of the wrong type reports the type that it expects. */
    use(call, &of, gone[call < 45 ? LMR : PZ]);
    refuse(call, "a freed handle", gone[of]);
    for (int kind = 0; kind < KINDS; kind++) {
      if (kind != (int)of) refuse(call, "a handle of another type", live[kind]);
      if (kind != (int)of) refuse(call, "a freed handle of another type", gone[kind]);
    }
  }
  /* All live objects are intact. */
  OK(post_recv(&world.peer, &buffer, 64, 1));
  OK(post_send(s, &memory, 64, 2, 0));
  DONE(s->request, 2, DAT_DTO_SUCCESS);
  DONE(world.peer.recv, 1, DAT_DTO_SUCCESS);
}

static void null_pointers_are_refused(void) {
  begin();
  DAT_COUNT n;
  DAT_EVENT event;
  DAT_REGION_DESCRIPTION at = {.for_va = memory.bytes};
  DAT_EP_ATTR attr = attributes(0);
  DAT_LMR_TRIPLET iov = part(&memory, 0, 64);
  DAT_CONTEXT c = cookie(1);
  DAT_HANDLE made;
  DAT_RMR_CONTEXT context;
  FAILS(DAT_INVALID_PARAMETER, dat_pz_create(s->ia, NULL));
  FAILS(DAT_INVALID_PARAMETER, dat_pz_query(s->pz, DAT_PZ_FIELD_ALL, NULL));
  FAILS(DAT_INVALID_PARAMETER, dat_cno_create(s->ia, no_agent, NULL));
  FAILS(DAT_INVALID_PARAMETER, dat_cno_query(cno, DAT_CNO_FIELD_IA_HANDLE, NULL));
  FAILS(DAT_INVALID_PARAMETER, dat_evd_create(s->ia, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, NULL));
  FAILS(DAT_INVALID_PARAMETER, dat_evd_query(s->recv, DAT_EVD_FIELD_ALL, NULL));
  FAILS(DAT_INVALID_PARAMETER, dat_evd_dequeue(s->recv, NULL));
  FAILS(DAT_INVALID_PARAMETER, dat_evd_wait(s->recv, 0, 1, NULL, &n));
  FAILS(DAT_INVALID_PARAMETER, dat_evd_wait(s->recv, 0, 1, &event, NULL));
  FAILS(DAT_INVALID_PARAMETER, dat_evd_post_se(s->recv, NULL));
  FAILS(DAT_INVALID_PARAMETER, dat_ep_create(s->ia, s->pz, s->recv, s->request, s->connect, &attr, NULL));
  FAILS(DAT_INVALID_PARAMETER, dat_ep_query(s->ep, DAT_EP_FIELD_ALL, NULL));
  FAILS(DAT_INVALID_PARAMETER, dat_ep_modify(spare, DAT_EP_FIELD_PZ_HANDLE, NULL));
  FAILS(DAT_INVALID_PARAMETER, dat_ep_connect(spare, NULL, 1, 1000, 0, NULL, 0, 0));
  FAILS(DAT_INVALID_PARAMETER, dat_ep_post_send(s->ep, 1, NULL, c, 0));
  FAILS(DAT_INVALID_PARAMETER, dat_ep_post_recv(s->ep, 1, NULL, c, 0));
  FAILS(DAT_INVALID_PARAMETER, dat_ep_post_rdma_read(s->ep, 1, &iov, c, NULL, 0));
  FAILS(DAT_INVALID_PARAMETER, dat_ep_post_rdma_write(s->ep, 1, &iov, c, NULL, 0));
  FAILS(DAT_INVALID_PARAMETER, dat_lmr_create(s->ia, DAT_MEM_TYPE_VIRTUAL, at, 4096, s->pz, 0, 0, NULL, NULL, NULL, NULL, NULL));
  FAILS(DAT_INVALID_PARAMETER, dat_lmr_query(memory.lmr, DAT_LMR_FIELD_ALL, NULL));
  FAILS(DAT_INVALID_PARAMETER, dat_rmr_create(s->pz, NULL));
  FAILS(DAT_INVALID_PARAMETER, dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, NULL));
  FAILS(DAT_INVALID_PARAMETER, dat_rmr_bind(rmr, memory.lmr, NULL, 0, 0, s->ep, c, 0, &context));
  FAILS(DAT_INVALID_PARAMETER, dat_psp_create(s->ia, 54321, s->cr, DAT_PSP_CONSUMER_FLAG, NULL));
  FAILS(DAT_INVALID_PARAMETER, dat_psp_query(psp, DAT_PSP_FIELD_ALL, NULL));
  FAILS(DAT_INVALID_PARAMETER, dat_rsp_query(rsp, DAT_RSP_FIELD_ALL, NULL));
  FAILS(DAT_INVALID_PARAMETER, dat_srq_create(s->ia, s->pz, NULL, &made));
  FAILS(DAT_INVALID_PARAMETER, dat_srq_query(srq, DAT_SRQ_FIELD_ALL, NULL));
  FAILS(DAT_INVALID_PARAMETER, dat_srq_post_recv(srq, 1, NULL, c));
}

/* Any error is acceptable; nothing may crash or hang. */
static void absurd_sizes_are_refused(void) {
  begin();
  static const DAT_COUNT counts[] = {-1, INT32_MIN, INT32_MAX, 1 << 24};
  DAT_CONTEXT c = cookie(1);
  DAT_LMR_TRIPLET iov = part(&memory, 0, 64);
  DAT_RMR_TRIPLET remote = {(DAT_VADDR)(uintptr_t)buffer.bytes, 64, buffer.remote};
  DAT_HANDLE made;
  for (int i = 0; i < 4; i++) {
    DAT_COUNT n = counts[i];
    CHECK(dat_evd_create(s->ia, n, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &made) != DAT_SUCCESS);
    CHECK(dat_evd_resize(s->recv, n) != DAT_SUCCESS);
    CHECK(dat_ep_post_send(s->ep, n, &iov, c, 0) != DAT_SUCCESS);
    CHECK(dat_ep_post_recv(s->ep, n, &iov, c, 0) != DAT_SUCCESS);
    CHECK(dat_ep_post_rdma_write(s->ep, n, &iov, c, &remote, 0) != DAT_SUCCESS);
    CHECK(dat_ep_post_rdma_read(s->ep, n, &iov, c, &remote, 0) != DAT_SUCCESS);
    CHECK(dat_srq_post_recv(srq, n, &iov, c) != DAT_SUCCESS);
    CHECK(dat_srq_resize(srq, n) != DAT_SUCCESS);
    CHECK(dat_srq_set_lw(srq, n) != DAT_SUCCESS);
    CHECK(dat_ep_connect(spare, address_of(s), 1, 1000, n, memory.bytes, 0, 0) != DAT_SUCCESS);
    DAT_SRQ_ATTR srq_attr = {n, 2, DAT_SRQ_LW_DEFAULT};
    CHECK(dat_srq_create(s->ia, s->pz, &srq_attr, &made) != DAT_SUCCESS);
    DAT_EP_ATTR attr = attributes(0);
    attr.max_request_dtos = n;
    CHECK(dat_ep_create(s->ia, s->pz, s->recv, s->request, s->connect, &attr, &made) != DAT_SUCCESS);
    attr = attributes(0);
    attr.max_recv_iov = n;
    CHECK(dat_ep_create(s->ia, s->pz, s->recv, s->request, s->connect, &attr, &made) != DAT_SUCCESS);
  }
  DAT_REGION_DESCRIPTION at = {.for_va = memory.bytes};
  DAT_LMR_CONTEXT lmr_context;
  DAT_RMR_CONTEXT rmr_context;
  DAT_VLEN len;
  DAT_VADDR address;
#define CREATE(type, length, priv, va) \
  dat_lmr_create(s->ia, type, at, length, s->pz, priv, va, &made, &lmr_context, &rmr_context, &len, &address)
  FAILS(DAT_LENGTH_ERROR, CREATE(DAT_MEM_TYPE_VIRTUAL, 0, 0, DAT_VA_TYPE_VA));
  CHECK(CREATE(DAT_MEM_TYPE_VIRTUAL, ~0ull, 0, DAT_VA_TYPE_VA) != DAT_SUCCESS);
  CHECK(CREATE(77, 4096, 0, DAT_VA_TYPE_VA) != DAT_SUCCESS);
  CHECK(CREATE(DAT_MEM_TYPE_VIRTUAL, 4096, 0x7000, DAT_VA_TYPE_VA) != DAT_SUCCESS);
  CHECK(CREATE(DAT_MEM_TYPE_VIRTUAL, 4096, 0, 77) != DAT_SUCCESS);
  CHECK(dat_evd_create(s->ia, 8, DAT_HANDLE_NULL, 0x70000, &made) != DAT_SUCCESS);
  CHECK(dat_evd_query(s->recv, 0x7000, (DAT_EVD_PARAM[1]){}) != DAT_SUCCESS);
  DAT_EVENT event;
  DAT_COUNT more;
  FAILS(DAT_INVALID_PARAMETER, dat_evd_wait(s->recv, 0, 0, &event, &more));
  FAILS(DAT_INVALID_PARAMETER, dat_evd_wait(s->recv, 0, 1 << 24, &event, &more));
  FAILS(DAT_TIMEOUT_EXPIRED, dat_evd_wait(s->recv, 0, 1, &event, &more));
  /* The code lacks the error class bit, because programs compare the whole code. */
  CHECK(dat_evd_dequeue(s->recv, &event) == DAT_QUEUE_EMPTY);
  /* A local buffer outside every LMR is refused at once or by its completion. */
  iov.lmr_context ^= 0x1111;
  DAT_RETURN code = dat_ep_post_send(s->ep, 1, &iov, c, 0);
  if (code == DAT_SUCCESS) DONE(s->request, 1, DAT_DTO_ERR_LOCAL_PROTECTION);
}

/* Objects in use cannot be freed. */
static void objects_in_use_cannot_be_freed(void) {
  begin();
  FAILS(DAT_INVALID_STATE, dat_pz_free(s->pz));
  FAILS(DAT_INVALID_STATE, dat_evd_free(s->request));
  FAILS(DAT_INVALID_STATE, dat_evd_free(s->cr));
  FAILS(DAT_INVALID_STATE, dat_ia_close(s->ia, DAT_CLOSE_GRACEFUL_FLAG));
  FAILS(DAT_INVALID_STATE, dat_ep_reset(s->ep));
  OK(dat_ia_close(s->ia, DAT_CLOSE_ABRUPT_FLAG));
  DAT_EVENT event = next_event(world.peer.connect, __LINE__);
  CHECK(event.event_number == DAT_CONNECTION_EVENT_DISCONNECTED || event.event_number == DAT_CONNECTION_EVENT_BROKEN);
  FAILS(DAT_INVALID_HANDLE, dat_pz_free(s->pz));
}

#define C(name) {#name, name}
static const struct check checks[] = {
    C(wrong_handles_are_refused),
    C(null_pointers_are_refused),
    C(absurd_sizes_are_refused),
    C(objects_in_use_cannot_be_freed),
    {NULL, NULL},
};

int main(int argc, char **argv) { return run_check(checks, argc, argv); }
