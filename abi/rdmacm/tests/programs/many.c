/* Ten thousand connections, one after the other, leak neither memory nor descriptors. Prints the number of connections per second. */
#include "common.h"
#include <dirent.h>
#include <malloc.h>
#include <time.h>

#define WARM 300
#define COUNT 10000
/* 1 MiB, about 105 bytes for each connection. */
#define GROWTH (1 << 20)

static struct rdma_event_channel *here, *there;
static struct ibv_cq *cq;

static void add_small_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	if (!cq)
		MUST(cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0));
	attr.send_cq = attr.recv_cq = cq;
	GOOD(rdma_create_qp(id, NULL, &attr));
}

static void end(struct rdma_cm_id *id)
{
	rdma_destroy_qp(id);
	GOOD(rdma_destroy_id(id));
}

static void connect_once(uint16_t port_be)
{
	struct rdma_cm_id *client = new_client(here, RDMA_PS_TCP, port_be), *server;
	struct rdma_conn_param param = { .retry_count = 7 };
	struct rdma_cm_event *event;
	add_small_qp(client);
	GOOD(rdma_connect(client, &param));
	event = NEXT(there, CONNECT_REQUEST, 0);
	server = event->id;
	GOOD(rdma_ack_cm_event(event));
	add_small_qp(server);
	GOOD(rdma_accept(server, &param));
	ACK_NEXT(here, ESTABLISHED, 0);
	ACK_NEXT(there, ESTABLISHED, 0);
	GOOD(rdma_disconnect(client));
	ACK_NEXT(there, DISCONNECTED, 0);
	GOOD(rdma_disconnect(server));
	ACK_NEXT(here, DISCONNECTED, 0);
	end(server);
	end(client);
}

static int files(void)
{
	DIR *open = opendir("/proc/self/fd");
	int count = 0;
	MUST(open);
	while (readdir(open))
		count++;
	closedir(open);
	return count;
}

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

/* Waits until at most `limit` bytes are in use, and returns how many are. Ended connections keep memory for a few seconds. */
static size_t wait_for_memory(size_t limit)
{
	double begun = seconds();
	size_t used;
	do {
		usleep(10000);
		used = mallinfo2().uordblks;
	} while (used > limit && seconds() - begun < 60);
	return used;
}

int main(void)
{
	int round, open;
	size_t before, after;
	double begun;
	begin();
	here = new_channel();
	there = new_channel();
	struct rdma_cm_id *listener = new_listener(there, RDMA_PS_TCP);
	uint16_t port_be = rdma_get_src_port(listener);

	for (round = 0; round < WARM; round++)
		connect_once(port_be);
	/* Longer than time wait, so that the connections of the warm-up have ended. */
	sleep(3);
	before = mallinfo2().uordblks;
	open = files();
	begun = seconds();
	for (round = 0; round < COUNT; round++)
		connect_once(port_be);
	printf("%.0f connections per second\n", COUNT / (seconds() - begun));
	after = wait_for_memory(before + GROWTH);
	printf("%zu bytes in use, then %zu\n", before, after);
	TRUE(after <= before + GROWTH);
	TRUE(files() == open);
	GOOD(ibv_destroy_cq(cq));
	GOOD(rdma_destroy_id(listener));
	rdma_destroy_event_channel(here);
	rdma_destroy_event_channel(there);
	return finish();
}
