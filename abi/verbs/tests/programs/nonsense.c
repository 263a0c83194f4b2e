/* Repeated calls with arguments that no sane program passes: each call must return success or an error number.
   Nothing may crash, and older objects must still work in the end. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 88172645463325252ull;
static uint64_t rnd(void) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}
/* The numbers are mostly small, sometimes absurd. */
static uint64_t odd(void) {
  switch (rnd() % 4) {
  case 0: return rnd() % 4;
  case 1: return rnd() % 70000;
  case 2: return 1ull << (rnd() % 64);
  default: return rnd();
  }
}
static void scramble(void *at, size_t len) {
  for (size_t i = 0; i < len; i++) ((char *)at)[i] = (char)(rnd() % 3 ? 0 : rnd());
}
static void check(const char *call, int code) {
  if (code < 0 || code > 4095) {
    printf("%s answered %d\n", call, code);
    exit(1);
  }
}

static char memory[1 << 16];

int main(void) {
  struct ibv_device **list = ibv_get_device_list(NULL);
  struct ibv_context *context = ibv_open_device(list[0]);
  struct ibv_pd *pd = ibv_alloc_pd(context);
  struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0);
  if (!pd || !cq) return 1;

  for (int i = 0; i < 3000; i++) {
    uint64_t length = odd(), access = odd();
    if (length > sizeof memory) length = rnd() % 2 ? length : sizeof memory;
    struct ibv_mr *mr = ibv_reg_mr_iova2(pd, rnd() % 9 ? memory : NULL, length, odd(), access);
    if (mr) check("ibv_dereg_mr", ibv_dereg_mr(mr));
    else if (!errno) return printf("ibv_reg_mr failed without setting errno\n"), 1;
  }
  for (int i = 0; i < 300; i++) {
    uint64_t depth = odd();
    if ((int)depth > 100000) depth = 1 << 30;
    struct ibv_cq *other = ibv_create_cq(context, (int)depth, NULL, NULL, (int)odd());
    if (other) check("ibv_destroy_cq", ibv_destroy_cq(other));
    check("ibv_resize_cq", ibv_resize_cq(cq, rnd() % 3 ? 64 : -(int)(rnd() % 9)));
  }
  for (int i = 0; i < 1000; i++) {
    struct ibv_ah_attr attr;
    scramble(&attr, sizeof attr);
    if (rnd() % 2) attr.port_num = 1;
    struct ibv_ah *ah = ibv_create_ah(pd, &attr);
    if (ah) check("ibv_destroy_ah", ibv_destroy_ah(ah));
    struct ibv_port_attr port;
    check("ibv_query_port", ibv_query_port(context, (uint8_t)odd(), &port));
    union ibv_gid gid;
    ibv_query_gid(context, (uint8_t)odd(), (int)odd(), &gid);
    uint16_t pkey;
    ibv_query_pkey(context, (uint8_t)odd(), (int)odd(), &pkey);
    ibv_wc_status_str((enum ibv_wc_status)odd());
    ibv_event_type_str((enum ibv_event_type)odd());
    ibv_node_type_str((enum ibv_node_type)odd());
    ibv_port_state_str((enum ibv_port_state)odd());
  }
  struct ibv_device_attr device;
  check("ibv_query_device", ibv_query_device(context, &device));
  if (device.max_sge > 64) return printf("the lists here are too short\n"), 1;
  static const int types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_RAW_PACKET, 0, 77};
  int made = 0;
  for (int i = 0; i < 400; i++) {
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = types[rnd() % 6]};
    init.cap = (struct ibv_qp_cap){odd(), odd(), odd(), odd(), odd()};
    if (rnd() % 2) init.cap = (struct ibv_qp_cap){4, 4, 1, 1, 16};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    if (!qp) {
      if (!errno) return printf("ibv_create_qp failed without setting errno\n"), 1;
      continue;
    }
    made++;
    for (int step = 0; step < 60; step++) {
      struct ibv_qp_attr attr;
      scramble(&attr, sizeof attr);
      attr.qp_state = rnd() % 9;
      if (rnd() % 2) attr.port_num = attr.ah_attr.port_num = 1, attr.pkey_index = 0;
      if (rnd() % 2) attr.path_mtu = IBV_MTU_1024, attr.qp_access_flags = rnd() % 16;
      /* Sometimes exactly the required attributes, to reach later states. */
      static const int masks[] = {
          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
          IBV_QP_STATE | IBV_QP_SQ_PSN, IBV_QP_STATE};
      int mask = rnd() % 2 ? masks[rnd() % 5] : (int)(rnd() & 0x1fffff);
      check("ibv_modify_qp", ibv_modify_qp(qp, &attr, rnd() % 50 ? mask : (int)odd()));
      struct ibv_qp_init_attr back;
      check("ibv_query_qp", ibv_query_qp(qp, &attr, (int)odd(), &back));
      struct ibv_sge list[64];
      for (int of = 0; of < 64; of++)
        list[of] = (struct ibv_sge){(uintptr_t)(rnd() % 2 ? memory : NULL), (uint32_t)odd(), (uint32_t)odd()};
      struct ibv_send_wr send, *bad_send;
      scramble(&send, sizeof send);
      send.next = NULL;
      send.sg_list = rnd() % 8 ? list : NULL;
      /* As many as the list has, or absurd: negative, or more than any queue pair takes. */
      static const int counts[] = {0, 2, 64, -1, -2, 65, 100, 70000, 1 << 28, INT_MAX, INT_MIN};
      send.num_sge = rnd() % 4 ? 1 : counts[rnd() % 11];
      send.opcode = rnd() % 20;
      send.send_flags = rnd() % 64;
      send.wr.ud.ah = NULL;
      send.bind_mw.mw = NULL;
      send.bind_mw.bind_info.mr = NULL;
      check("ibv_post_send", ibv_post_send(qp, &send, &bad_send));
      struct ibv_recv_wr recv = {.sg_list = send.sg_list, .num_sge = send.num_sge}, *bad_recv;
      check("ibv_post_recv", ibv_post_recv(qp, &recv, &bad_recv));
      struct ibv_wc wc[8];
      ibv_poll_cq(cq, 8, wc);
    }
    check("ibv_destroy_qp", ibv_destroy_qp(qp));
  }
  if (!made) return printf("no queue pair was created\n"), 1;

  /* Destroyed objects. */
  struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, 0);
  if (!mr || ibv_dereg_mr(mr)) return printf("the domain no longer works\n"), 1;
  if (!ibv_dereg_mr(mr)) return printf("a region was deregistered twice\n"), 1;
  struct ibv_cq *late = ibv_create_cq(context, 4, NULL, NULL, 0);
  if (!late || ibv_destroy_cq(late) || !ibv_destroy_cq(late)) return printf("a queue was destroyed twice\n"), 1;
  if (ibv_destroy_cq(cq) || ibv_dealloc_pd(pd)) return printf("the completion queue or the domain is still in use\n"), 1;
  if (!ibv_dealloc_pd(pd)) return printf("a domain was deallocated twice\n"), 1;
  if (ibv_close_device(context)) return 1;
  ibv_free_device_list(list);
  ibv_free_device_list(list);
  printf("done\n");
  return 0;
}
