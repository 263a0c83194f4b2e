/*
 * The programs of c_peer.rs in C, with librdmacm's synchronous calls: an owner of memory, and a visitor that writes, reads and
 * counts in it. Either side may be the Rust program.
 *
 *   gcc -o c_peer c_peer.c -lrdmacm -libverbs
 *   rkey run -- ./c_peer owner 127.0.0.1 7471
 *   rkey run -- ./c_peer visitor 127.0.0.1 7471
 *
 * `refuse` is an owner that refuses its visitor, `refused` a visitor that is refused, `stay` a visitor that never exits.
 */
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

/* The memory of the owner: a counter of 8 bytes, then room for text. */
#define BYTES 64
#define TEXT 16

/* The owner's key, in the private data of its answer, in network byte order. */
struct key {
	uint64_t address, length;
	uint32_t number;
} __attribute__((packed));

static void must(int good, const char *what)
{
	if (!good) {
		perror(what);
		exit(1);
	}
}

static void sent(struct rdma_cm_id *id, const char *what)
{
	struct ibv_wc wc;
	must(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS, what);
}

static struct rdma_cm_id *endpoint(const char *host, const char *port, int flags)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP }, *info;
	struct ibv_qp_init_attr attr = { .cap = { 4, 4, 1, 1, 16 }, .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };
	struct rdma_cm_id *id;

	must(!rdma_getaddrinfo(host, port, &hints, &info), "rdma_getaddrinfo");
	must(!rdma_create_ep(&id, info, NULL, &attr), "rdma_create_ep");
	rdma_freeaddrinfo(info);
	return id;
}

static struct rdma_conn_param told(const void *data, uint8_t len)
{
	struct rdma_conn_param param = {
		.private_data = data, .private_data_len = len, .responder_resources = 1, .initiator_depth = 1,
		.retry_count = 7, .rnr_retry_count = 7,
	};
	return param;
}

static int visit(const char *host, const char *port, const char *mode)
{
	static char text[] = "hello from C";
	/* What is read, the old value of the counter, and the owner's message. */
	static struct { char read[8]; uint64_t counter; char message[16]; } local;
	struct rdma_cm_id *id = endpoint(host, port, 0);
	struct rdma_conn_param param = told("visitor", 7);
	struct ibv_mr *mr = rdma_reg_msgs(id, &local, sizeof(local)), *text_mr = rdma_reg_msgs(id, text, sizeof(text));
	struct ibv_wc wc;
	struct key key;

	must(mr && text_mr, "rdma_reg_msgs");
	must(!rdma_post_recv(id, NULL, local.message, sizeof(local.message), mr), "rdma_post_recv");
	if (!strcmp(mode, "refused")) {
		must(rdma_connect(id, &param) == -1 && errno == ECONNREFUSED, "rdma_connect was not refused");
		printf("refused: %s\n", (const char *)id->event->param.conn.private_data);
		rdma_destroy_ep(id);
		return 0;
	}
	must(!rdma_connect(id, &param), "rdma_connect");
	memcpy(&key, id->event->param.conn.private_data, sizeof(key));
	printf("connected\n");
	while (!strcmp(mode, "stay"))
		pause();

	uint64_t address = be64toh(key.address);
	uint32_t number = ntohl(key.number);
	must(!rdma_post_write(id, NULL, text, sizeof(text), text_mr, 0, address + TEXT, number), "rdma_post_write");
	sent(id, "write completion");

	struct ibv_sge sge = { .addr = (uintptr_t)&local.counter, .length = 8, .lkey = mr->lkey };
	struct ibv_send_wr add = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD }, *failed;
	add.wr.atomic.remote_addr = address;
	add.wr.atomic.rkey = number;
	add.wr.atomic.compare_add = 7;
	must(!ibv_post_send(id->qp, &add, &failed), "ibv_post_send");
	sent(id, "fetch-and-add completion");
	must(local.counter == 0, "the counter was not 0");

	must(!rdma_post_read(id, NULL, local.read, 5, mr, 0, address + TEXT, number), "rdma_post_read");
	sent(id, "read completion");
	must(!memcmp(local.read, "hello", 5), "the text read back is not the text written");

	must(!rdma_post_send(id, NULL, "done", 4, NULL, IBV_SEND_INLINE), "rdma_post_send");
	sent(id, "send completion");
	must(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "rdma_get_recv_comp");
	must(wc.byte_len == 6 && !memcmp(local.message, "thanks", 6), "the owner's message is not \"thanks\"");
	must(!rdma_disconnect(id), "rdma_disconnect");
	rdma_destroy_ep(id);
	return 0;
}

static int own(const char *host, const char *port, const char *mode)
{
	static union { uint64_t counter; char bytes[BYTES]; } memory;
	static char message[16];
	struct rdma_cm_id *listener = endpoint(host, port, RAI_PASSIVE), *id;
	struct ibv_wc wc;

	must(!rdma_listen(listener, 8), "rdma_listen");
	must(!rdma_get_request(listener, &id), "rdma_get_request");
	must(!memcmp(id->event->param.conn.private_data, "visitor", 7), "the private data of the request is not \"visitor\"");
	if (!strcmp(mode, "refuse")) {
		must(!rdma_reject(id, "go away", 8), "rdma_reject");
		rdma_destroy_ep(id);
		rdma_destroy_ep(listener);
		return 0;
	}
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	struct ibv_mr *mr = ibv_reg_mr(id->pd, &memory, sizeof(memory), access);
	struct ibv_mr *message_mr = rdma_reg_msgs(id, message, sizeof(message));
	must(mr && message_mr, "ibv_reg_mr");
	must(!rdma_post_recv(id, NULL, message, sizeof(message), message_mr), "rdma_post_recv");
	struct key key = { htobe64((uintptr_t)&memory), htobe64(sizeof(memory)), htonl(mr->rkey) };
	struct rdma_conn_param param = told(&key, sizeof(key));
	must(!rdma_accept(id, &param), "rdma_accept");

	must(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "rdma_get_recv_comp");
	must(wc.byte_len == 4 && !memcmp(message, "done", 4) && memory.counter == 7, "the visitor did not send \"done\" or did not add 7");
	memory.bytes[BYTES - 1] = 0;
	printf("the owner's memory: %s\n", memory.bytes + TEXT);
	must(!rdma_post_send(id, NULL, "thanks", 6, NULL, IBV_SEND_INLINE), "rdma_post_send");
	sent(id, "send completion");
	must(!rdma_disconnect(id), "rdma_disconnect");
	ibv_dereg_mr(mr);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
	return 0;
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc != 4) {
		fprintf(stderr, "usage: c_peer owner|refuse|visitor|refused|stay HOST PORT\n");
		return 2;
	}
	int owns = !strcmp(argv[1], "owner") || !strcmp(argv[1], "refuse");
	return owns ? own(argv[2], argv[3], argv[1]) : visit(argv[2], argv[3], argv[1]);
}
