/* Peers that follow the connection manager's protocol, but violate the protocol of rsockets. */
#include "sockets.h"

/* The private data of an rsocket. */
struct offer {
	uint8_t version, flags;
	uint16_t credits;
	uint8_t reserved[3], iomaps;
	struct { uint64_t addr; uint32_t key, len; } targets, first;
} __attribute__((packed));

static char memory[8192];

struct peer {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	struct offer theirs;
};

static int connect_with(struct peer *peer, uint16_t port, const struct offer *offer, size_t len)
{
	struct rdma_conn_param param = { .private_data = offer, .private_data_len = (uint8_t)len, .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_event *event;
	int kind;
	GOOD(rdma_connect(peer->id, &param));
	MUST(rdma_get_cm_event(peer->channel, &event) == 0);
	kind = (int)event->event;
	if (kind == RDMA_CM_EVENT_ESTABLISHED)
		memcpy(&peer->theirs, event->param.conn.private_data, sizeof peer->theirs);
	GOOD(rdma_ack_cm_event(event));
	(void)port;
	return kind;
}

static struct offer good_offer(const struct peer *peer)
{
	struct offer offer = { .version = 1, .credits = htons(8) };
	offer.targets.addr = htobe64((uintptr_t)memory);
	offer.targets.key = htonl(peer->mr->rkey);
	offer.targets.len = htonl(2);
	offer.first.addr = htobe64((uintptr_t)memory + 4096);
	offer.first.key = htonl(peer->mr->rkey);
	offer.first.len = htonl(2048);
	return offer;
}

static struct peer ready(uint16_t port)
{
	struct peer peer = { .channel = new_channel() };
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { 64, 64, 1, 1, 0 }, .sq_sig_all = 1 };
	int i;
	peer.id = new_client(peer.channel, RDMA_PS_TCP, port);
	GOOD(rdma_create_qp(peer.id, NULL, &attr));
	peer.mr = ibv_reg_mr(peer.id->pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	MUST(peer.mr);
	for (i = 0; i < 64; i++)
		GOOD(rdma_post_recv(peer.id, NULL, memory, 0, peer.mr));
	return peer;
}

static void destroy(struct peer *peer)
{
	rdma_destroy_qp(peer->id);
	GOOD(rdma_destroy_id(peer->id));
	GOOD(ibv_dereg_mr(peer->mr));
	rdma_destroy_event_channel(peer->channel);
}

static void bad_private_data(uint16_t port)
{
	/* The field is padded with zeros, so without its last two bytes the first target is empty. */
	size_t lens[] = { 0, 38, 40, 40, 40, 40, 40, 40 };
	unsigned i;
	for (i = 0; i < 8; i++) {
		struct peer peer = ready(port);
		struct offer offer = good_offer(&peer);
		switch (i) {
		case 2: offer.version = 2; break;
		case 3: offer.flags = 1; break;
		case 4: offer.credits = 0; break;
		case 5: offer.first.len = 0; break;
		case 6: offer.targets.len = 0; break;
		case 7: offer.targets.len = 0xffffffff; break;
		}
		TRUE(connect_with(&peer, port, &offer, lens[i]) == RDMA_CM_EVENT_REJECTED);
		destroy(&peer);
	}
}

static void send_immediate(struct peer *peer, uint32_t immediate)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(immediate) }, *wrong;
	struct ibv_wc wc;
	GOOD(ibv_post_send(peer->id->qp, &wr, &wrong));
	/* The write fails if the other side has already ended the connection. */
	MUST(rdma_get_send_comp(peer->id, &wc) == 1);
}

/* Each peer sends an immediate value that no rsocket sends. The program's receive fails, and the next peer is served. */
static void bad_messages(int server, uint16_t port)
{
	uint32_t wrong[] = {
		0x00000000, 0x00010001, 0x1fffffff, 0x20000001, 0x40000001, 0x60000001, 0x80000007, 0x80000009,
		0x8000ffff, 0x9fffffff, 0xa0000000, 0xc0000000, 0xdfffffff, 0xe0000003, 0xffffffff,
	};
	unsigned i;
	char byte;
	for (i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		struct peer peer = ready(port);
		struct offer offer = good_offer(&peer);
		MUST(connect_with(&peer, port, &offer, sizeof offer) == RDMA_CM_EVENT_ESTABLISHED);
		int fd = raccept(server, NULL, NULL);
		MUST(fd >= 0);
		send_immediate(&peer, wrong[i]);
		errno = 0;
		if (rrecv(fd, &byte, 1, 0) != -1 || errno != EPROTO)
			printf("%#x: errno %d\n", wrong[i], errno), bad = 1;
		FAILS(ECONNRESET, rsend(fd, &byte, 1, 0));
		GOOD(rclose(fd));
		destroy(&peer);
	}
}

/* More messages than credits, and a target with a wrong key. */
static void too_much(int server, uint16_t port)
{
	struct peer peer = ready(port);
	struct offer offer = good_offer(&peer);
	static char data[400];
	int i, fd;
	MUST(connect_with(&peer, port, &offer, sizeof offer) == RDMA_CM_EVENT_ESTABLISHED);
	fd = raccept(server, NULL, NULL);
	MUST(fd >= 0);
	for (i = 0; i < 385; i++)
		send_immediate(&peer, 1);
	ssize_t got = rrecv(fd, data, sizeof data, 0);
	TRUE(got == 384);
	FAILS(EPROTO, rrecv(fd, data, sizeof data, 0));
	GOOD(rclose(fd));
	destroy(&peer);
	/* If the key of a target is wrong, only writes to it fail. */
	peer = ready(port);
	offer = good_offer(&peer);
	offer.first.key ^= 0x55555555;
	MUST(connect_with(&peer, port, &offer, sizeof offer) == RDMA_CM_EVENT_ESTABLISHED);
	fd = raccept(server, NULL, NULL);
	MUST(fd >= 0);
	TRUE(rsend(fd, data, 100, 0) == 100);
	FAILS(ECONNRESET, rrecv(fd, data, 1, 0));
	GOOD(rclose(fd));
	destroy(&peer);
}

/* Several clients that never send anything, and one that does. */
static void silent_clients(int server, uint16_t port)
{
	struct peer peers[4];
	int i, fds[4];
	for (i = 0; i < 4; i++) {
		peers[i] = ready(port);
		struct offer offer = good_offer(&peers[i]);
		MUST(connect_with(&peers[i], port, &offer, sizeof offer) == RDMA_CM_EVENT_ESTABLISHED);
	}
	for (i = 0; i < 4; i++) {
		fds[i] = raccept(server, NULL, NULL);
		MUST(fds[i] >= 0);
		FAILS(EAGAIN, rrecv(fds[i], memory, 1, MSG_DONTWAIT));
	}
	int good = client(port), other = raccept(server, NULL, NULL);
	MUST(other >= 0);
	TRUE(rsend(good, "x", 1, 0) == 1 && rrecv(other, memory, 1, 0) == 1);
	for (i = 0; i < 4; i++) {
		destroy(&peers[i]);
		TRUE(rrecv(fds[i], memory, 1, 0) <= 0);
		GOOD(rclose(fds[i]));
	}
	GOOD(rclose(good));
	GOOD(rclose(other));
}

int main(void)
{
	uint16_t port;
	begin();
	int server = listener(&port);
	bad_private_data(port);
	bad_messages(server, port);
	too_much(server, port);
	silent_clients(server, port);
	GOOD(rclose(server));
	return finish();
}
