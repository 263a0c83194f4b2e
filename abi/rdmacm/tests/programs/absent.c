/* A client of a host at which no program may use RDMA. Prints each event, its status, and its time in milliseconds.
 * Arguments: "connects", or "resolves" for a datagram queue pair; the server's address; the port; and a file. If there is a file, it stays
 * after the first event until the file exists, and then disconnects. "serves" listens, accepts and waits until it is killed. */
#include <time.h>
#include "common.h"

static long now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* Fetches and prints the next event. */
static int show(struct rdma_event_channel *channel, long begun)
{
	struct rdma_cm_event *event;
	int type;
	MUST(rdma_get_cm_event(channel, &event) == 0);
	type = event->event;
	printf("%s %d %ld\n", rdma_event_str(type), event->status, now() - begun);
	fflush(stdout);
	GOOD(rdma_ack_cm_event(event));
	return type;
}

static void serve(struct rdma_addrinfo *info)
{
	struct ibv_qp_init_attr attr = { .cap = { 1, 1, 1, 1, 0 }, .sq_sig_all = 1 };
	struct rdma_cm_id *listener, *id;
	GOOD(rdma_create_ep(&listener, info, NULL, &attr));
	GOOD(rdma_listen(listener, 1));
	GOOD(rdma_get_request(listener, &id));
	GOOD(rdma_accept(id, NULL));
	pause();
}

int main(int argc, char **argv)
{
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	int serves, is_datagram, type;
	struct rdma_event_channel *channel;
	struct rdma_addrinfo *info;
	struct rdma_cm_id *id;
	long begun;
	begin();
	MUST(argc >= 4);
	serves = !strcmp(argv[1], "serves");
	is_datagram = !strcmp(argv[1], "resolves");
	struct rdma_addrinfo hints = { .ai_port_space = is_datagram ? RDMA_PS_UDP : RDMA_PS_TCP, .ai_flags = serves ? RAI_PASSIVE : 0 };
	MUST(rdma_getaddrinfo(argv[2], argv[3], &hints, &info) == 0);
	if (serves) {
		serve(info);
		return 1;
	}
	channel = new_channel();
	id = new_id(channel, hints.ai_port_space);
	GOOD(rdma_resolve_addr(id, NULL, info->ai_dst_addr, 2000));
	ACK_NEXT(channel, ADDR_RESOLVED, 0);
	GOOD(rdma_resolve_route(id, 2000));
	ACK_NEXT(channel, ROUTE_RESOLVED, 0);
	add_qp(id, is_datagram ? IBV_QPT_UD : IBV_QPT_RC);
	begun = now();
	GOOD(rdma_connect(id, &param));
	printf("asks\n");
	fflush(stdout);
	type = show(channel, begun);
	while (argc == 5 && access(argv[4], F_OK))
		usleep(5000);
	if (argc == 5 && type == RDMA_CM_EVENT_ESTABLISHED) {
		begun = now();
		GOOD(rdma_disconnect(id));
		show(channel, begun);
	}
	rdma_destroy_qp(id);
	GOOD(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
	return bad;
}
