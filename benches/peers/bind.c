/* The cost of a bind: ibv_bind_mw and dat_rmr_bind in turns, each posted and polled for in a loop.
   gcc -O2 -o bind benches/peers/bind.c -libverbs -ldat2, then: rkey run -- ./bind [BINDS] */
#include <infiniband/verbs.h>
#include <netinet/in.h>

#include <dat2/udat.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS 7
#define CHECK(condition) \
  do { \
    if (!(condition)) { \
      printf("line %d: %s\n", __LINE__, #condition); \
      exit(1); \
    } \
  } while (0)
#define OK(call) CHECK((call) == DAT_SUCCESS)

static _Alignas(4096) char memory[4096];

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1e9 + time.tv_nsec;
}

/* ---- verbs ---- */

static struct {
  struct ibv_pd *pd;
  struct ibv_cq *cq;
  struct ibv_qp *qp, *other;
  struct ibv_mr *mr;
  struct ibv_mw *mw;
} v;

static struct ibv_qp *verbs_qp(void) {
  struct ibv_qp_init_attr init = {.send_cq = v.cq, .recv_cq = v.cq, .qp_type = IBV_QPT_RC, .cap = {16, 16, 1, 1, 0}};
  struct ibv_qp *qp = ibv_create_qp(v.pd, &init);
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
  CHECK(qp && !ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
  return qp;
}

static void verbs_connect(struct ibv_qp *qp, struct ibv_qp *to) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = to->qp_num, .max_dest_rd_atomic = 1, .min_rnr_timer = 12};
  attr.ah_attr.port_num = 1;
  CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
  attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
  CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void verbs_open(void) {
  struct ibv_device **list = ibv_get_device_list(NULL);
  CHECK(list && list[0]);
  struct ibv_context *context = ibv_open_device(list[0]);
  CHECK(context);
  v.pd = ibv_alloc_pd(context);
  v.cq = ibv_create_cq(context, 64, NULL, NULL, 0);
  v.mr = ibv_reg_mr(v.pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
  v.mw = ibv_alloc_mw(v.pd, IBV_MW_TYPE_1);
  CHECK(v.cq && v.mr && v.mw);
  v.qp = verbs_qp();
  v.other = verbs_qp();
  verbs_connect(v.qp, v.other);
  verbs_connect(v.other, v.qp);
}

static double verbs_binds(int count) {
  double begun = now();
  for (int i = 0; i < count; i++) {
    struct ibv_mw_bind bind = {.send_flags = IBV_SEND_SIGNALED, .bind_info = {v.mr, (uint64_t)(uintptr_t)memory + i % 64, 64, IBV_ACCESS_REMOTE_WRITE}};
    struct ibv_wc wc;
    CHECK(!ibv_bind_mw(v.qp, v.mw, &bind));
    while (ibv_poll_cq(v.cq, 1, &wc) == 0) {
    }
    CHECK(wc.status == IBV_WC_SUCCESS);
  }
  return (now() - begun) / count;
}

/* ---- uDAPL ---- */

struct side {
  DAT_IA_HANDLE ia;
  DAT_PZ_HANDLE pz;
  DAT_EVD_HANDLE async, evd, connect, cr;
  DAT_EP_HANDLE ep;
};
static struct side owner, peer;
static DAT_LMR_HANDLE lmr;
static DAT_LMR_CONTEXT local;
static DAT_RMR_HANDLE rmr;

static void dat_open(struct side *s) {
  DAT_EP_ATTR attr = {.max_message_size = 4096, .max_rdma_size = 4096, .max_recv_dtos = 16, .max_request_dtos = 16, .max_recv_iov = 1, .max_request_iov = 1};
  OK(dat_ia_open("rkey-lo", 8, &s->async, &s->ia));
  OK(dat_pz_create(s->ia, &s->pz));
  OK(dat_evd_create(s->ia, 64, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG, &s->evd));
  OK(dat_evd_create(s->ia, 16, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &s->connect));
  OK(dat_evd_create(s->ia, 16, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &s->cr));
  OK(dat_ep_create(s->ia, s->pz, s->evd, s->evd, s->connect, &attr, &s->ep));
}

static void dat_connect(void) {
  DAT_PSP_HANDLE psp;
  DAT_CONN_QUAL qual;
  DAT_IA_ATTR attr;
  DAT_EVENT event;
  DAT_COUNT more;
  OK(dat_ia_query(owner.ia, NULL, DAT_IA_FIELD_IA_ADDRESS_PTR, &attr, 0, NULL));
  OK(dat_psp_create_any(owner.ia, &qual, owner.cr, DAT_PSP_CONSUMER_FLAG, &psp));
  OK(dat_ep_connect(peer.ep, attr.ia_address_ptr, qual, 10000000, 0, NULL, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
  OK(dat_evd_wait(owner.cr, 10000000, 1, &event, &more));
  OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, owner.ep, 0, NULL));
  OK(dat_evd_wait(owner.connect, 10000000, 1, &event, &more));
  OK(dat_evd_wait(peer.connect, 10000000, 1, &event, &more));
  CHECK(event.event_number == DAT_CONNECTION_EVENT_ESTABLISHED);
}

static double dat_binds(int count) {
  double begun = now();
  for (int i = 0; i < count; i++) {
    DAT_LMR_TRIPLET part = {(DAT_VADDR)(uintptr_t)memory + i % 64, 64, local};
    DAT_RMR_COOKIE cookie = {.as_64 = (DAT_UINT64)i};
    DAT_RMR_CONTEXT context;
    DAT_EVENT event;
    DAT_RETURN code;
    OK(dat_rmr_bind(rmr, lmr, &part, DAT_MEM_PRIV_REMOTE_WRITE_FLAG, DAT_VA_TYPE_VA, owner.ep, cookie, DAT_COMPLETION_DEFAULT_FLAG, &context));
    while (DAT_GET_TYPE(code = dat_evd_dequeue(owner.evd, &event)) == DAT_QUEUE_EMPTY) {
    }
    CHECK(code == DAT_SUCCESS && event.event_data.rmr_completion_event_data.status == DAT_DTO_SUCCESS);
  }
  return (now() - begun) / count;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void report(const char *name, double *rounds) {
  qsort(rounds, ROUNDS, sizeof *rounds, by_value);
  printf("%-14s %6.0f ns (%.0f to %.0f)\n", name, rounds[ROUNDS / 2], rounds[0], rounds[ROUNDS - 1]);
}

int main(int argc, char **argv) {
  int count = argc > 1 ? atoi(argv[1]) : 200000;
  DAT_REGION_DESCRIPTION at = {.for_va = memory};
  DAT_RMR_CONTEXT remote;
  DAT_VLEN len;
  DAT_VADDR address;
  double verbs[ROUNDS], dat[ROUNDS];
  verbs_open();
  dat_open(&owner);
  dat_open(&peer);
  dat_connect();
  OK(dat_lmr_create(owner.ia, DAT_MEM_TYPE_VIRTUAL, at, sizeof memory, owner.pz, DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG, DAT_VA_TYPE_VA, &lmr, &local, &remote, &len, &address));
  OK(dat_rmr_create(owner.pz, &rmr));
  verbs_binds(count / 10);
  dat_binds(count / 10);
  for (int i = 0; i < ROUNDS; i++) {
    verbs[i] = verbs_binds(count);
    dat[i] = dat_binds(count);
  }
  report("ibv_bind_mw", verbs);
  report("dat_rmr_bind", dat);
  return 0;
}
