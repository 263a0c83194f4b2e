/* librpma: a server exposes memory, and a client writes, flushes, reads and updates it, as librpma's examples do. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <librpma.h>

#define SIZE (1 << 20)
#define MESSAGE 64
/* Offsets in the server's memory. */
#define WORD 8192
#define WRITTEN 16384
#define LENGTH 100000

/* What the server's private data says about its memory. */
struct offer {
	uint8_t size;
	char descriptor[64];
};

static void must(int result, const char *what)
{
	if (result) {
		printf("%s: %s\n", what, rpma_err_2str(result));
		exit(1);
	}
}

static void expect(int holds, const char *what)
{
	if (!holds) {
		printf("wrong: %s\n", what);
		exit(1);
	}
}

static char *memory(void)
{
	char *memory = aligned_alloc(4096, SIZE);
	expect(memory != NULL, "memory");
	memset(memory, 0, SIZE);
	return memory;
}

static struct rpma_peer *open_peer(const char *address, enum rpma_util_ibv_context_type type)
{
	struct ibv_context *context;
	struct rpma_peer *peer;
	must(rpma_utils_get_ibv_context(address, type, &context), "rpma_utils_get_ibv_context");
	must(rpma_peer_new(context, &peer), "rpma_peer_new");
	return peer;
}

static void event(struct rpma_conn *connection, enum rpma_conn_event wanted)
{
	enum rpma_conn_event event;
	must(rpma_conn_next_event(connection, &event), "rpma_conn_next_event");
	if (event != wanted) {
		printf("event %s instead of %s\n", rpma_utils_conn_event_2str(event),
		       rpma_utils_conn_event_2str(wanted));
		exit(1);
	}
}

/* Waits for one completion. */
static void complete(struct rpma_conn *connection, const void *context, enum ibv_wc_opcode opcode)
{
	struct rpma_cq *queue;
	struct ibv_wc completion;
	int result;
	must(rpma_conn_get_cq(connection, &queue), "rpma_conn_get_cq");
	do {
		must(rpma_cq_wait(queue), "rpma_cq_wait");
		result = rpma_cq_get_wc(queue, 1, &completion, NULL);
	} while (result == RPMA_E_NO_COMPLETION);
	must(result, "rpma_cq_get_wc");
	expect(completion.status == IBV_WC_SUCCESS, ibv_wc_status_str(completion.status));
	expect(completion.wr_id == (uintptr_t)context, "the context of a completion");
	expect(completion.opcode == opcode, "the opcode of a completion");
}

static void serve(const char *address, const char *port)
{
	struct rpma_peer *peer = open_peer(address, RPMA_UTIL_IBV_CONTEXT_LOCAL);
	char *all = memory(), *inbox = memory();
	struct rpma_mr_local *region, *messages;
	struct rpma_ep *endpoint;
	struct rpma_conn_req *request;
	struct rpma_conn *connection;
	struct rpma_conn_private_data data, hello;
	struct offer offer = { 0 };
	size_t size;
	must(rpma_mr_reg(peer, all, SIZE,
			 RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY,
			 &region),
	     "rpma_mr_reg");
	must(rpma_mr_reg(peer, inbox, MESSAGE, RPMA_MR_USAGE_RECV, &messages), "rpma_mr_reg");
	must(rpma_mr_get_descriptor_size(region, &size), "rpma_mr_get_descriptor_size");
	expect(size <= sizeof offer.descriptor, "the size of a descriptor");
	offer.size = (uint8_t)size;
	must(rpma_mr_get_descriptor(region, offer.descriptor), "rpma_mr_get_descriptor");
	must(rpma_ep_listen(peer, address, port, &endpoint), "rpma_ep_listen");

	/* The first request is refused. */
	must(rpma_ep_next_conn_req(endpoint, NULL, &request), "rpma_ep_next_conn_req");
	must(rpma_conn_req_delete(&request), "rpma_conn_req_delete");

	must(rpma_ep_next_conn_req(endpoint, NULL, &request), "rpma_ep_next_conn_req");
	must(rpma_conn_req_get_private_data(request, &hello), "rpma_conn_req_get_private_data");
	expect(hello.len >= 6 && !strcmp(hello.ptr, "hello"), "the client's private data");
	must(rpma_conn_req_recv(request, messages, 0, MESSAGE, inbox), "rpma_conn_req_recv");
	data.ptr = &offer;
	data.len = sizeof offer;
	must(rpma_conn_req_connect(&request, &data, &connection), "rpma_conn_req_connect");
	event(connection, RPMA_CONN_ESTABLISHED);
	/* The message says that everything is written. */
	complete(connection, inbox, IBV_WC_RECV);
	expect(!strcmp(inbox, "written"), "the message");
	for (size_t at = 0; at < LENGTH; at++)
		expect(all[WRITTEN + at] == (char)(at % 251), "the memory that the client has written");
	expect(!memcmp(all + WORD, "12345678", 8), "the word that the client has written");
	event(connection, RPMA_CONN_CLOSED);
	must(rpma_conn_disconnect(connection), "rpma_conn_disconnect");
	must(rpma_conn_delete(&connection), "rpma_conn_delete");
	must(rpma_ep_shutdown(&endpoint), "rpma_ep_shutdown");
	must(rpma_mr_dereg(&region), "rpma_mr_dereg");
	must(rpma_mr_dereg(&messages), "rpma_mr_dereg");
	must(rpma_peer_delete(&peer), "rpma_peer_delete");
}

static struct rpma_conn *start(struct rpma_peer *peer, const char *address, const char *port)
{
	struct rpma_conn_private_data hello = { .ptr = "hello", .len = 6 };
	struct rpma_conn_req *request;
	struct rpma_conn *connection;
	must(rpma_conn_req_new(peer, address, port, NULL, &request), "rpma_conn_req_new");
	must(rpma_conn_req_connect(&request, &hello, &connection), "rpma_conn_req_connect");
	return connection;
}

static void ask(const char *address, const char *port)
{
	struct rpma_peer *peer = open_peer(address, RPMA_UTIL_IBV_CONTEXT_REMOTE);
	char *all = memory(), *back = memory();
	struct rpma_mr_local *source, *target;
	struct rpma_mr_remote *remote;
	struct rpma_conn_private_data data;
	struct rpma_conn *connection = start(peer, address, port);
	const struct offer *offer;
	size_t size;
	event(connection, RPMA_CONN_REJECTED);
	must(rpma_conn_delete(&connection), "rpma_conn_delete");

	connection = start(peer, address, port);
	event(connection, RPMA_CONN_ESTABLISHED);
	must(rpma_conn_get_private_data(connection, &data), "rpma_conn_get_private_data");
	expect(data.len >= sizeof *offer, "the server's private data");
	offer = data.ptr;
	must(rpma_mr_remote_from_descriptor(offer->descriptor, offer->size, &remote), "rpma_mr_remote_from_descriptor");
	must(rpma_mr_remote_get_size(remote, &size), "rpma_mr_remote_get_size");
	expect(size == SIZE, "the size of the server's memory");
	must(rpma_mr_reg(peer, all, SIZE, RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_SEND, &source), "rpma_mr_reg");
	must(rpma_mr_reg(peer, back, SIZE, RPMA_MR_USAGE_READ_DST, &target), "rpma_mr_reg");
	for (size_t at = 0; at < LENGTH; at++)
		all[at] = (char)(at % 251);

	must(rpma_write(connection, remote, WRITTEN, source, 0, LENGTH, RPMA_F_COMPLETION_ON_ERROR, NULL), "rpma_write");
	must(rpma_flush(connection, remote, WRITTEN, LENGTH, RPMA_FLUSH_TYPE_VISIBILITY, RPMA_F_COMPLETION_ALWAYS, all),
	     "rpma_flush");
	complete(connection, all, IBV_WC_RDMA_READ);
	must(rpma_atomic_write(connection, remote, WORD, "12345678", RPMA_F_COMPLETION_ALWAYS, back), "rpma_atomic_write");
	complete(connection, back, IBV_WC_RDMA_WRITE);
	must(rpma_read(connection, target, 0, remote, WRITTEN, LENGTH, RPMA_F_COMPLETION_ALWAYS, back), "rpma_read");
	complete(connection, back, IBV_WC_RDMA_READ);
	expect(!memcmp(all, back, LENGTH), "the memory that the client has read");

	strcpy(all, "written");
	must(rpma_send(connection, source, 0, MESSAGE, RPMA_F_COMPLETION_ALWAYS, all), "rpma_send");
	complete(connection, all, IBV_WC_SEND);
	must(rpma_conn_disconnect(connection), "rpma_conn_disconnect");
	event(connection, RPMA_CONN_CLOSED);
	must(rpma_mr_remote_delete(&remote), "rpma_mr_remote_delete");
	must(rpma_conn_delete(&connection), "rpma_conn_delete");
	must(rpma_mr_dereg(&source), "rpma_mr_dereg");
	must(rpma_mr_dereg(&target), "rpma_mr_dereg");
	must(rpma_peer_delete(&peer), "rpma_peer_delete");
}

int main(int count, char **words)
{
	expect(count == 4, "arguments: server or client, an address, a port");
	if (!strcmp(words[1], "server"))
		serve(words[2], words[3]);
	else
		ask(words[2], words[3]);
	printf("done\n");
	return 0;
}
