/* Options that this device lacks. Each call returns what its manual page says for such a device, the attributes of the
   device do not offer the option, and nothing else changes. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int wrong;

/* For calls that return an error number. */
static void number(const char *call, int got, int want) {
  if (got != want) printf("%s: %d instead of %d\n", call, got, want), wrong++;
}
/* For calls that return a pointer, and set errno. */
static void pointer(const char *call, void *got, int want) {
  if (got || errno != want) printf("%s: %p, errno %d instead of %d\n", call, got, errno, want), wrong++;
  errno = 0;
}
static void is_zero(const char *what, const void *at, size_t len) {
  for (size_t i = 0; i < len; i++)
    if (((const char *)at)[i]) {
      printf("%s is not zero\n", what);
      wrong++;
      return;
    }
}
#define ZERO(field) is_zero(#field, &(field), sizeof(field))

int main(void) {
  struct ibv_device **list = ibv_get_device_list(NULL);
  struct ibv_context *context = ibv_open_device(list[0]);
  struct ibv_pd *pd = ibv_alloc_pd(context);
  struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
  struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 4, .max_sge = 1}};
  struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
  struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};
  init.cap = (struct ibv_qp_cap){4, 4, 1, 1, 16};
  struct ibv_qp *qp = ibv_create_qp(pd, &init);
  if (!pd || !cq || !srq || !qp) return 1;

  struct ibv_device_attr_ex device;
  number("ibv_query_device_ex", ibv_query_device_ex(context, NULL, &device), 0);
  ZERO(device.tso_caps);
  ZERO(device.packet_pacing_caps);
  ZERO(device.raw_packet_caps);
  ZERO(device.tm_caps);
  ZERO(device.cq_mod_caps);
  ZERO(device.pci_atomic_caps);
  errno = 0;

  /* ibv_query_ece(3), ibv_set_ece(3) */
  struct ibv_ece ece = {.vendor_id = 0x15b3, .options = 1};
  number("ibv_query_ece", ibv_query_ece(qp, &ece), EOPNOTSUPP);
  if (ece.vendor_id != 0x15b3 || ece.options != 1) return printf("ibv_query_ece failed, but changed its output\n"), 1;
  number("ibv_set_ece", ibv_set_ece(qp, &ece), EOPNOTSUPP);
  ece.vendor_id = ece.options = 0;
  number("ibv_set_ece with vendor 0", ibv_set_ece(qp, &ece), EOPNOTSUPP);
  ece.comp_mask = 1;
  number("ibv_set_ece with an unknown field", ibv_set_ece(qp, &ece), EINVAL);
  number("ibv_query_ece of an invalid queue pair", ibv_query_ece((struct ibv_qp *)list, &ece), EINVAL);
  number("ibv_query_ece with a null output", ibv_query_ece(qp, NULL), EINVAL);

  /* ibv_create_counters(3), ibv_attach_counters_point_flow(3), ibv_read_counters(3) */
  struct ibv_counters_init_attr counters_init = {0};
  errno = 0;
  pointer("ibv_create_counters", ibv_create_counters(context, &counters_init), EOPNOTSUPP);
  struct ibv_counters counters = {.context = context};
  struct ibv_counter_attach_attr attach = {.counter_desc = IBV_COUNTER_PACKETS};
  struct ibv_flow flow = {.context = context};
  uint64_t value = 7;
  number("ibv_attach_counters_point_flow", ibv_attach_counters_point_flow(&counters, &attach, &flow), EOPNOTSUPP);
  number("ibv_read_counters", ibv_read_counters(&counters, &value, 1, 0), EOPNOTSUPP);
  number("ibv_destroy_counters", ibv_destroy_counters(&counters), EOPNOTSUPP);
  if (value != 7) return printf("ibv_read_counters failed, but changed its output\n"), 1;

  /* ibv_flow_action_esp(3) */
  struct ibv_flow_action_esp_attr esp = {0};
  pointer("ibv_create_flow_action_esp", ibv_create_flow_action_esp(context, &esp), EOPNOTSUPP);
  struct ibv_flow_action action = {.context = context};
  number("ibv_modify_flow_action_esp", ibv_modify_flow_action_esp(&action, &esp), EOPNOTSUPP);
  number("ibv_destroy_flow_action", ibv_destroy_flow_action(&action), EOPNOTSUPP);

  /* Tag matching: ibv_create_srq_ex(3), ibv_post_srq_ops(3), and the field of a completion. */
  struct ibv_srq_init_attr_ex tm = {.attr = {.max_wr = 4, .max_sge = 1}, .srq_type = IBV_SRQT_TM, .pd = pd, .cq = cq};
  tm.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM;
  tm.tm_cap = (struct ibv_tm_cap){.max_num_tags = 4, .max_ops = 4};
  pointer("ibv_create_srq_ex with tag matching", ibv_create_srq_ex(context, &tm), EOPNOTSUPP);
  struct ibv_ops_wr op = {.opcode = IBV_WR_TAG_SYNC}, *bad_op = NULL;
  number("ibv_post_srq_ops", ibv_post_srq_ops(srq, &op, &bad_op), EOPNOTSUPP);
  if (bad_op != &op) return printf("ibv_post_srq_ops does not return the refused request\n"), 1;
  static const uint64_t fields[] = {IBV_WC_EX_WITH_TM_INFO, IBV_WC_EX_WITH_FLOW_TAG, IBV_WC_EX_WITH_CVLAN, 1ull << 40};
  for (int i = 0; i < 4; i++) {
    struct ibv_cq_init_attr_ex cq_init = {.cqe = 16, .wc_flags = fields[i]};
    pointer("ibv_create_cq_ex", ibv_create_cq_ex(context, &cq_init), EOPNOTSUPP);
  }
  struct ibv_cq_init_attr_ex overrun = {.cqe = 16, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS};
  overrun.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
  pointer("ibv_create_cq_ex with IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN", ibv_create_cq_ex(context, &overrun), EOPNOTSUPP);

  /* ibv_modify_cq(3), ibv_modify_qp_rate_limit(3) */
  struct ibv_modify_cq_attr moderation = {.attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = {1, 1}};
  number("ibv_modify_cq", ibv_modify_cq(cq, &moderation), EOPNOTSUPP);
  number("ibv_modify_cq with null attributes", ibv_modify_cq(cq, NULL), EINVAL);
  struct ibv_qp_rate_limit_attr rate = {.rate_limit = 1000};
  number("ibv_modify_qp_rate_limit", ibv_modify_qp_rate_limit(qp, &rate), EOPNOTSUPP);

  /* ibv_create_qp_ex(3) */
  struct ibv_qp_init_attr_ex ex = {.send_cq = cq, .recv_cq = cq, .cap = init.cap, .qp_type = IBV_QPT_RC, .pd = pd};
  static const uint32_t masks[] = {IBV_QP_INIT_ATTR_MAX_TSO_HEADER, IBV_QP_INIT_ATTR_CREATE_FLAGS, 1u << 20};
  ex.max_tso_header = 64;
  ex.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
  for (int i = 0; i < 3; i++) {
    ex.comp_mask = IBV_QP_INIT_ATTR_PD | masks[i];
    pointer("ibv_create_qp_ex", ibv_create_qp_ex(context, &ex), EOPNOTSUPP);
  }
  ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  ex.send_ops_flags = IBV_QP_EX_WITH_TSO;
  pointer("ibv_create_qp_ex with IBV_QP_EX_WITH_TSO", ibv_create_qp_ex(context, &ex), EOPNOTSUPP);
  ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
  ex.create_flags = 0;
  ex.qp_type = IBV_QPT_DRIVER;
  pointer("ibv_create_qp_ex with IBV_QPT_DRIVER", ibv_create_qp_ex(context, &ex), EOPNOTSUPP);

  /* The failed calls have not left any objects behind. */
  number("ibv_destroy_qp", ibv_destroy_qp(qp), 0);
  number("ibv_destroy_srq", ibv_destroy_srq(srq), 0);
  number("ibv_destroy_cq", ibv_destroy_cq(cq), 0);
  number("ibv_dealloc_pd", ibv_dealloc_pd(pd), 0);
  number("ibv_close_device", ibv_close_device(context), 0);
  ibv_free_device_list(list);
  if (wrong) return 1;
  printf("done\n");
  return 0;
}
