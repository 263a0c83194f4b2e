/* Both sides poll, and answer each message at once. Each client exits as soon as it has polled the last message, without closing anything:
 * the server's last send completes with success all the same. Usage: answers server|client ADDRESS PORT */
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CLIENTS 20
#define MESSAGES 60
#define MUST(it) do { if (!(it)) { printf("line %d: " #it "\n", __LINE__); exit(1); } } while (0)

static char room[2][64];
static struct ibv_mr *memory;

static struct rdma_addrinfo *address(const char *host, const char *port, int flags)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP }, *found;
	MUST(!rdma_getaddrinfo(host, port, &hints, &found));
	return found;
}

static struct ibv_qp_init_attr attributes(void)
{
	return (struct ibv_qp_init_attr) { .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };
}

static void post_receive(struct rdma_cm_id *id)
{
	MUST(!rdma_post_recv(id, NULL, room[0], sizeof room[0], memory));
}

static void post_send(struct rdma_cm_id *id, int number)
{
	memcpy(room[1], &number, sizeof number);
	MUST(!rdma_post_send(id, NULL, room[1], sizeof room[1], memory, 0));
}

static void poll_one(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int got;
	while (!(got = ibv_poll_cq(cq, 1, &wc)))
		;
	MUST(got == 1);
	if (wc.status != IBV_WC_SUCCESS)
		printf("status %s\n", ibv_wc_status_str(wc.status));
	MUST(wc.status == IBV_WC_SUCCESS);
}

static void receive(struct rdma_cm_id *id, int number)
{
	poll_one(id->recv_cq);
	MUST(!memcmp(room[0], &number, sizeof number));
}

static void client(const char *host, const char *port)
{
	struct ibv_qp_init_attr attr = attributes();
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_id *id;
	MUST(!rdma_create_ep(&id, address(host, port, 0), NULL, &attr));
	MUST(memory = rdma_reg_msgs(id, room, sizeof room));
	post_receive(id);
	MUST(!rdma_connect(id, &param));
	for (int number = 0; number < MESSAGES; number++) {
		post_send(id, number);
		receive(id, number);
		if (number < MESSAGES - 1) {
			post_receive(id);
			poll_one(id->send_cq);
		}
	}
	exit(0);
}

static void serve(struct rdma_cm_id *listener)
{
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_id *id;
	MUST(!rdma_get_request(listener, &id));
	MUST(memory = rdma_reg_msgs(id, room, sizeof room));
	post_receive(id);
	MUST(!rdma_accept(id, &param));
	for (int number = 0; number < MESSAGES; number++) {
		receive(id, number);
		if (number < MESSAGES - 1)
			post_receive(id);
		post_send(id, number);
		poll_one(id->send_cq);
	}
	MUST(!rdma_dereg_mr(memory));
	rdma_destroy_ep(id);
}

int main(int argc, char **argv)
{
	alarm(250);
	setvbuf(stdout, NULL, _IOLBF, 0);
	MUST(argc == 4);
	if (!strcmp(argv[1], "server")) {
		struct ibv_qp_init_attr attr = attributes();
		struct rdma_cm_id *listener;
		MUST(!rdma_create_ep(&listener, address(argv[2], argv[3], RAI_PASSIVE), NULL, &attr));
		MUST(!rdma_listen(listener, 8));
		for (int round = 0; round < CLIENTS; round++)
			serve(listener);
	} else {
		for (int round = 0; round < CLIENTS; round++) {
			int status;
			pid_t child = fork();
			if (!child)
				client(argv[2], argv[3]);
			MUST(waitpid(child, &status, 0) == child && status == 0);
		}
	}
	printf("done\n");
	return 0;
}
