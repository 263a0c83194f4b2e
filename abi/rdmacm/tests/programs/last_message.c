/* A server disconnects as soon as it has received a message, and the client fetches that event before it polls. The send completes
 * with success, and is not flushed. Server and client are separate processes. */
#include "common.h"

#define ROUNDS 20

static void client(uint16_t port_be)
{
	int round;
	for (round = 0; round < ROUNDS; round++) {
		struct rdma_event_channel *channel = new_channel();
		struct rdma_cm_id *id = new_client(channel, RDMA_PS_TCP, port_be);
		struct rdma_conn_param param = { .rnr_retry_count = 7, .retry_count = 7 };
		char text[16] = "the last one";
		struct ibv_mr *from;
		struct ibv_wc wc;
		int got;
		add_qp(id, IBV_QPT_RC);
		MUST(from = rdma_reg_msgs(id, text, sizeof text));
		GOOD(rdma_connect(id, &param));
		ACK_NEXT(channel, ESTABLISHED, 0);
		GOOD(rdma_post_send(id, NULL, text, sizeof text, from, IBV_SEND_SIGNALED));
		/* In the last round, this process exits instead. */
		if (round < ROUNDS - 1) {
			ACK_NEXT(channel, DISCONNECTED, 0);
			GOOD(rdma_disconnect(id));
		}
		while (!(got = ibv_poll_cq(id->send_cq, 1, &wc)))
			;
		TRUE(got == 1);
		if (wc.status != IBV_WC_SUCCESS)
			unexpected(__LINE__, ibv_wc_status_str(wc.status), round, 0);
		GOOD(rdma_dereg_mr(from));
		if (round == ROUNDS - 1)
			return;
		rdma_destroy_qp(id);
		GOOD(rdma_destroy_id(id));
		rdma_destroy_event_channel(channel);
	}
}

/* The descriptor of asynchronous events is readable only if there is an event; the exit of a peer causes none. */
static void no_false_event(struct ibv_context *context)
{
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_async_event event;
	MUST(fcntl(fd.fd, F_SETFL, O_NONBLOCK) == 0);
	while (poll(&fd, 1, 300) == 1) {
		MUST(ibv_get_async_event(context, &event) == 0);
		ibv_ack_async_event(&event);
	}
}

/* Returns the last connection, whose peer has exited. */
static struct rdma_cm_id *server(struct rdma_event_channel *channel)
{
	int round;
	for (round = 0; round < ROUNDS; round++) {
		struct rdma_cm_event *event = NEXT(channel, CONNECT_REQUEST, 0);
		struct rdma_cm_id *id = event->id;
		struct rdma_conn_param param = { .rnr_retry_count = 7 };
		char room[16] = "";
		struct ibv_mr *into;
		struct ibv_wc wc;
		GOOD(rdma_ack_cm_event(event));
		add_qp(id, IBV_QPT_RC);
		MUST(into = rdma_reg_msgs(id, room, sizeof room));
		GOOD(rdma_post_recv(id, NULL, room, sizeof room, into));
		GOOD(rdma_accept(id, &param));
		ACK_NEXT(channel, ESTABLISHED, 0);
		TRUE(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS && !strcmp(room, "the last one"));
		if (round < ROUNDS - 1)
			GOOD(rdma_disconnect(id));
		ACK_NEXT(channel, DISCONNECTED, 0);
		GOOD(rdma_dereg_mr(into));
		if (round == ROUNDS - 1)
			return id;
		rdma_destroy_qp(id);
		GOOD(rdma_destroy_id(id));
	}
	return NULL;
}

int main(void)
{
	int pipes[2], status = -1;
	uint16_t port_be;
	pid_t child;
	begin();
	MUST(pipe(pipes) == 0);
	child = fork();
	if (child == 0) {
		MUST(read(pipes[0], &port_be, sizeof port_be) == sizeof port_be);
		client(port_be);
		fflush(stdout);
		_exit(bad);
	}
	MUST(child > 0);
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *listener = new_listener(channel, RDMA_PS_TCP);
	port_be = rdma_get_src_port(listener);
	MUST(write(pipes[1], &port_be, sizeof port_be) == sizeof port_be);
	struct rdma_cm_id *last = server(channel);
	TRUE(waitpid(child, &status, 0) == child && status == 0);
	no_false_event(last->verbs);
	rdma_destroy_qp(last);
	GOOD(rdma_destroy_id(last));
	GOOD(rdma_destroy_id(listener));
	rdma_destroy_event_channel(channel);
	return finish();
}
