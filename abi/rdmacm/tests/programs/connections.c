/* Connections from request to teardown, with both sides in this process. */
#include "common.h"
#include <sys/resource.h>

/* Prevents calls from opening descriptors, or permits it again. */
static void limit_files(int limit)
{
	static struct rlimit usual;
	struct rlimit few;
	if (!usual.rlim_cur)
		GOOD(getrlimit(RLIMIT_NOFILE, &usual));
	few = usual;
	if (limit)
		few.rlim_cur = 3;
	GOOD(setrlimit(RLIMIT_NOFILE, &few));
}

/* If the device cannot be opened, the program gets an event. It can be opened later. */
static void no_device(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	struct sockaddr_in to = loopback(htons(7));
	struct rdma_cm_event *event = NULL;
	GOOD(rdma_resolve_addr(id, NULL, ADDRESS(to), 1));
	limit_files(1);
	GOOD(rdma_get_cm_event(channel, &event));
	limit_files(0);
	MUST(event);
	TRUE(event->event == RDMA_CM_EVENT_ADDR_ERROR && event->status < 0 && event->id == id);
	GOOD(rdma_ack_cm_event(event));
	GOOD(rdma_resolve_addr(id, NULL, ADDRESS(to), 1));
	ACK_NEXT(channel, ADDR_RESOLVED, 0);
	GOOD(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

/* Connects, sends a message, and disconnects. `external`: the client creates its own queue pair. */
static void connect_both(int external)
{
	struct rdma_event_channel *here = new_channel(), *there = new_channel();
	struct rdma_cm_id *listener = new_listener(there, RDMA_PS_TCP);
	struct rdma_cm_id *client = new_client(here, RDMA_PS_TCP, rdma_get_src_port(listener)), *server;
	struct rdma_conn_param param = { .private_data = "hello", .private_data_len = 5, .responder_resources = 3,
					 .initiator_depth = 2, .retry_count = 5, .rnr_retry_count = 6 };
	struct rdma_cm_event *event;
	struct ibv_qp *own = NULL;
	struct ibv_wc wc;
	struct ibv_mr *from, *into;
	char text[16] = "a message", room[16] = "";

	add_qp(client, IBV_QPT_RC);
	TRUE(state_of(client->qp) == IBV_QPS_INIT);
	if (external) {
		own = client->qp;
		client->qp = NULL;
		param.qp_num = own->qp_num;
	}
	GOOD(rdma_connect(client, &param));
	FAILS(EINVAL, rdma_connect(client, &param));

	event = NEXT(there, CONNECT_REQUEST, 0);
	server = event->id;
	TRUE(event->listen_id == listener && server != listener && server->channel == there && server->context == &bad);
	TRUE(server->verbs == client->verbs && server->pd && server->port_num == 1);
	TRUE(event->param.conn.private_data_len == 56 && !memcmp(event->param.conn.private_data, "hello\0\0", 7));
	TRUE(event->param.conn.responder_resources == 2 && event->param.conn.initiator_depth == 3);
	TRUE(event->param.conn.retry_count == 5 && event->param.conn.rnr_retry_count == 6);
	TRUE(event->param.conn.qp_num == (own ? own : client->qp)->qp_num);
	TRUE(rdma_get_dst_port(server) == rdma_get_src_port(client));
	GOOD(rdma_ack_cm_event(event));

	add_qp(server, IBV_QPT_RC);
	MUST((into = rdma_reg_msgs(server, room, sizeof room)) && (from = rdma_reg_msgs(client, text, sizeof text)));
	GOOD(rdma_post_recv(server, NULL, room, sizeof room, into));
	param.private_data = "welcome";
	param.private_data_len = 7;
	param.responder_resources = param.initiator_depth = RDMA_MAX_RESP_RES;
	GOOD(rdma_accept(server, &param));
	TRUE(state_of(server->qp) == IBV_QPS_RTS);
	FAILS(EINVAL, rdma_reject(server, NULL, 0));

	if (external) {
		struct ibv_qp_attr attr;
		int mask, state;
		event = NEXT(here, CONNECT_RESPONSE, 0);
		for (state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
			attr.qp_state = state;
			GOOD(rdma_init_qp_attr(client, &attr, &mask));
			GOOD(ibv_modify_qp(own, &attr, mask));
		}
		GOOD(rdma_establish(client));
		FAILS(EINVAL, rdma_establish(client));
		client->qp = own;
	} else {
		event = NEXT(here, ESTABLISHED, 0);
		FAILS(EINVAL, rdma_establish(client));
	}
	TRUE(event->param.conn.private_data_len == 196 && !memcmp(event->param.conn.private_data, "welcome\0\0", 9));
	TRUE(event->param.conn.qp_num == server->qp->qp_num);
	GOOD(rdma_ack_cm_event(event));
	TRUE(state_of(client->qp) == IBV_QPS_RTS);
	ACK_NEXT(there, ESTABLISHED, 0);

	GOOD(rdma_post_send(client, NULL, text, sizeof text, from, IBV_SEND_SIGNALED));
	TRUE(rdma_get_send_comp(client, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	TRUE(rdma_get_recv_comp(server, &wc) == 1 && wc.status == IBV_WC_SUCCESS && !strcmp(room, "a message"));
	FAILS(EISCONN, rdma_notify(server, IBV_EVENT_COMM_EST));

	GOOD(rdma_disconnect(client));
	TRUE(state_of(client->qp) == IBV_QPS_ERR);
	ACK_NEXT(there, DISCONNECTED, 0);
	GOOD(rdma_disconnect(server));
	ACK_NEXT(here, DISCONNECTED, 0);
	GOOD(rdma_disconnect(client));
	ACK_NEXT(here, TIMEWAIT_EXIT, 0);
	ACK_NEXT(there, TIMEWAIT_EXIT, 0);
	FAILS(EINVAL, rdma_connect(client, &param));
	GOOD(rdma_dereg_mr(from));
	GOOD(rdma_dereg_mr(into));
	rdma_destroy_qp(client);
	rdma_destroy_qp(server);
	TRUE(!client->qp && !client->send_cq && !client->recv_cq_channel);
	GOOD(rdma_destroy_id(client));
	GOOD(rdma_destroy_id(server));
	GOOD(rdma_destroy_id(listener));
	rdma_destroy_event_channel(here);
	rdma_destroy_event_channel(there);
}

/* Rejections: by rdma_reject, by destroying the identifier or the listener, and because nothing listens. */
static void refusals(void)
{
	struct rdma_event_channel *here = new_channel(), *there = new_channel();
	struct rdma_cm_id *listener = new_listener(there, RDMA_PS_TCP), *client, *server;
	struct rdma_cm_event *event;
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .qp_num = 0x77 };
	uint16_t port = rdma_get_src_port(listener);
	char data[256] = "not today";
	int way;

	for (way = 0; way < 3; way++) {
		client = new_client(here, RDMA_PS_TCP, port);
		add_qp(client, IBV_QPT_RC);
		GOOD(rdma_connect(client, &param));
		event = NEXT(there, CONNECT_REQUEST, 0);
		server = event->id;
		GOOD(rdma_ack_cm_event(event));
		switch (way) {
		case 0:
			FAILS(EINVAL, rdma_reject(server, data, 149));
			GOOD(rdma_reject(server, data, 148));
			FAILS(EINVAL, rdma_reject(server, NULL, 0));
			FAILS(EINVAL, rdma_accept(server, &param));
			GOOD(rdma_destroy_id(server));
			break;
		case 1:
			GOOD(rdma_destroy_id(server));
			break;
		case 2:
			/* A null pointer means no private data, whatever the length. */
			GOOD(rdma_reject_ece(server, NULL, 200));
			GOOD(rdma_destroy_id(server));
			break;
		}
		event = NEXT(here, REJECTED, way == 2 ? 35 : 28);
		TRUE(event->id == client && event->param.conn.private_data_len == 148);
		TRUE(way != 0 || !memcmp(event->param.conn.private_data, "not today", 10));
		GOOD(rdma_ack_cm_event(event));
		TRUE(state_of(client->qp) == IBV_QPS_ERR);
		FAILS(EINVAL, rdma_connect(client, &param));
		GOOD(rdma_disconnect(client));
		rdma_destroy_qp(client);
		GOOD(rdma_destroy_id(client));
	}
	/* Destroying a listener rejects requests that have not been fetched. */
	client = new_client(here, RDMA_PS_TCP, port);
	param.qp_num++;
	GOOD(rdma_connect(client, &param));
	GOOD(rdma_destroy_id(listener));
	ACK_NEXT(here, REJECTED, 28);
	GOOD(rdma_destroy_id(client));
	/* Nothing listens any more. */
	client = new_client(here, RDMA_PS_TCP, port);
	param.qp_num++;
	GOOD(rdma_connect(client, &param));
	ACK_NEXT(here, REJECTED, 8);
	GOOD(rdma_destroy_id(client));
	/* The client is destroyed before its request is answered. */
	listener = new_listener(there, RDMA_PS_TCP);
	client = new_client(here, RDMA_PS_TCP, rdma_get_src_port(listener));
	param.qp_num++;
	GOOD(rdma_connect(client, &param));
	event = NEXT(there, CONNECT_REQUEST, 0);
	server = event->id;
	GOOD(rdma_ack_cm_event(event));
	GOOD(rdma_destroy_id(client));
	add_qp(server, IBV_QPT_RC);
	FAILS(EINVAL, rdma_accept(server, &param));
	TRUE(state_of(server->qp) == IBV_QPS_ERR);
	rdma_destroy_qp(server);
	GOOD(rdma_destroy_id(server));
	GOOD(rdma_destroy_id(listener));
	rdma_destroy_event_channel(here);
	rdma_destroy_event_channel(there);
}

/* If rdma_accept fails, the request is rejected, although the program keeps the identifier. */
static void failed_accept(void)
{
	struct rdma_event_channel *here = new_channel(), *there = new_channel();
	struct rdma_cm_id *listener = new_listener(there, RDMA_PS_TCP), *client, *server;
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .qp_num = 0x77 };
	struct rdma_cm_event *event;
	char data[256] = "";

	client = new_client(here, RDMA_PS_TCP, rdma_get_src_port(listener));
	param.private_data_len = 255;
	GOOD(rdma_connect(client, &param));
	event = NEXT(there, CONNECT_REQUEST, 0);
	server = event->id;
	GOOD(rdma_ack_cm_event(event));
	param.private_data = data;
	param.private_data_len = 197;
	FAILS(EINVAL, rdma_accept(server, &param));
	ACK_NEXT(here, REJECTED, 28);
	FAILS(EINVAL, rdma_accept(server, &param));
	FAILS(EINVAL, rdma_reject(server, NULL, 0));
	GOOD(rdma_destroy_id(client));
	GOOD(rdma_destroy_id(server));
	GOOD(rdma_destroy_id(listener));
	rdma_destroy_event_channel(here);
	rdma_destroy_event_channel(there);
}

/* Connects, disconnects and destroys so often that queue pair numbers are reused while their last connections are in time wait. */
static void many_in_a_row(void)
{
	struct rdma_event_channel *here = new_channel(), *there = new_channel();
	struct rdma_cm_id *listener = new_listener(there, RDMA_PS_TCP), *client, *server;
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_cm_event *event;
	int count;

	for (count = 0; count < 600; count++) {
		client = new_client(here, RDMA_PS_TCP, rdma_get_src_port(listener));
		add_qp(client, IBV_QPT_RC);
		GOOD(rdma_connect(client, &param));
		event = NEXT(there, CONNECT_REQUEST, 0);
		server = event->id;
		GOOD(rdma_ack_cm_event(event));
		add_qp(server, IBV_QPT_RC);
		GOOD(rdma_accept(server, &param));
		ACK_NEXT(here, ESTABLISHED, 0);
		ACK_NEXT(there, ESTABLISHED, 0);
		GOOD(rdma_disconnect(client));
		ACK_NEXT(there, DISCONNECTED, 0);
		GOOD(rdma_disconnect(server));
		ACK_NEXT(here, DISCONNECTED, 0);
		rdma_destroy_qp(client);
		rdma_destroy_qp(server);
		GOOD(rdma_destroy_id(client));
		GOOD(rdma_destroy_id(server));
	}
	GOOD(rdma_destroy_id(listener));
	rdma_destroy_event_channel(here);
	rdma_destroy_event_channel(there);
}

/* Numbers of extensions (ECE) travel in both directions. A notification stands for the message that ends the handshake. */
static void extensions(void)
{
	struct rdma_event_channel *here = new_channel(), *there = new_channel();
	struct rdma_cm_id *listener = new_listener(there, RDMA_PS_TCP), *server;
	struct rdma_cm_id *client = new_client(here, RDMA_PS_TCP, rdma_get_src_port(listener));
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .qp_num = 0x77 };
	struct ibv_ece ece = { .vendor_id = 0xff123456, .options = 0xabcdef01 }, none = { 0 };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR + 1 };
	struct rdma_cm_event *event;
	int mask;

	FAILS(EINVAL, rdma_init_qp_attr(client, &attr, &mask));
	FAILS(EINVAL, rdma_set_local_ece(client, &none));
	FAILS(EINVAL, rdma_set_local_ece(client, NULL));
	FAILS(EINVAL, rdma_get_remote_ece(client, NULL));
	GOOD(rdma_set_local_ece(client, &ece));
	GOOD(rdma_connect(client, &param));
	event = NEXT(there, CONNECT_REQUEST, 0);
	server = event->id;
	GOOD(rdma_ack_cm_event(event));
	memset(&ece, 0, sizeof ece);
	GOOD(rdma_get_remote_ece(server, &ece));
	/* The vendor has 24 bits. */
	TRUE(ece.vendor_id == 0x123456 && ece.options == 0xabcdef01 && ece.comp_mask == 0);
	ece.options = 2;
	GOOD(rdma_set_local_ece(server, &ece));
	FAILS(EINVAL, rdma_notify(server, IBV_EVENT_COMM_EST));
	param.qp_num = 0x78;
	GOOD(rdma_accept(server, &param));
	ACK_NEXT(here, CONNECT_RESPONSE, 0);
	GOOD(rdma_get_remote_ece(client, &ece));
	TRUE(ece.vendor_id == 0x123456 && ece.options == 2);
	/* The server's queue pair has received something, although the client has not called rdma_establish yet. */
	FAILS(EINVAL, rdma_notify(server, IBV_EVENT_COMM_EST + 1));
	GOOD(rdma_notify(server, IBV_EVENT_COMM_EST));
	ACK_NEXT(there, ESTABLISHED, 0);
	FAILS(EISCONN, rdma_notify(server, IBV_EVENT_COMM_EST));
	GOOD(rdma_establish(client));
	GOOD(rdma_disconnect(client));
	ACK_NEXT(there, DISCONNECTED, 0);
	GOOD(rdma_destroy_id(client));
	GOOD(rdma_destroy_id(server));
	GOOD(rdma_destroy_id(listener));
	rdma_destroy_event_channel(here);
	rdma_destroy_event_channel(there);
}

/* Options: a path of the program's own, and the time to wait for an acknowledgement. */
static void options(void)
{
	struct rdma_event_channel *here = new_channel(), *there = new_channel();
	struct rdma_cm_id *listener = new_listener(there, RDMA_PS_TCP), *id = new_id(here, RDMA_PS_TCP);
	struct sockaddr_in to = loopback(rdma_get_src_port(listener));
	struct ibv_path_data paths[2] = { { 0 } };
	uint8_t time = 14, too_long = 32;

	GOOD(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &time, sizeof time));
	FAILS(EINVAL, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &too_long, sizeof too_long));
	FAILS(EINVAL, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &time, 4));
	FAILS(EINVAL, rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, paths, sizeof paths));
	GOOD(rdma_resolve_addr(id, NULL, ADDRESS(to), 2000));
	ACK_NEXT(here, ADDR_RESOLVED, 0);
	FAILS(EINVAL, rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, paths, 0));
	FAILS(EINVAL, rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, paths, sizeof paths - 1));
	FAILS(ENOSYS, rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH + 1, paths, sizeof paths));
	GOOD(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, paths, sizeof paths));
	ACK_NEXT(here, ROUTE_RESOLVED, 0);
	TRUE(id->route.num_paths == 1 && id->route.path_rec->packet_life_time == time - 1);
	FAILS(EINVAL, rdma_resolve_route(id, 2000));
	GOOD(rdma_destroy_id(id));
	id = new_id(here, RDMA_PS_UDP);
	FAILS(EINVAL, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &time, sizeof time));
	GOOD(rdma_destroy_id(id));
	GOOD(rdma_destroy_id(listener));
	rdma_destroy_event_channel(here);
	rdma_destroy_event_channel(there);
}

/* Datagrams: the event has everything that a sender needs. */
static void datagrams(void)
{
	struct rdma_event_channel *here = new_channel(), *there = new_channel();
	struct rdma_cm_id *listener = new_listener(there, RDMA_PS_UDP);
	uint16_t port = rdma_get_src_port(listener);
	struct rdma_cm_id *client = new_client(here, RDMA_PS_UDP, port), *server, *refused;
	struct rdma_conn_param param = { .private_data = "who", .private_data_len = 3 };
	struct rdma_cm_event *event;
	struct ibv_ah *ah;
	struct ibv_mr *from, *into;
	struct ibv_wc wc;
	char text[8] = "to you", room[64] = "", data[200] = "answer";

	add_qp(client, IBV_QPT_UD);
	TRUE(state_of(client->qp) == IBV_QPS_RTS);
	GOOD(rdma_connect(client, &param));
	event = NEXT(there, CONNECT_REQUEST, 0);
	server = event->id;
	TRUE(event->param.ud.private_data_len == 180 && !memcmp(event->param.ud.private_data, "who\0", 4));
	GOOD(rdma_ack_cm_event(event));
	add_qp(server, IBV_QPT_UD);
	MUST((into = rdma_reg_msgs(server, room, sizeof room)) && (from = rdma_reg_msgs(client, text, sizeof text)));
	GOOD(rdma_post_recv(server, NULL, room, sizeof room, into));
	param.private_data = data;
	param.private_data_len = 136;
	GOOD(rdma_accept(server, &param));
	event = NEXT(here, ESTABLISHED, 0);
	TRUE(!strcmp(event->param.ud.private_data, "answer"));
	TRUE(event->param.ud.private_data_len == 136 && event->param.ud.qp_num == server->qp->qp_num);
	TRUE(event->param.ud.qkey == RDMA_UDP_QKEY);
	MUST((ah = ibv_create_ah(client->pd, &event->param.ud.ah_attr)));
	GOOD(rdma_post_ud_send(client, NULL, text, sizeof text, from, IBV_SEND_SIGNALED, ah, event->param.ud.qp_num));
	GOOD(rdma_ack_cm_event(event));
	TRUE(rdma_get_send_comp(client, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	TRUE(rdma_get_recv_comp(server, &wc) == 1 && !strcmp(room + 40, "to you"));
	GOOD(rdma_disconnect(client));
	GOOD(ibv_destroy_ah(ah));
	GOOD(rdma_dereg_mr(from));
	GOOD(rdma_dereg_mr(into));
	rdma_destroy_ep(client);
	client = new_client(here, RDMA_PS_UDP, port);
	GOOD(rdma_connect(client, &param));
	event = NEXT(there, CONNECT_REQUEST, 0);
	refused = event->id;
	GOOD(rdma_ack_cm_event(event));
	GOOD(rdma_reject(refused, NULL, 0));
	GOOD(rdma_destroy_id(refused));
	ACK_NEXT(here, UNREACHABLE, 2);
	rdma_destroy_ep(client);
	client = new_client(here, RDMA_PS_UDP, port);
	GOOD(rdma_connect(client, &param));
	event = NEXT(there, CONNECT_REQUEST, 0);
	refused = event->id;
	GOOD(rdma_ack_cm_event(event));
	/* A failed call refuses. */
	param.private_data_len = 137;
	FAILS(EINVAL, rdma_accept(refused, &param));
	param.private_data_len = 136;
	GOOD(rdma_destroy_id(refused));
	ACK_NEXT(here, UNREACHABLE, 2);
	rdma_destroy_ep(client);
	GOOD(rdma_destroy_id(listener));
	client = new_client(here, RDMA_PS_UDP, port);
	GOOD(rdma_connect(client, &param));
	ACK_NEXT(here, UNREACHABLE, 1);
	rdma_destroy_ep(client);
	rdma_destroy_ep(server);
	rdma_destroy_event_channel(here);
	rdma_destroy_event_channel(there);
}

/* Synchronous identifiers: a server in a thread. */
static struct rdma_cm_id *sync_listener;

static void *serve(void *unused)
{
	struct rdma_cm_id *id = NULL;
	struct rdma_conn_param param = { .private_data = "yes", .private_data_len = 3 };
	(void)unused;
	GOOD(rdma_get_request(sync_listener, &id));
	MUST(id && id->event && id->qp && id->channel != sync_listener->channel);
	TRUE(id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	TRUE(!memcmp(id->event->param.conn.private_data, "its and ours", 13));
	GOOD(rdma_accept(id, &param));
	TRUE(id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	GOOD(rdma_disconnect(id));
	rdma_destroy_ep(id);
	GOOD(rdma_get_request(sync_listener, &id));
	GOOD(rdma_reject(id, "no", 2));
	rdma_destroy_ep(id);
	/* The program has already fetched the disconnection, so no event follows. */
	GOOD(rdma_get_request(sync_listener, &id));
	GOOD(rdma_accept(id, NULL));
	ACK_NEXT(id->channel, DISCONNECTED, 0);
	GOOD(rdma_disconnect(id));
	TRUE(id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	rdma_destroy_ep(id);
	return NULL;
}

/* Creates an endpoint: a listener if `port` is null. `data` is the ai_connect of its address. */
static struct rdma_cm_id *new_endpoint(const char *port, char *data)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = port ? 0 : RAI_PASSIVE }, *info = NULL;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 2, 2, 1, 1, 0 } };
	struct rdma_cm_id *id = NULL;
	GOOD(rdma_getaddrinfo("127.0.0.1", port, &hints, &info));
	MUST(info && info->ai_qp_type == IBV_QPT_RC && info->ai_port_space == RDMA_PS_TCP && info->ai_family == AF_INET);
	TRUE(port ? info->ai_dst_len == sizeof(struct sockaddr_in) : info->ai_src_len == sizeof(struct sockaddr_in));
	info->ai_connect = data;
	info->ai_connect_len = data ? strlen(data) : 0;
	GOOD(rdma_create_ep(&id, info, NULL, &init));
	MUST(id && id->channel);
	info->ai_connect = NULL;
	info->ai_connect_len = 0;
	rdma_freeaddrinfo(info);
	return id;
}

/* If rdma_create_ep fails, nothing still uses the protection domain. */
static void failed_endpoint(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = NULL, *other = new_client(channel, RDMA_PS_TCP, htons(7));
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *info = NULL;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 2, 2, 1, 1, 0 } };
	struct ibv_pd *pd = ibv_alloc_pd(other->verbs);
	char data[300] = "";

	MUST(pd);
	GOOD(rdma_getaddrinfo("127.0.0.1", "7", &hints, &info));
	MUST(info);
	info->ai_connect = data;
	info->ai_connect_len = sizeof data;
	FAILS(EINVAL, rdma_create_ep(&id, info, pd, &init));
	info->ai_connect = NULL;
	info->ai_connect_len = 0;
	rdma_freeaddrinfo(info);
	GOOD(ibv_dealloc_pd(pd));
	GOOD(rdma_destroy_id(other));
	rdma_destroy_event_channel(channel);
}

/* If fetching a request fails, the request is rejected. */
static void failed_fetch(void)
{
	struct rdma_event_channel *here = new_channel();
	struct rdma_cm_id *listener = new_endpoint(NULL, NULL), *client, *server = NULL;
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .qp_num = 0x77 };

	GOOD(rdma_listen(listener, 0));
	client = new_client(here, RDMA_PS_TCP, rdma_get_src_port(listener));
	GOOD(rdma_connect(client, &param));
	limit_files(1);
	FAILS(EMFILE, rdma_get_request(listener, &server));
	limit_files(0);
	ACK_NEXT(here, REJECTED, 28);
	GOOD(rdma_destroy_id(client));
	rdma_destroy_ep(listener);
	rdma_destroy_event_channel(here);
}

static void synchronous(void)
{
	struct rdma_cm_id *id;
	char port[8];
	pthread_t thread;

	struct rdma_conn_param param = { .private_data = "ours", .private_data_len = 4 };

	sync_listener = new_endpoint(NULL, NULL);
	GOOD(rdma_listen(sync_listener, 0));
	snprintf(port, sizeof port, "%d", ntohs(rdma_get_src_port(sync_listener)));
	GOOD(pthread_create(&thread, NULL, serve, NULL));
	id = new_endpoint(port, "its and ");
	TRUE(id->qp && id->verbs);
	GOOD(rdma_connect(id, &param));
	TRUE(id->event->event == RDMA_CM_EVENT_ESTABLISHED && !memcmp(id->event->param.conn.private_data, "yes", 4));
	GOOD(rdma_disconnect(id));
	TRUE(id->event->event == RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_ep(id);
	id = new_endpoint(port, NULL);
	FAILS(ECONNREFUSED, rdma_connect(id, NULL));
	TRUE(id->event->event == RDMA_CM_EVENT_REJECTED && !memcmp(id->event->param.conn.private_data, "no", 3));
	rdma_destroy_ep(id);
	id = new_endpoint(port, NULL);
	GOOD(rdma_connect(id, NULL));
	GOOD(rdma_disconnect(id));
	rdma_destroy_ep(id);
	GOOD(pthread_join(thread, NULL));
	rdma_destroy_ep(sync_listener);
}

int main(void)
{
	begin();
	no_device();
	connect_both(0);
	connect_both(1);
	refusals();
	failed_accept();
	many_in_a_row();
	extensions();
	options();
	datagrams();
	synchronous();
	failed_fetch();
	failed_endpoint();
	return finish();
}
