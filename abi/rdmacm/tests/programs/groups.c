/* Multicast groups, extended reliable connections, and the program's own events, with all sides in this process. */
#define _GNU_SOURCE
#include "common.h"
#include <dlfcn.h>

/* An InfiniBand address: struct sockaddr_ib of <infiniband/ib.h>. */
struct ib_address {
	uint16_t family, pkey;
	uint32_t flow;
	uint8_t gid[16];
	uint64_t service, mask, scope;
};

static struct sockaddr_in group_of(const char *text)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	address.sin_addr.s_addr = inet_addr(text);
	return address;
}

/* Creates an identifier for datagrams, and resolves an address of this host. */
static struct rdma_cm_id *new_member(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_UDP);
	struct sockaddr_in to = loopback(htons(7));
	GOOD(rdma_resolve_addr(id, NULL, ADDRESS(to), 1));
	ACK_NEXT(channel, ADDR_RESOLVED, 0);
	return id;
}

static struct rdma_ud_param join_now(struct rdma_event_channel *channel, struct rdma_cm_id *id, struct sockaddr *group, int flags)
{
	struct rdma_cm_join_mc_attr_ex attr = { .comp_mask = 3, .join_flags = flags, .addr = group };
	struct rdma_cm_event *event;
	struct rdma_ud_param param;
	GOOD(flags ? rdma_join_multicast_ex(id, &attr, &attr) : rdma_join_multicast(id, group, &attr));
	event = NEXT(channel, MULTICAST_JOIN, 0);
	param = event->param.ud;
	TRUE(event->id == id && !event->listen_id && param.private_data == &attr && param.private_data_len == 0);
	TRUE(param.qp_num == 0xffffff && param.qkey == RDMA_UDP_QKEY && param.ah_attr.is_global);
	TRUE(param.ah_attr.grh.hop_limit == 64 && param.ah_attr.port_num == 1);
	GOOD(rdma_ack_cm_event(event));
	return param;
}

/* Receives one datagram of 8 bytes. Returns 0 if none arrives within `times` milliseconds. */
static int receives(struct rdma_cm_id *id, int times)
{
	struct ibv_wc wc;
	int got = 0;
	while (got == 0 && times--) {
		got = ibv_poll_cq(id->recv_cq, 1, &wc);
		usleep(1000);
	}
	TRUE(got == 0 || (wc.status == IBV_WC_SUCCESS && wc.byte_len == 48));
	return got;
}

static void send_to(struct rdma_cm_id *id, struct rdma_ud_param *to, struct ibv_ah *ah, struct ibv_mr *from, char *data)
{
	struct ibv_wc wc;
	GOOD(rdma_post_ud_send(id, NULL, data, 8, from, IBV_SEND_SIGNALED, ah, to->qp_num));
	TRUE(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
}

static void groups(int is_ib)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *sender = new_member(channel), *member = new_member(channel);
	struct sockaddr_in four = group_of("239.1.2.3"), other = group_of("239.1.2.4");
	struct ib_address ib = { .family = 27, .gid = { 0xff, 0x0e, [15] = 0x42 } };
	struct sockaddr *group = is_ib ? (struct sockaddr *)&ib : ADDRESS(four);
	struct rdma_ud_param to;
	struct ibv_mr *from, *into;
	struct ibv_ah *ah;
	char data[8] = "to all", room[2][64] = { "" };
	const uint8_t mapped[16] = { [10] = 0xff, 0xff, 239, 1, 2, 3 };
	int tries = 0;

	add_qp(sender, IBV_QPT_UD);
	add_qp(member, IBV_QPT_UD);
	to = join_now(channel, sender, group, RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER);
	TRUE(!memcmp(to.ah_attr.grh.dgid.raw, is_ib ? ib.gid : mapped, 16));
	join_now(channel, member, group, RDMA_MC_JOIN_FLAG_FULLMEMBER);
	MUST(from = rdma_reg_msgs(sender, data, sizeof data));
	MUST(into = rdma_reg_msgs(member, room, sizeof room));
	MUST(ah = ibv_create_ah(sender->pd, &to.ah_attr));
	/* A send-only member receives nothing. A full member receives until it leaves, but may miss the first datagrams. */
	GOOD(rdma_post_recv(sender, NULL, room[1], 64, into));
	GOOD(rdma_post_recv(member, NULL, room[0], 64, into));
	do
		send_to(sender, &to, ah, from, data);
	while (!receives(member, 50) && ++tries < 1000);
	TRUE(tries < 1000 && !memcmp(room[0] + 40, "to all", 7));
	GOOD(rdma_post_recv(member, NULL, room[0], 64, into));
	GOOD(rdma_leave_multicast(member, group));
	strcpy(data, "no one");
	send_to(sender, &to, ah, from, data);
	/* One of the first datagrams may still arrive. */
	receives(member, 20);
	TRUE(memcmp(room[0] + 40, "no one", 7));
	TRUE(receives(sender, 1) == 0);
	FAILS(EADDRNOTAVAIL, rdma_leave_multicast(member, group));
	FAILS(EADDRNOTAVAIL, rdma_leave_multicast(sender, ADDRESS(other)));
	GOOD(rdma_leave_multicast(sender, group));
	GOOD(ibv_destroy_ah(ah));
	GOOD(rdma_dereg_mr(from));
	GOOD(rdma_dereg_mr(into));
	rdma_destroy_qp(sender);
	rdma_destroy_qp(member);
	GOOD(rdma_destroy_id(sender));
	GOOD(rdma_destroy_id(member));
	rdma_destroy_event_channel(channel);
}

static struct rdma_cm_event *pending;
static volatile int acknowledges;

static void *ack_later(void *unused)
{
	(void)unused;
	usleep(20000);
	acknowledges = 1;
	GOOD(rdma_ack_cm_event(pending));
	return NULL;
}

static void group_errors(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_UDP), *connected = new_id(channel, RDMA_PS_TCP), *sync = NULL;
	struct sockaddr_in group = group_of("239.9.9.9"), none = group_of("0.0.0.0"), single = group_of("10.1.2.3"), to = loopback(htons(7));
	struct sockaddr_storage unix_address = { .ss_family = AF_UNIX };
	struct rdma_cm_join_mc_attr_ex attr = { .comp_mask = 3, .join_flags = 0, .addr = ADDRESS(group) };
	struct rdma_conn_param param = { .qp_num = 0x77 };
	pthread_t thread;

	/* No address yet, an identifier for connections, invalid addresses. */
	FAILS(EINVAL, rdma_join_multicast(id, ADDRESS(group), NULL));
	GOOD(rdma_resolve_addr(connected, NULL, ADDRESS(to), 1));
	ACK_NEXT(channel, ADDR_RESOLVED, 0);
	FAILS(EINVAL, rdma_join_multicast(connected, ADDRESS(group), NULL));
	GOOD(rdma_resolve_addr(id, NULL, ADDRESS(to), 1));
	ACK_NEXT(channel, ADDR_RESOLVED, 0);
	FAILS(EINVAL, rdma_join_multicast(id, ADDRESS(none), NULL));
	FAILS(EINVAL, rdma_join_multicast(id, NULL, NULL));
	FAILS(EINVAL, rdma_join_multicast(id, ADDRESS(unix_address), NULL));
	FAILS(EINVAL, rdma_leave_multicast(id, NULL));
	FAILS(EINVAL, rdma_join_multicast(NULL, ADDRESS(group), NULL));
	FAILS(EINVAL, rdma_leave_multicast(NULL, ADDRESS(group)));
	FAILS(EINVAL, rdma_join_multicast_ex(id, NULL, NULL));
	for (attr.comp_mask = 0; attr.comp_mask < 3; attr.comp_mask++)
		FAILS(EINVAL, rdma_join_multicast_ex(id, &attr, NULL));
	attr.join_flags = 2;
	FAILS(EINVAL, rdma_join_multicast_ex(id, &attr, NULL));
	attr.comp_mask = 4;
	FAILS(ENOTSUP, rdma_join_multicast_ex(id, &attr, NULL));

	/* A unicast address cannot be attached. */
	add_qp(id, IBV_QPT_UD);
	GOOD(rdma_join_multicast(id, ADDRESS(single), NULL));
	ACK_NEXT(channel, MULTICAST_ERROR, -EINVAL);
	GOOD(rdma_leave_multicast(id, ADDRESS(single)));

	/* Leaving drops a pending event, and waits until a fetched one is acknowledged. */
	GOOD(rdma_join_multicast(id, ADDRESS(group), NULL));
	GOOD(rdma_leave_multicast(id, ADDRESS(group)));
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	TRUE(poll(&fd, 1, 0) == 0);
	GOOD(rdma_join_multicast(id, ADDRESS(group), NULL));
	pending = NEXT(channel, MULTICAST_JOIN, 0);
	acknowledges = 0;
	GOOD(pthread_create(&thread, NULL, ack_later, NULL));
	GOOD(rdma_leave_multicast(id, ADDRESS(group)));
	TRUE(acknowledges);
	GOOD(pthread_join(thread, NULL));

	/* The address of a group can be resolved, but not connected to. */
	rdma_destroy_qp(id);
	GOOD(rdma_destroy_id(id));
	id = new_id(channel, RDMA_PS_UDP);
	GOOD(rdma_resolve_addr(id, NULL, ADDRESS(group), 1));
	ACK_NEXT(channel, ADDR_RESOLVED, 0);
	TRUE(id->verbs);
	GOOD(rdma_resolve_route(id, 1));
	ACK_NEXT(channel, ROUTE_RESOLVED, 0);
	FAILS(EINVAL, rdma_join_multicast(id, ADDRESS(group), NULL));
	FAILS(EINVAL, rdma_connect(id, &param));
	GOOD(rdma_destroy_id(id));
	GOOD(rdma_destroy_id(connected));

	/* A synchronous identifier waits for the event, and can be destroyed while it is a member. */
	GOOD(rdma_create_id(NULL, &sync, NULL, RDMA_PS_UDP));
	GOOD(rdma_resolve_addr(sync, NULL, ADDRESS(to), 1));
	add_qp(sync, IBV_QPT_UD);
	GOOD(rdma_join_multicast(sync, ADDRESS(group), &group));
	TRUE(sync->event->event == RDMA_CM_EVENT_MULTICAST_JOIN && sync->event->param.ud.private_data == &group);
	GOOD(rdma_leave_multicast(sync, ADDRESS(group)));
	GOOD(rdma_join_multicast(sync, ADDRESS(group), &group));
	FAILS(EINVAL, rdma_join_multicast(sync, ADDRESS(single), NULL));
	rdma_destroy_ep(sync);
	rdma_destroy_event_channel(channel);
}

/* An extended reliable connection: messages go to the shared receive queue that the sender addresses. */
static void extended(void)
{
	struct rdma_event_channel *here = new_channel(), *there = new_channel();
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_IB, .ai_qp_type = IBV_QPT_XRC_RECV }, *info;
	struct ibv_qp_init_attr init = { .cap = { 1, 1, 1, 1, 0 }, .sq_sig_all = 1 };
	struct ibv_srq_init_attr_ex queue = { .attr = { .max_wr = 4, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC };
	struct rdma_conn_param param = { .private_data = "number", .private_data_len = 6, .retry_count = 3 };
	struct rdma_cm_id *listener, *client, *server;
	struct rdma_cm_event *event;
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .num_sge = 1 }, *failed;
	struct ibv_sge sge;
	struct ibv_mr *from, *into;
	struct ibv_wc wc;
	char text[16] = "across domains", room[16] = "";
	uint32_t number = 0;

	GOOD(rdma_getaddrinfo("127.0.0.1", NULL, &hints, &info));
	GOOD(rdma_create_ep(&listener, info, NULL, NULL));
	rdma_freeaddrinfo(info);
	GOOD(rdma_migrate_id(listener, there));
	GOOD(rdma_listen(listener, 1));

	hints.ai_flags = 0;
	hints.ai_qp_type = IBV_QPT_XRC_SEND;
	char port[8];
	snprintf(port, sizeof port, "%d", ntohs(rdma_get_src_port(listener)));
	GOOD(rdma_getaddrinfo("127.0.0.1", port, &hints, &info));
	GOOD(rdma_create_ep(&client, info, NULL, &init));
	rdma_freeaddrinfo(info);
	GOOD(rdma_migrate_id(client, here));
	TRUE(client->qp && client->qp->qp_type == IBV_QPT_XRC_SEND);
	/* A sending half cannot listen. */
	FAILS(EINVAL, rdma_listen(client, 1));

	GOOD(rdma_connect(client, &param));
	event = NEXT(there, CONNECT_REQUEST, 0);
	server = event->id;
	TRUE(event->param.conn.qp_num == client->qp->qp_num && server->qp_type == IBV_QPT_XRC_RECV);
	GOOD(rdma_ack_cm_event(event));
	init.qp_type = IBV_QPT_XRC_RECV;
	GOOD(rdma_create_qp(server, NULL, &init));
	TRUE(server->qp && server->pd && state_of(server->qp) == IBV_QPS_INIT);
	FAILS(EINVAL, rdma_create_srq_ex(server, &queue));
	queue.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
	GOOD(rdma_create_srq_ex(server, &queue));
	FAILS(EINVAL, rdma_create_srq_ex(server, &queue));
	TRUE(server->srq && server->recv_cq && queue.cq == server->recv_cq && queue.xrcd);
	GOOD(ibv_get_srq_num(server->srq, &number));
	MUST(into = rdma_reg_msgs(server, room, sizeof room));
	MUST(from = rdma_reg_msgs(client, text, sizeof text));
	GOOD(rdma_post_recv(server, NULL, room, sizeof room, into));
	GOOD(rdma_accept(server, &param));
	event = NEXT(here, ESTABLISHED, 0);
	/* In a REP for an extended reliable connection, the SRQ bit is always set. */
	TRUE(event->param.conn.qp_num == server->qp->qp_num && event->param.conn.srq == 1);
	GOOD(rdma_ack_cm_event(event));
	ACK_NEXT(there, ESTABLISHED, 0);
	sge = (struct ibv_sge){ .addr = (uintptr_t)text, .length = sizeof text, .lkey = from->lkey };
	wr.sg_list = &sge;
	wr.qp_type.xrc.remote_srqn = number;
	GOOD(ibv_post_send(client->qp, &wr, &failed));
	TRUE(rdma_get_send_comp(client, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	TRUE(rdma_get_recv_comp(server, &wc) == 1 && wc.status == IBV_WC_SUCCESS && !strcmp(room, text));

	GOOD(rdma_disconnect(client));
	ACK_NEXT(there, DISCONNECTED, 0);
	GOOD(rdma_disconnect(server));
	ACK_NEXT(here, DISCONNECTED, 0);
	GOOD(rdma_dereg_mr(from));
	GOOD(rdma_dereg_mr(into));
	rdma_destroy_qp(server);
	TRUE(!server->qp && server->recv_cq);
	rdma_destroy_srq(server);
	TRUE(!server->srq && !server->recv_cq && !server->recv_cq_channel);
	rdma_destroy_ep(client);
	GOOD(rdma_destroy_id(server));
	GOOD(rdma_destroy_id(listener));
	rdma_destroy_event_channel(here);
	rdma_destroy_event_channel(there);
}

/* Calls that the headers of version 44 lack, and their event types. */
#define ADDRINFO_RESOLVED 16
#define ADDRINFO_ERROR 17
#define USER 18
#define RAI_SA 16
#define RAI_DNS 32

static void later(void)
{
	int (*write_event)(struct rdma_cm_id *, int, int, uint64_t) = dlvsym(RTLD_DEFAULT, "rdma_write_cm_event", "RDMACM_1.4");
	int (*resolve)(struct rdma_cm_id *, const char *, const char *, const struct rdma_addrinfo *) =
		dlvsym(RTLD_DEFAULT, "rdma_resolve_addrinfo", "RDMACM_1.4");
	int (*query)(struct rdma_cm_id *, struct rdma_addrinfo **) = dlvsym(RTLD_DEFAULT, "rdma_query_addrinfo", "RDMACM_1.4");
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	struct rdma_addrinfo *info = NULL, hints = { .ai_flags = RAI_SA };
	struct rdma_cm_event *event;
	uint64_t arg;

	MUST(write_event && resolve && query);
	GOOD(write_event(id, USER, -7, 0x1122334455667788));
	event = next_at(__LINE__, channel, USER, -7);
	memcpy(&arg, &event->param, sizeof arg);
	TRUE(event->id == id && arg == 0x1122334455667788 && !strcmp(rdma_event_str(event->event), "RDMA_CM_EVENT_USER"));
	GOOD(rdma_ack_cm_event(event));
	FAILS(EINVAL, write_event(id, 19, 0, 0));
	FAILS(EINVAL, write_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0));
	FAILS(EINVAL, write_event(NULL, USER, 0, 0));

	FAILS(ENODATA, query(id, &info));
	FAILS(EINVAL, resolve(id, NULL, NULL, NULL));
	FAILS(EINVAL, resolve(NULL, "127.0.0.1", "77", NULL));
	FAILS(EOPNOTSUPP, resolve(id, NULL, "77", &hints));
	hints.ai_flags = RAI_SA | RAI_DNS;
	FAILS(EINVAL, resolve(id, NULL, "77", &hints));
	hints.ai_flags = RAI_DNS | RAI_NUMERICHOST;
	hints.ai_port_space = RDMA_PS_UDP;
	GOOD(resolve(id, "127.0.0.1", "77", &hints));
	event = next_at(__LINE__, channel, ADDRINFO_RESOLVED, 0);
	GOOD(rdma_ack_cm_event(event));
	FAILS(EINVAL, query(id, NULL));
	GOOD(query(id, &info));
	MUST(info);
	TRUE(info->ai_port_space == RDMA_PS_UDP && info->ai_qp_type == IBV_QPT_UD && info->ai_dst_len == sizeof(struct sockaddr_in));
	TRUE(((struct sockaddr_in *)info->ai_dst_addr)->sin_port == htons(77));
	rdma_freeaddrinfo(info);
	GOOD(resolve(id, "no number", "77", &hints));
	event = next_at(__LINE__, channel, ADDRINFO_ERROR, EAI_NONAME);
	GOOD(rdma_ack_cm_event(event));
	FAILS(ENODATA, query(id, &info));
	/* An identifier may be destroyed during the lookup. */
	GOOD(resolve(id, "127.0.0.1", "77", &hints));
	GOOD(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

int main(void)
{
	begin();
	groups(0);
	groups(1);
	group_errors();
	extended();
	later();
	return finish();
}
