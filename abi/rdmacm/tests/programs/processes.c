/* A server with more client processes than its connection manager keeps links. */
#include "common.h"
#include <sys/resource.h>

#define CLIENTS 280

static void run_client(int number, int ports)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .qp_num = 0x1000 + number };
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	uint16_t port;

	/* If the parent exits early, no port arrives. */
	if (read(ports, &port, sizeof port) != sizeof port)
		exit(1);
	channel = new_channel();
	id = new_client(channel, RDMA_PS_TCP, port);
	GOOD(rdma_connect(id, &param));
	ACK_NEXT(channel, CONNECT_RESPONSE, 0);
	GOOD(rdma_establish(id));
	ACK_NEXT(channel, DISCONNECTED, 0);
	GOOD(rdma_disconnect(id));
	GOOD(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
	exit(bad);
}

int main(void)
{
	struct rdma_cm_id *ids[CLIENTS], *listener;
	struct rdma_event_channel *channel;
	struct sockaddr_in any = { .sin_family = AF_INET };
	pid_t pids[CLIENTS];
	int ports[2], number, requests = 0, established = 0, status;
	uint16_t port;

	begin();
	/* With this limit, the connection manager keeps 32 links in each direction. */
	struct rlimit files;
	GOOD(getrlimit(RLIMIT_NOFILE, &files));
	files.rlim_cur = 256;
	GOOD(setrlimit(RLIMIT_NOFILE, &files));
	/* A forked child cannot use its parent's connection manager, so fork before the parent starts it. */
	GOOD(pipe(ports));
	for (number = 0; number < CLIENTS; number++) {
		MUST((pids[number] = fork()) >= 0);
		if (pids[number] == 0) {
			close(ports[1]);
			alarm(250);
			run_client(number, ports[0]);
		}
	}
	channel = new_channel();
	listener = new_id(channel, RDMA_PS_TCP);
	GOOD(rdma_bind_addr(listener, ADDRESS(any)));
	GOOD(rdma_listen(listener, 0));
	port = rdma_get_src_port(listener);
	for (number = 0; number < CLIENTS; number++)
		MUST(write(ports[1], &port, sizeof port) == sizeof port);

	while (established < CLIENTS) {
		struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .qp_num = 0x2000 + requests };
		struct rdma_cm_event *event = NULL;
		MUST(!rdma_get_cm_event(channel, &event));
		switch (event->event) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			MUST(requests < CLIENTS);
			ids[requests++] = event->id;
			GOOD(rdma_accept(event->id, &param));
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			established++;
			break;
		default:
			printf("%s with status %d\n", rdma_event_str(event->event), event->status);
			exit(1);
		}
		GOOD(rdma_ack_cm_event(event));
	}
	/* Killed clients are noticed, with and without a link to them. */
	for (number = 0; number < CLIENTS; number += CLIENTS - 1) {
		GOOD(kill(pids[number], SIGKILL));
		MUST(waitpid(pids[number], &status, 0) == pids[number]);
		ACK_NEXT(channel, DISCONNECTED, 0);
	}
	/* The others still have their connections. */
	for (number = 0; number < CLIENTS; number++)
		GOOD(rdma_destroy_id(ids[number]));
	for (number = 1; number < CLIENTS - 1; number++) {
		MUST(waitpid(pids[number], &status, 0) == pids[number]);
		TRUE(status == 0);
	}
	GOOD(rdma_destroy_id(listener));
	rdma_destroy_event_channel(channel);
	return finish();
}
