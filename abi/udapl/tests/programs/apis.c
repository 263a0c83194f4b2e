/* The same request through each of the three APIs, in one process. Where the APIs differ, each follows its own rules. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <sys/wait.h>

#include "world.h"

#define PAGE 4096
static _Alignas(PAGE) unsigned char verbs_memory[PAGE], verbs_buffer[PAGE], fi_memory[PAGE], fi_buffer[PAGE];

/* ---- verbs: two queue pairs that are connected to each other ---- */

static struct {
  struct ibv_context *context;
  struct ibv_pd *pd;
  struct ibv_cq *cq;
  struct ibv_qp *peer, *owner;
} v;

static struct ibv_qp *verbs_qp(void) {
  struct ibv_qp_init_attr init = {.send_cq = v.cq, .recv_cq = v.cq, .qp_type = IBV_QPT_RC, .cap = {16, 16, 1, 1, 0}};
  struct ibv_qp *qp = ibv_create_qp(v.pd, &init);
  CHECK(qp);
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = 0xe};
  CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
  return qp;
}

static void verbs_connect(struct ibv_qp *qp, struct ibv_qp *to) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = to->qp_num, .max_dest_rd_atomic = 1, .min_rnr_timer = 12};
  attr.ah_attr.port_num = 1;
  CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
  attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
  CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void verbs_again(void) {
  if (v.peer) CHECK(!ibv_destroy_qp(v.peer) && !ibv_destroy_qp(v.owner));
  v.peer = verbs_qp();
  v.owner = verbs_qp();
  verbs_connect(v.peer, v.owner);
  verbs_connect(v.owner, v.peer);
}

static void verbs_begin(void) {
  int count;
  struct ibv_device **list = ibv_get_device_list(&count);
  CHECK(list && count > 0);
  v.context = ibv_open_device(list[0]);
  CHECK(v.context);
  v.pd = ibv_alloc_pd(v.context);
  v.cq = ibv_create_cq(v.context, 64, NULL, NULL, 0);
  CHECK(v.pd && v.cq);
  verbs_again();
}

static enum ibv_wc_status verbs_post(struct ibv_send_wr *wr) {
  struct ibv_send_wr *bad;
  struct ibv_wc wc;
  wr->send_flags = IBV_SEND_SIGNALED;
  CHECK(!ibv_post_send(v.peer, wr, &bad));
  while (ibv_poll_cq(v.cq, 1, &wc) == 0) {
  }
  return wc.status;
}

static enum ibv_wc_status verbs_write(struct ibv_mr *from, uint32_t rkey, uint64_t at) {
  struct ibv_sge sge = {(uint64_t)(uintptr_t)from->addr, 64, from->lkey};
  struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1, .wr.rdma = {at, rkey}};
  return verbs_post(&wr);
}

static enum ibv_wc_status verbs_add(struct ibv_mr *result, uint32_t rkey, uint64_t at) {
  struct ibv_sge sge = {(uint64_t)(uintptr_t)result->addr, 8, result->lkey};
  struct ibv_send_wr wr = {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .sg_list = &sge, .num_sge = 1, .wr.atomic = {at, 1, 0, rkey}};
  return verbs_post(&wr);
}

static struct ibv_mr *verbs_reg(void *at, int access) {
  struct ibv_mr *mr = ibv_reg_mr(v.pd, at, PAGE, access);
  CHECK(mr);
  return mr;
}

/* ---- libfabric: an endpoint that writes to itself ---- */

static struct {
  struct fi_info *info;
  struct fid_fabric *fabric;
  struct fid_domain *domain;
  struct fid_av *av;
  struct fid_cq *cq;
  struct fid_ep *ep;
  fi_addr_t self;
} f;

static void fi_begin(int mr_mode) {
  /* By default our provider requires no mode bits; this makes it require some. */
  setenv("FI_RKEY_MR_MODE", mr_mode == FI_MR_LOCAL ? "LOCAL" : mr_mode == FI_MR_VIRT_ADDR ? "VIRT_ADDR" : "NONE", 1);
  struct fi_info *hints = fi_allocinfo();
  hints->fabric_attr->prov_name = strdup("rkey");
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = FI_MSG | FI_RMA | FI_ATOMIC;
  hints->domain_attr->mr_mode = mr_mode;
  CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &f.info) == 0);
  CHECK(f.info->domain_attr->mr_mode == mr_mode);
  CHECK(fi_fabric(f.info->fabric_attr, &f.fabric, NULL) == 0);
  CHECK(fi_domain(f.fabric, f.info, &f.domain, NULL) == 0);
  struct fi_av_attr av = {.type = FI_AV_TABLE};
  struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_CONTEXT, .size = 64};
  CHECK(fi_av_open(f.domain, &av, &f.av, NULL) == 0);
  CHECK(fi_cq_open(f.domain, &cq, &f.cq, NULL) == 0);
  CHECK(fi_endpoint(f.domain, f.info, &f.ep, NULL) == 0);
  CHECK(fi_ep_bind(f.ep, &f.av->fid, 0) == 0 && fi_ep_bind(f.ep, &f.cq->fid, FI_TRANSMIT | FI_RECV) == 0);
  CHECK(fi_enable(f.ep) == 0);
  char name[256];
  size_t len = sizeof name;
  CHECK(fi_getname(&f.ep->fid, name, &len) == 0);
  CHECK(fi_av_insert(f.av, name, 1, &f.self, 0, NULL) == 1);
  fi_freeinfo(hints);
}

static struct fid_mr *fi_reg(void *at, uint64_t access, uint64_t key) {
  struct fid_mr *mr;
  CHECK(fi_mr_reg(f.domain, at, PAGE, access, 0, key, 0, &mr, NULL) == 0);
  return mr;
}

/* The result of what was posted: 0, or an error number. */
static int fi_result(void) {
  struct fi_cq_entry entry;
  struct fi_cq_err_entry error = {0};
  for (;;) {
    ssize_t got = fi_cq_read(f.cq, &entry, 1);
    if (got == 1) return 0;
    if (got == -FI_EAGAIN) continue;
    CHECK(got == -FI_EAVAIL && fi_cq_readerr(f.cq, &error, 0) == 1);
    return error.err;
  }
}

static int fi_write64(struct fid_mr *from, uint64_t key, uint64_t at) {
  ssize_t code;
  while ((code = fi_write(f.ep, fi_buffer, 64, from ? fi_mr_desc(from) : NULL, f.self, at, key, NULL)) == -FI_EAGAIN) fi_cq_read(f.cq, NULL, 0);
  return code ? (int)-code : fi_result();
}

static int fi_add(uint64_t key, uint64_t at) {
  static uint64_t one = 1;
  ssize_t code;
  while ((code = fi_atomic(f.ep, &one, 1, NULL, f.self, at, key, FI_UINT64, FI_SUM, NULL)) == -FI_EAGAIN) fi_cq_read(f.cq, NULL, 0);
  return code ? (int)-code : fi_result();
}

/* ---- uDAPL ---- */

static struct world world;
static struct memory shared, buffer;
#define LOCAL (DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG)

static void dat_begin(void) {
  open_world(&world, DAT_COMPLETION_DEFAULT_FLAG);
  remember(&world.owner, &shared, PAGE, DAT_MEM_PRIV_ALL_FLAG);
  remember(&world.peer, &buffer, PAGE, LOCAL);
}

static void begin(void) {
  verbs_begin();
  fi_begin(0);
  dat_begin();
}

/* ---- the checks ---- */

static void remote_write_without_local_write_follows_each_apis_rule(void) {
  begin();
  errno = 0;
  CHECK(!ibv_reg_mr(v.pd, verbs_memory, PAGE, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
  struct fid_mr *mr = fi_reg(fi_memory, FI_REMOTE_WRITE, 1);
  CHECK(fi_write64(NULL, fi_mr_key(mr), 0) == 0);
  struct memory only;
  remember(&world.owner, &only, PAGE, DAT_MEM_PRIV_REMOTE_WRITE_FLAG);
  ALLOWED(&world, WRITE, &buffer, 64, only.remote, only.bytes);
  DAT_RMR_HANDLE rmr;
  DAT_RMR_CONTEXT context;
  OK(dat_rmr_create(world.owner.pz, &rmr));
  FAILS(DAT_PRIVILEGES_VIOLATION, bind_part(&world.owner, rmr, &only, 0, 64, DAT_MEM_PRIV_REMOTE_WRITE_FLAG, 1, 0, &context));
}

static void local_read_follows_each_apis_rule(void) {
  verbs_begin();
  dat_begin();
  fi_begin(FI_MR_LOCAL);
  /* Verbs: every region allows it. */
  struct ibv_mr *bare = verbs_reg(verbs_buffer, 0);
  struct ibv_mr *target = verbs_reg(verbs_memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  CHECK(verbs_write(bare, target->rkey, (uint64_t)(uintptr_t)verbs_memory) == IBV_WC_SUCCESS);
  /* Libfabric: the source of a write needs FI_WRITE. */
  struct fid_mr *mr = fi_reg(fi_memory, FI_REMOTE_WRITE, 1), *no = fi_reg(fi_buffer, FI_RECV, 2), *yes = fi_reg(fi_buffer, FI_WRITE, 3);
  CHECK(fi_write64(yes, fi_mr_key(mr), 0) == 0);
  CHECK(fi_write64(no, fi_mr_key(mr), 0) != 0);
  /* uDAPL: a bind for remote reads needs DAT_MEM_PRIV_LOCAL_READ_FLAG. */
  struct memory writable;
  remember(&world.owner, &writable, PAGE, DAT_MEM_PRIV_LOCAL_WRITE_FLAG);
  DAT_RMR_HANDLE rmr;
  DAT_RMR_CONTEXT context;
  OK(dat_rmr_create(world.owner.pz, &rmr));
  FAILS(DAT_PRIVILEGES_VIOLATION, bind_part(&world.owner, rmr, &writable, 0, 64, DAT_MEM_PRIV_REMOTE_READ_FLAG, 1, 0, &context));
  window(&world.owner, rmr, &shared, 0, 64, DAT_MEM_PRIV_REMOTE_READ_FLAG);
}

static void addresses_follow_each_apis_rule(void) {
  begin();
  struct ibv_mr *from = verbs_reg(verbs_buffer, 0);
  struct ibv_mr *target = verbs_reg(verbs_memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  CHECK(verbs_write(from, target->rkey, (uint64_t)(uintptr_t)verbs_memory) == IBV_WC_SUCCESS);
  CHECK(verbs_write(from, target->rkey, 0) == IBV_WC_REM_ACCESS_ERR);
  struct fid_mr *mr = fi_reg(fi_memory, FI_REMOTE_WRITE, 1);
  CHECK(fi_write64(NULL, fi_mr_key(mr), 0) == 0);
  CHECK(fi_write64(NULL, fi_mr_key(mr), (uint64_t)(uintptr_t)fi_memory) != 0);
  ALLOWED(&world, WRITE, &buffer, 64, shared.remote, shared.bytes);
  REFUSED(&world, WRITE, &buffer, 64, shared.remote, NULL);
}

/* Libfabric with FI_MR_VIRT_ADDR. */
static void libfabric_uses_virtual_addresses_by_mode(void) {
  fi_begin(FI_MR_VIRT_ADDR);
  struct fid_mr *mr = fi_reg(fi_memory, FI_REMOTE_WRITE, 1);
  CHECK(fi_write64(NULL, fi_mr_key(mr), (uint64_t)(uintptr_t)fi_memory) == 0);
  CHECK(fi_write64(NULL, fi_mr_key(mr), 0) != 0);
}

static void keys_follow_each_apis_rule(void) {
  begin();
  struct fid_mr *mr = fi_reg(fi_memory, FI_REMOTE_WRITE, 0x1122334455667788);
  CHECK(fi_mr_key(mr) == 0x1122334455667788);
  CHECK(fi_write64(NULL, 0x1122334455667788, 0) == 0);
  struct ibv_mr *target = verbs_reg(verbs_memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  CHECK(sizeof target->rkey == 4 && target->lkey != target->rkey);
  CHECK(sizeof shared.remote == 4 && shared.local != shared.remote);
  DAT_RMR_HANDLE rmr;
  OK(dat_rmr_create(world.owner.pz, &rmr));
  DAT_RMR_CONTEXT first = window(&world.owner, rmr, &shared, 0, 64, DAT_MEM_PRIV_REMOTE_WRITE_FLAG);
  DAT_RMR_CONTEXT second = window(&world.owner, rmr, &shared, 0, 64, DAT_MEM_PRIV_REMOTE_WRITE_FLAG);
  CHECK(first != second);
  /* Keys of another API or device are refused. */
  struct ibv_mr *from = verbs_reg(verbs_buffer, 0);
  CHECK(verbs_write(from, second, (uint64_t)(uintptr_t)shared.bytes) == IBV_WC_REM_ACCESS_ERR);
  CHECK(fi_write64(NULL, target->rkey, 0) != 0);
  REFUSED(&world, WRITE, &buffer, 64, target->rkey, verbs_memory);
}

static void atomic_rights_follow_each_apis_rule(void) {
  begin();
  struct fid_mr *mr = fi_reg(fi_memory, FI_REMOTE_WRITE, 1);
  CHECK(fi_add(fi_mr_key(mr), 0) == 0);
  struct ibv_mr *result = verbs_reg(verbs_buffer, IBV_ACCESS_LOCAL_WRITE);
  struct ibv_mr *target = verbs_reg(verbs_memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  CHECK(verbs_add(result, target->rkey, (uint64_t)(uintptr_t)verbs_memory) == IBV_WC_REM_ACCESS_ERR);
  /* DAT itself has no atomics; the extension has a privilege, which DAT_MEM_PRIV_ALL_FLAG does not include. */
  CHECK(!(DAT_MEM_PRIV_ALL_FLAG & DAT_IB_MEM_PRIV_REMOTE_ATOMIC));
}

static void objects_in_use_are_refused_as_each_api_says(void) {
  begin();
  struct fid_mr *mr = fi_reg(fi_memory, FI_REMOTE_WRITE, 1);
  CHECK(fi_close(&f.domain->fid) == -FI_EBUSY);
  CHECK(fi_close(&mr->fid) == 0);
  struct ibv_mr *target = verbs_reg(verbs_memory, IBV_ACCESS_LOCAL_WRITE);
  CHECK(ibv_dealloc_pd(v.pd) == EBUSY);
  CHECK(ibv_dereg_mr(target) == 0);
  DAT_RMR_HANDLE rmr;
  OK(dat_rmr_create(world.owner.pz, &rmr));
  window(&world.owner, rmr, &shared, 0, 64, DAT_MEM_PRIV_REMOTE_WRITE_FLAG);
  FAILS(DAT_INVALID_STATE, dat_lmr_free(shared.lmr));
}

static void a_refusal_affects_the_connection_as_each_api_says(void) {
  begin();
  /* Libfabric: the endpoint keeps working. */
  struct fid_mr *mr = fi_reg(fi_memory, FI_REMOTE_WRITE, 1);
  CHECK(fi_write64(NULL, 999, 0) != 0);
  CHECK(fi_write64(NULL, fi_mr_key(mr), 0) == 0);
  /* Verbs: the queue pair is in error. */
  struct ibv_mr *from = verbs_reg(verbs_buffer, 0);
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  CHECK(verbs_write(from, 0x12345, 0) == IBV_WC_REM_ACCESS_ERR);
  CHECK(!ibv_query_qp(v.peer, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_ERR);
  struct ibv_mr *target = verbs_reg(verbs_memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  CHECK(verbs_write(from, target->rkey, (uint64_t)(uintptr_t)verbs_memory) == IBV_WC_WR_FLUSH_ERR);
  /* uDAPL: the connection is broken. */
  CHECK(rdma(&world, WRITE, &buffer, 64, 0x12345, shared.bytes) == DAT_DTO_ERR_REMOTE_ACCESS);
  EVENT(world.peer.connect, DAT_CONNECTION_EVENT_BROKEN);
  EVENT(world.owner.connect, DAT_CONNECTION_EVENT_BROKEN);
  CHECK(state_of(world.peer.ep) == DAT_EP_STATE_DISCONNECTED);
}

static void errors_are_reported_in_each_apis_form(void) {
  begin();
  struct fid_mr *mr = fi_reg(fi_memory, FI_REMOTE_WRITE, 1), *other;
  CHECK(fi_mr_reg(f.domain, fi_memory, PAGE, FI_REMOTE_WRITE, 0, 1, 0, &other, NULL) == -FI_ENOKEY);
  CHECK(fi_close(&mr->fid) == 0);
  errno = 0;
  CHECK(!ibv_reg_mr(v.pd, NULL, ~0ull, IBV_ACCESS_LOCAL_WRITE) && errno > 0);
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
  CHECK(ibv_modify_qp(v.peer, &attr, IBV_QP_STATE) > 0);
  DAT_RETURN code = dat_pz_create(world.peer.ia, NULL);
  CHECK((code & 0xc0000000) == 0x80000000 && (code & 0x3fff0000) == DAT_INVALID_PARAMETER);
  CHECK((code & 0xffff) == DAT_INVALID_ARG2);
}

/* A child has none of the parent's devices; it opens its own, which its front ends share. */
static void a_forked_child_opens_a_device_of_its_own(void) {
  verbs_begin();
  fi_begin(0);
  pid_t child = fork();
  if (child == 0) {
    memset(&v, 0, sizeof v);
    verbs_begin();
    dat_begin();
    struct ibv_mr *from = verbs_reg(verbs_buffer, 0);
    struct ibv_mr *target = verbs_reg(verbs_memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    CHECK(verbs_write(from, target->rkey, (uint64_t)(uintptr_t)verbs_memory) == IBV_WC_SUCCESS);
    ALLOWED(&world, WRITE, &buffer, 64, shared.remote, shared.bytes);
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  /* The parent is not affected. */
  struct fid_mr *mr = fi_reg(fi_memory, FI_REMOTE_WRITE, 1);
  CHECK(fi_write64(NULL, fi_mr_key(mr), 0) == 0);
}

#define C(name) {#name, name}
static const struct check checks[] = {
    C(remote_write_without_local_write_follows_each_apis_rule),
    C(local_read_follows_each_apis_rule),
    C(addresses_follow_each_apis_rule),
    C(libfabric_uses_virtual_addresses_by_mode),
    C(keys_follow_each_apis_rule),
    C(atomic_rights_follow_each_apis_rule),
    C(objects_in_use_are_refused_as_each_api_says),
    C(a_refusal_affects_the_connection_as_each_api_says),
    C(errors_are_reported_in_each_apis_form),
    C(a_forked_child_opens_a_device_of_its_own),
    {NULL, NULL},
};

int main(int argc, char **argv) { return run_check(checks, argc, argv); }
