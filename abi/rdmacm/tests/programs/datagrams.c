/* Datagrams through rsockets. */
#include "sockets.h"

/* A datagram queue pair of ours, and an address handle for queue pairs on this host. */
struct sender {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	struct ibv_ah *ah;
	uint8_t bytes[256];
};

static void make_sender(struct sender *own)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	MUST(list && list[0] && (own->context = ibv_open_device(list[0])));
	ibv_free_device_list(list);
	MUST((own->pd = ibv_alloc_pd(own->context)) && (own->cq = ibv_create_cq(own->context, 8, NULL, NULL, 0)));
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_UD, .send_cq = own->cq, .recv_cq = own->cq, .cap = { 4, 4, 1, 1, 0 }, .sq_sig_all = 1 };
	MUST((own->qp = ibv_create_qp(own->pd, &attr)));
	struct ibv_qp_attr to = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = RDMA_UDP_QKEY };
	GOOD(ibv_modify_qp(own->qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	to.qp_state = IBV_QPS_RTR;
	GOOD(ibv_modify_qp(own->qp, &to, IBV_QP_STATE));
	to.qp_state = IBV_QPS_RTS;
	GOOD(ibv_modify_qp(own->qp, &to, IBV_QP_STATE | IBV_QP_SQ_PSN));
	MUST((own->mr = ibv_reg_mr(own->pd, own->bytes, sizeof own->bytes, IBV_ACCESS_LOCAL_WRITE)));
	struct ibv_ah_attr way = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } };
	GOOD(inet_pton(AF_INET6, "::ffff:127.0.0.1", &way.grh.dgid) != 1);
	MUST((own->ah = ibv_create_ah(own->pd, &way)));
}

/* Sends a datagram that claims to be from an address. */
static void claims(struct sender *own, uint32_t qpn, const struct sockaddr_in *from, const char *words)
{
	uint8_t header[8] = { 1, 8 };
	memcpy(header + 2, &from->sin_port, 2);
	memcpy(header + 4, &from->sin_addr, 4);
	memcpy(own->bytes, header, 8);
	memcpy(own->bytes + 8, words, strlen(words));
	struct ibv_sge sge = { (uintptr_t)own->bytes, (uint32_t)(8 + strlen(words)), own->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *wrong;
	wr.wr.ud.ah = own->ah;
	wr.wr.ud.remote_qpn = qpn;
	wr.wr.ud.remote_qkey = RDMA_UDP_QKEY;
	struct ibv_wc wc;
	int got;
	GOOD(ibv_post_send(own->qp, &wr, &wrong));
	while ((got = ibv_poll_cq(own->cq, 1, &wc)) == 0)
		;
	MUST(got == 1 && wc.status == IBV_WC_SUCCESS);
}

static void end_sender(struct sender *own)
{
	GOOD(ibv_destroy_ah(own->ah));
	GOOD(ibv_dereg_mr(own->mr));
	GOOD(ibv_destroy_qp(own->qp));
	GOOD(ibv_destroy_cq(own->cq));
	GOOD(ibv_dealloc_pd(own->pd));
	GOOD(ibv_close_device(own->context));
}

/* Only the queue pair that the owner of an address has announced over UDP can send from this address. */
static void forged_senders_are_refused(int fd, const struct sockaddr_in *at, const struct sockaddr_in *victim)
{
	static struct sender own;
	struct sockaddr_in mine = loopback(0), unknown = loopback(htons(9)), from;
	socklen_t len = sizeof mine;
	uint8_t tells[18] = { 0x55, 0x55, 0x55, 0x55, 1, 0, 16, 0 }, answer[64];
	char back[64];
	int udp = socket(AF_INET, SOCK_DGRAM, 0);
	make_sender(&own);
	GOOD(bind(udp, ADDRESS(mine), sizeof mine));
	GOOD(getsockname(udp, ADDRESS(mine), &len));
	uint32_t number = htonl(own.qp->qp_num << 8);
	memcpy(tells + 8, &number, 4);
	memcpy(tells + 12, &mine.sin_addr, 4);
	memcpy(tells + 16, "hi", 2);
	TRUE(sendto(udp, tells, sizeof tells, 0, (const struct sockaddr *)at, sizeof *at) == sizeof tells);
	TRUE(rrecv(fd, back, sizeof back, 0) == 2 && !memcmp(back, "hi", 2));
	MUST(recv(udp, answer, sizeof answer, 0) >= 12);
	memcpy(&number, answer + 8, 4);
	number = ntohl(number) >> 8;
	claims(&own, number, victim, "forged");
	claims(&own, number, &unknown, "forged");
	claims(&own, number, &mine, "honest");
	len = sizeof from;
	TRUE(rrecvfrom(fd, back, sizeof back, 0, ADDRESS(from), &len) == 6);
	TRUE(!memcmp(back, "honest", 6) && from.sin_port == mine.sin_port);
	FAILS(EAGAIN, rrecv(fd, back, sizeof back, MSG_DONTWAIT));
	close(udp);
	end_sender(&own);
}

static int bound(struct sockaddr_in *at)
{
	socklen_t len = sizeof *at;
	int fd = rsocket(AF_INET, SOCK_DGRAM, 0);
	MUST(fd >= 0);
	*at = loopback(0);
	GOOD(rbind(fd, (struct sockaddr *)at, sizeof *at));
	GOOD(rgetsockname(fd, (struct sockaddr *)at, &len));
	TRUE(at->sin_port != 0);
	return fd;
}

/* A wildcard stands for the loopback address. */
static void peers_may_be_wildcards(void)
{
	struct sockaddr_in at, any = { .sin_family = AF_INET }, from;
	socklen_t len = sizeof from;
	int server = bound(&at), fd = rsocket(AF_INET, SOCK_DGRAM, 0);
	char back[8];
	any.sin_port = at.sin_port;
	GOOD(rconnect(fd, ADDRESS(any), sizeof any));
	TRUE(rsend(fd, "there", 5, 0) == 5);
	TRUE(rrecvfrom(server, back, sizeof back, 0, ADDRESS(from), &len) == 5);
	TRUE(rsendto(server, "back", 4, 0, ADDRESS(from), len) == 4);
	TRUE(polled(fd, POLLIN, 60000) == POLLIN && rrecv(fd, back, sizeof back, 0) == 4);
	GOOD(rclose(server));
	GOOD(rclose(fd));
}

/* Unmapped memory is refused, as the kernel does; nothing is lost. */
static void memory_is_checked(int fd, int other, const struct sockaddr_in *at, const struct sockaddr_in *of_other)
{
	char *none = no_memory(), back[8];
	int round;
	/* Over UDP, and between queue pairs. */
	for (round = 0; round < 2; round++) {
		FAILS(EFAULT, rsendto(fd, none, 4, 0, (const struct sockaddr *)of_other, sizeof *of_other));
		TRUE(rsendto(fd, "data", 4, 0, (const struct sockaddr *)of_other, sizeof *of_other) == 4);
		TRUE(polled(other, POLLIN, 60000) == POLLIN);
		FAILS(EFAULT, rrecv(other, none, 4, 0));
		TRUE(rrecv(other, back, sizeof back, 0) == 4 && !memcmp(back, "data", 4));
		TRUE(rsendto(other, "back", 4, 0, (const struct sockaddr *)at, sizeof *at) == 4);
		TRUE(rrecv(fd, back, sizeof back, 0) == 4);
	}
}

/* A server that restarts on its port has another queue pair, and its client does not hear of it. */
static void servers_may_restart(void)
{
	int client = rsocket(AF_INET, SOCK_DGRAM, 0), server, restart, left;
	struct sockaddr_in at = loopback(0);
	socklen_t len = sizeof at;
	char back[8];
	for (restart = 0; restart < 2; restart++) {
		server = rsocket(AF_INET, SOCK_DGRAM, 0);
		GOOD(rbind(server, ADDRESS(at), sizeof at));
		GOOD(rgetsockname(server, ADDRESS(at), &len));
		/* The client only sends. Some datagrams to a server that is gone are lost. */
		for (left = 600; left > 0; left--) {
			TRUE(rsendto(client, "hello", 5, 0, ADDRESS(at), sizeof at) == 5);
			if (polled(server, POLLIN, 100) == POLLIN)
				break;
		}
		TRUE(left > 0 && rrecv(server, back, sizeof back, 0) == 5);
		/* The second datagram travels between queue pairs. */
		TRUE(rsendto(client, "again", 5, 0, ADDRESS(at), sizeof at) == 5);
		TRUE(polled(server, POLLIN, 60000) == POLLIN && rrecv(server, back, sizeof back, 0) == 5);
		GOOD(rclose(server));
	}
	GOOD(rclose(client));
}

int main(void)
{
	static char big[5000], back[5000];
	struct sockaddr_in at[3], from, far = loopback(htons(9));
	socklen_t len = sizeof from;
	int fds[3], i, round, value;
	begin();
	for (i = 0; i < 3; i++)
		fds[i] = bound(&at[i]);
	memory_is_checked(fds[0], fds[2], &at[0], &at[2]);
	FAILS(EDESTADDRREQ, rsend(fds[0], "x", 1, 0));
	FAILS(EMSGSIZE, rsendto(fds[0], big, sizeof big, 0, ADDRESS(at[1]), sizeof at[1]));
	FAILS(EAGAIN, rrecv(fds[0], back, 1, MSG_DONTWAIT));
	FAILS(EOPNOTSUPP, rlisten(fds[0], 1));
	FAILS(EOPNOTSUPP, raccept(fds[0], NULL, NULL));
	FAILS(ENOTCONN, rgetpeername(fds[0], ADDRESS(from), &len));
	far.sin_addr.s_addr = inet_addr("192.0.2.1");
	FAILS(ENETUNREACH, rsendto(fds[0], "x", 1, 0, ADDRESS(far), sizeof far));
	TRUE(polled(fds[0], POLLIN | POLLOUT, 0) == POLLOUT);
	/* There and back. The first datagram travels over UDP, the others between queue pairs. */
	for (round = 0; round < 200; round++) {
		size_t size = round == 0 ? 0 : (size_t)(round * 20);
		memset(big, 'a' + round % 26, size);
		TRUE(rsendto(fds[0], big, size, 0, ADDRESS(at[1]), sizeof at[1]) == (ssize_t)size);
		len = sizeof from;
		MUST(rrecvfrom(fds[1], back, sizeof back, 0, ADDRESS(from), &len) == (ssize_t)size);
		TRUE(!memcmp(big, back, size) && from.sin_port == at[0].sin_port && from.sin_addr.s_addr == at[0].sin_addr.s_addr);
		TRUE(rsendto(fds[1], back, size, 0, ADDRESS(from), len) == (ssize_t)size);
		TRUE(polled(fds[0], POLLIN, 60000) == POLLIN);
		MUST(rrecv(fds[0], back, sizeof back, MSG_PEEK) == (ssize_t)size);
		MUST(rrecv(fds[0], back, sizeof back, 0) == (ssize_t)size);
	}
	/* What does not fit is discarded. */
	TRUE(rsendto(fds[0], "abcdef", 6, 0, ADDRESS(at[1]), sizeof at[1]) == 6);
	struct iovec part = { back, 3 };
	struct msghdr message = { .msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &part, .msg_iovlen = 1 };
	TRUE(rrecvmsg(fds[1], &message, 0) == 3 && message.msg_flags == MSG_TRUNC && message.msg_namelen == sizeof from);
	/* A connected socket receives only from its peer. */
	GOOD(rconnect(fds[0], ADDRESS(at[1]), sizeof at[1]));
	GOOD(rgetpeername(fds[0], ADDRESS(from), &len));
	TRUE(from.sin_port == at[1].sin_port);
	TRUE(rsendto(fds[2], "no", 2, 0, ADDRESS(at[0]), sizeof at[0]) == 2);
	TRUE(rsend(fds[0], "yes", 3, 0) == 3);
	TRUE(rrecv(fds[1], back, sizeof back, 0) == 3);
	TRUE(rsendto(fds[1], "yes", 3, 0, ADDRESS(at[0]), sizeof at[0]) == 3);
	TRUE(rrecv(fds[0], back, sizeof back, 0) == 3);
	len = sizeof value;
	GOOD(rgetsockopt(fds[0], SOL_SOCKET, SO_TYPE, &value, &len));
	TRUE(value == SOCK_DGRAM);
	/* Datagrams of an ordinary UDP socket, mostly malformed, do no harm. */
	int plain = socket(AF_INET, SOCK_DGRAM, 0);
	for (i = 0; i < 40; i++) {
		memset(big, i % 2 ? 0x55 : 0, 40);
		big[4] = 1;
		big[5] = i % 4 ? 0 : 7;
		big[6] = i % 3 ? 16 : 28;
		sendto(plain, big, (size_t)i, 0, ADDRESS(at[2]), sizeof at[2]);
	}
	TRUE(rsendto(fds[1], "still", 5, 0, ADDRESS(at[2]), sizeof at[2]) == 5);
	do
		MUST((value = (int)rrecv(fds[2], back, sizeof back, 0)) >= 0);
	while (value != 5 || memcmp(back, "still", 5));
	close(plain);
	forged_senders_are_refused(fds[2], &at[2], &at[1]);
	peers_may_be_wildcards();
	servers_may_restart();
	for (i = 0; i < 3; i++)
		GOOD(rclose(fds[i]));
	TRUE(rclose(fds[0]) == EBADF);
	return finish();
}
