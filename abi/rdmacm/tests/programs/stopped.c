/* A server that is stopped (SIGSTOP) while a client connects, and continued later. */
#include "common.h"

static void run_server(int ports)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *listener = new_listener(channel, RDMA_PS_TCP), *id;
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .qp_num = 0x2000 };
	struct rdma_cm_event *event;
	uint16_t port = rdma_get_src_port(listener);

	MUST(write(ports, &port, sizeof port) == sizeof port);
	raise(SIGSTOP);
	event = NEXT(channel, CONNECT_REQUEST, 0);
	id = event->id;
	GOOD(rdma_ack_cm_event(event));
	GOOD(rdma_accept(id, &param));
	ACK_NEXT(channel, ESTABLISHED, 0);
	/* From now on, it only waits to be killed. */
	ACK_NEXT(channel, DISCONNECTED, 0);
	exit(bad);
}

int main(void)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .qp_num = 0x1000 };
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	int ports[2], status;
	uint16_t port;
	pid_t server;

	begin();
	GOOD(pipe(ports));
	MUST((server = fork()) >= 0);
	if (server == 0) {
		alarm(250);
		run_server(ports[1]);
	}
	close(ports[1]);
	MUST(read(ports[0], &port, sizeof port) == sizeof port);
	MUST(waitpid(server, &status, WUNTRACED) == server && WIFSTOPPED(status));
	channel = new_channel();
	id = new_client(channel, RDMA_PS_TCP, port);
	GOOD(rdma_connect(id, &param));
	GOOD(kill(server, SIGCONT));
	ACK_NEXT(channel, CONNECT_RESPONSE, 0);
	GOOD(rdma_establish(id));
	/* Stopping the peer does not disconnect; killing it does. */
	GOOD(kill(server, SIGSTOP));
	MUST(waitpid(server, &status, WUNTRACED) == server && WIFSTOPPED(status));
	GOOD(kill(server, SIGKILL));
	MUST(waitpid(server, &status, 0) == server && WIFSIGNALED(status));
	ACK_NEXT(channel, DISCONNECTED, 0);
	GOOD(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
	return finish();
}
