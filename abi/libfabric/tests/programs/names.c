/* Prints the names of flags, values and structures. The test compares the output of our library with that of the system's libfabric. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stdio.h>
#include <string.h>

static void flags(enum fi_type type)
{
	for (int bit = 0; bit < 64; bit++) {
		uint64_t flag = 1ull << bit;
		const char *name = fi_tostr(&flag, type);
		/* A library may lack names of others. */
		if (*name)
			printf("type %d, bit %d: %s\n", type, bit, name);
	}
}

static void values(enum fi_type type)
{
	for (uint64_t value = 0; value < 40; value++) {
		char buffer[64];
		const char *name = fi_tostr_r(buffer, sizeof buffer, &value, type);
		if (strcmp(name, "Unknown") && strcmp(name, "Unknown type"))
			printf("type %d, value %lu: %s\n", type, (unsigned long)value, name);
	}
}

static void structures(void)
{
	struct fi_info *info = fi_allocinfo();
	struct sockaddr_in six = {.sin_family = AF_INET, .sin_port = htons(7471)};
	uint64_t most = FI_MSG | FI_RMA | FI_TAGGED | FI_ATOMIC | FI_COLLECTIVE | FI_HMEM | FI_SOURCE | FI_SEND | FI_RECV;

	six.sin_addr.s_addr = htonl(0x7f000001);
	puts(fi_tostr(info, FI_TYPE_INFO));
	info->caps = most;
	info->mode = FI_CONTEXT | FI_CONTEXT2;
	info->addr_format = FI_SOCKADDR_IN;
	info->src_addr = &six;
	info->src_addrlen = sizeof six;
	*info->tx_attr = (struct fi_tx_attr){.caps = most, .op_flags = FI_COMPLETION | FI_INJECT | FI_DELIVERY_COMPLETE,
					     .msg_order = FI_ORDER_SAS | FI_ORDER_RAW, .comp_order = FI_ORDER_STRICT,
					     .inject_size = 1, .size = 2, .iov_limit = 3, .rma_iov_limit = 4, .tclass = 0x505};
	*info->rx_attr = (struct fi_rx_attr){.caps = most, .comp_order = FI_ORDER_DATA, .total_buffered_recv = 5, .size = 6, .iov_limit = 7};
	*info->ep_attr = (struct fi_ep_attr){.type = FI_EP_RDM, .protocol = 1u << 31 | 5, .protocol_version = 2, .max_msg_size = SIZE_MAX,
					     .mem_tag_format = 0xaaaa, .tx_ctx_cnt = SIZE_MAX, .rx_ctx_cnt = SIZE_MAX, .auth_key_size = SIZE_MAX};
	info->domain_attr->name = "rkey0";
	info->domain_attr->tx_ctx_cnt = info->domain_attr->rx_ctx_cnt = SIZE_MAX;
	info->domain_attr->threading = FI_THREAD_SAFE;
	info->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	info->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ENDPOINT;
	info->domain_attr->caps = FI_LOCAL_COMM;
	info->domain_attr->tclass = 0x101;
	info->fabric_attr->name = "rkey";
	info->fabric_attr->prov_version = FI_VERSION(117, 0);
	info->fabric_attr->api_version = FI_VERSION(1, 17);
	puts(fi_tostr(info, FI_TYPE_INFO));
	puts(fi_tostr(info->tx_attr, FI_TYPE_TX_ATTR));
	puts(fi_tostr(info->domain_attr, FI_TYPE_DOMAIN_ATTR));
	info->addr_format = FI_ADDR_STR;
	info->src_addr = "fi_sockaddr_in6://[::1]:5";
	info->tx_attr = NULL;
	info->domain_attr = NULL;
	puts(fi_tostr(info, FI_TYPE_INFO));
}

int main(void)
{
	static const enum fi_type of_flags[] = {FI_TYPE_CAPS, FI_TYPE_OP_FLAGS, FI_TYPE_MSG_ORDER, FI_TYPE_MODE, FI_TYPE_CQ_EVENT_FLAGS,
						FI_TYPE_MR_MODE};
	static const enum fi_type of_values[] = {FI_TYPE_EP_TYPE, FI_TYPE_ADDR_FORMAT, FI_TYPE_THREADING, FI_TYPE_PROGRESS, FI_TYPE_PROTOCOL,
						 FI_TYPE_AV_TYPE, FI_TYPE_ATOMIC_TYPE, FI_TYPE_ATOMIC_OP, FI_TYPE_EQ_EVENT, FI_TYPE_OP_TYPE,
						 FI_TYPE_COLLECTIVE_OP, FI_TYPE_HMEM_IFACE, FI_TYPE_CQ_FORMAT, FI_TYPE_LOG_LEVEL,
						 FI_TYPE_LOG_SUBSYS};
	uint64_t several = FI_HMEM | FI_MSG | FI_SEND | FI_NAMED_RX_CTX;
	char small[10];

	for (size_t at = 0; at < sizeof of_flags / sizeof *of_flags; at++)
		flags(of_flags[at]);
	for (size_t at = 0; at < sizeof of_values / sizeof *of_values; at++)
		values(of_values[at]);
	for (int number = -300; number < 300; number++)
		printf("error %d: %s\n", number, fi_strerror(number));
	printf("several: %s\n", fi_tostr(&several, FI_TYPE_CAPS));
	printf("none: %p %p %p\n", (void *)fi_tostr(NULL, FI_TYPE_CAPS), (void *)fi_tostr_r(small, 0, &several, FI_TYPE_CAPS),
	       (void *)fi_tostr_r(NULL, 5, &several, FI_TYPE_CAPS));
	structures();
	return 0;
}
