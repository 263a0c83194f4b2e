/* Two processes that use verbs, libfabric and uDAPL at once. The owner registers memory through each of them; its peer names each
   key over each kind of connection. Arguments: the connection and the key ("all" stands for every one), and the outcome. With
   FI_RKEY_MR_MODE=NONE, programs choose the keys of libfabric. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "world.h"

#define PAGE 4096
#define LEN 64

enum { VERBS, FABRIC, DAT, PATHS };
enum { VERBS_KEY, FABRIC_KEY, LMR_KEY, RMR_KEY, KEYS };
static const char *const paths[] = {"verbs", "libfabric", "uDAPL"};
static const char *const keys[] = {"rkey", "fi_mr_key", "LMR", "RMR"};
static const int api_of[] = {VERBS, FABRIC, DAT, DAT};

/* The data that the owner sends its peer. */
struct offer {
  uint32_t qpn;
  DAT_CONN_QUAL qual;
  size_t name_len;
  char name[128];
  uint64_t key[KEYS], at[KEYS];
};

/* The data that the peer sends the owner. */
struct reply {
  uint32_t qpn;
};

static _Alignas(PAGE) unsigned char memory[2][PAGE], buffer[PAGE];
static int line_to;

static void tell(const void *what, size_t len) { CHECK(write(line_to, what, len) == (ssize_t)len); }
static void hear(void *what, size_t len) { CHECK(read(line_to, what, len) == (ssize_t)len); }

/* ---- verbs ---- */

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *verbs_local;

static void verbs_begin(void) {
  struct ibv_device **list = ibv_get_device_list(NULL);
  CHECK(list);
  struct ibv_context *context = ibv_open_device(list[0]);
  CHECK(context && (pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
  struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {16, 16, 1, 1, 0}};
  CHECK((qp = ibv_create_qp(pd, &init)));
  CHECK((verbs_local = ibv_reg_mr(pd, buffer, PAGE, IBV_ACCESS_LOCAL_WRITE)));
}

static void verbs_connect(uint32_t to) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
  CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
  attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = to, .max_dest_rd_atomic = 1, .min_rnr_timer = 12};
  attr.ah_attr.port_num = 1;
  CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
  attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
  CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static int verbs_rdma(enum direction direction, uint64_t key, uint64_t at) {
  struct ibv_sge sge = {(uint64_t)(uintptr_t)buffer, LEN, verbs_local->lkey};
  struct ibv_send_wr wr = {.opcode = direction == WRITE ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, .sg_list = &sge, .num_sge = 1, .wr.rdma = {at, (uint32_t)key}};
  struct ibv_send_wr *bad;
  struct ibv_wc wc;
  wr.send_flags = IBV_SEND_SIGNALED;
  CHECK(!ibv_post_send(qp, &wr, &bad));
  while (ibv_poll_cq(cq, 1, &wc) == 0) {
  }
  CHECK(wc.status == IBV_WC_SUCCESS || wc.status == IBV_WC_REM_ACCESS_ERR);
  return wc.status == IBV_WC_SUCCESS;
}

/* ---- libfabric ---- */

static struct fid_domain *domain;
static struct fid_cq *fi_queue;
static struct fid_av *av;
static struct fid_ep *fi_ep;
static fi_addr_t owner;

static int chooses_keys(void) { return !strcmp(getenv("FI_RKEY_MR_MODE"), "NONE"); }

static void fi_begin(void) {
  struct fi_info *hints = fi_allocinfo(), *info;
  struct fid_fabric *fabric;
  hints->fabric_attr->prov_name = strdup("rkey");
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = FI_MSG | FI_RMA;
  hints->domain_attr->mr_mode = chooses_keys() ? 0 : FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
  CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info) == 0);
  CHECK(fi_fabric(info->fabric_attr, &fabric, NULL) == 0 && fi_domain(fabric, info, &domain, NULL) == 0);
  struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
  struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_CONTEXT, .size = 64};
  CHECK(fi_av_open(domain, &av_attr, &av, NULL) == 0 && fi_cq_open(domain, &cq_attr, &fi_queue, NULL) == 0);
  CHECK(fi_endpoint(domain, info, &fi_ep, NULL) == 0);
  CHECK(fi_ep_bind(fi_ep, &av->fid, 0) == 0 && fi_ep_bind(fi_ep, &fi_queue->fid, FI_TRANSMIT | FI_RECV) == 0);
  CHECK(fi_enable(fi_ep) == 0);
  fi_freeinfo(info);
  fi_freeinfo(hints);
}

static int fi_rdma(enum direction direction, uint64_t key, uint64_t at) {
  struct fi_cq_entry entry;
  struct fi_cq_err_entry error = {0};
  ssize_t code;
  do {
    code = direction == WRITE ? fi_write(fi_ep, buffer, LEN, NULL, owner, at, key, NULL) : fi_read(fi_ep, buffer, LEN, NULL, owner, at, key, NULL);
    if (code == -FI_EAGAIN) fi_cq_read(fi_queue, NULL, 0);
  } while (code == -FI_EAGAIN);
  CHECK(code == 0);
  while ((code = fi_cq_read(fi_queue, &entry, 1)) == -FI_EAGAIN) {
  }
  if (code == 1) return 1;
  CHECK(code == -FI_EAVAIL && fi_cq_readerr(fi_queue, &error, 0) == 1 && error.err == FI_ENOKEY);
  return 0;
}

/* ---- uDAPL ---- */

static struct side side;
static struct memory lmr, dat_local;

static int dat_rdma(enum direction direction, uint64_t key, uint64_t at) {
  memcpy(dat_local.bytes, buffer, LEN);
  OK(post_rdma(&side, direction, &dat_local, LEN, (DAT_RMR_CONTEXT)key, (void *)(uintptr_t)at, 5));
  DAT_DTO_COMPLETION_STATUS status = done(side.request, 5, __LINE__);
  memcpy(buffer, dat_local.bytes, LEN);
  CHECK(status == DAT_DTO_SUCCESS || status == DAT_DTO_ERR_REMOTE_ACCESS);
  return status == DAT_DTO_SUCCESS;
}

/* ---- the two sides ---- */

static void be_owner(pid_t peer) {
  struct offer offer = {0};
  struct reply reply;
  offer.qpn = qp->qp_num;
  offer.name_len = sizeof offer.name;
  CHECK(fi_getname(&fi_ep->fid, offer.name, &offer.name_len) == 0);
  DAT_PSP_HANDLE psp;
  OK(dat_psp_create_any(side.ia, &offer.qual, side.cr, DAT_PSP_CONSUMER_FLAG, &psp));
  struct ibv_mr *mr = ibv_reg_mr(pd, memory[0], PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
  struct fid_mr *fi_mr;
  CHECK(mr && fi_mr_reg(domain, memory[1], PAGE, FI_REMOTE_WRITE | FI_REMOTE_READ, 0, 0, 0, &fi_mr, NULL) == 0);
  remember(&side, &lmr, 2 * PAGE, DAT_MEM_PRIV_ALL_FLAG);
  offer.at[VERBS_KEY] = (uintptr_t)memory[0];
  offer.at[FABRIC_KEY] = chooses_keys() ? 0 : (uintptr_t)memory[1];
  offer.at[LMR_KEY] = (uintptr_t)lmr.bytes;
  offer.at[RMR_KEY] = (uintptr_t)lmr.bytes + PAGE;
  offer.key[VERBS_KEY] = mr->rkey;
  offer.key[FABRIC_KEY] = fi_mr_key(fi_mr);
  offer.key[LMR_KEY] = lmr.remote;
  tell(&offer, sizeof offer);
  hear(&reply, sizeof reply);
  verbs_connect(reply.qpn);
  DAT_EVENT request = EVENT(side.cr, DAT_CONNECTION_REQUEST_EVENT);
  OK(dat_cr_accept(request.event_data.cr_arrival_event_data.cr_handle, side.ep, 0, NULL));
  EVENT(side.connect, DAT_CONNECTION_EVENT_ESTABLISHED);
  /* A bind needs a connected EP. */
  DAT_RMR_HANDLE rmr;
  OK(dat_rmr_create(side.pz, &rmr));
  uint64_t context = window(&side, rmr, &lmr, PAGE, LEN, DAT_MEM_PRIV_REMOTE_WRITE_FLAG | DAT_MEM_PRIV_REMOTE_READ_FLAG);
  tell(&context, sizeof context);
  /* Makes progress until the peer exits. */
  int status;
  while (waitpid(peer, &status, WNOHANG) == 0) fi_cq_read(fi_queue, NULL, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void access_memory(const struct offer *offer, int path, int key, int allowed) {
  static int (*const rdma_of[])(enum direction, uint64_t, uint64_t) = {verbs_rdma, fi_rdma, dat_rdma};
  static unsigned char pattern;
  int same = api_of[key] == path;
  memset(buffer, ++pattern, LEN);
  int result = rdma_of[path](WRITE, offer->key[key], offer->at[key]);
  if (result != (allowed || same)) fail(__LINE__, paths[path], keys[key]);
  if (!result) return;
  memset(buffer, 0, LEN);
  CHECK(rdma_of[path](READ, offer->key[key], offer->at[key]));
  for (int i = 0; i < LEN; i++) CHECK(buffer[i] == pattern);
}

static void be_peer(const char *path_name, const char *key_name, int allowed) {
  struct offer offer;
  struct reply reply = {qp->qp_num};
  hear(&offer, sizeof offer);
  CHECK(fi_av_insert(av, offer.name, 1, &owner, 0, NULL) == 1);
  verbs_connect(offer.qpn);
  tell(&reply, sizeof reply);
  remember(&side, &dat_local, PAGE, DAT_MEM_PRIV_ALL_FLAG);
  OK(dat_ep_connect(side.ep, address_of(&side), offer.qual, LONG, 0, NULL, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
  EVENT(side.connect, DAT_CONNECTION_EVENT_ESTABLISHED);
  hear(&offer.key[RMR_KEY], sizeof offer.key[RMR_KEY]);
  for (int path = 0; path < PATHS; path++)
    for (int key = 0; key < KEYS; key++)
      if ((!strcmp(path_name, "all") || !strcmp(path_name, paths[path])) && (!strcmp(key_name, "all") || !strcmp(key_name, keys[key])))
        access_memory(&offer, path, key, allowed);
}

int main(int argc, char **argv) {
  int line[2];
  CHECK(argc == 4 && socketpair(AF_UNIX, SOCK_SEQPACKET, 0, line) == 0);
  pid_t peer = fork();
  CHECK(peer >= 0);
  line_to = line[peer == 0];
  /* The two processes open the front ends in different orders. */
  if (peer) {
    verbs_begin();
    fi_begin();
    open_side(&side, DAT_COMPLETION_DEFAULT_FLAG);
    be_owner(peer);
    printf("done\n");
  } else {
    open_side(&side, DAT_COMPLETION_DEFAULT_FLAG);
    fi_begin();
    verbs_begin();
    be_peer(argv[1], argv[2], !strcmp(argv[3], "allowed"));
  }
  return 0;
}
