/* Two endpoints of reliable datagrams in one process that know each other. */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <string.h>

struct side {
	struct fid_ep *ep;
	struct fid_cq *cq;
	struct fid_av *av;
	fi_addr_t peer;
	char name[64];
	size_t name_len;
};

static inline void open_side(struct fid_domain *domain, struct fi_info *info, struct side *side)
{
	struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_TAGGED};
	struct fi_av_attr av = {.type = FI_AV_UNSPEC};

	RETURNS(fi_endpoint(domain, info, &side->ep, NULL), 0);
	RETURNS(fi_cq_open(domain, &cq, &side->cq, NULL), 0);
	RETURNS(fi_av_open(domain, &av, &side->av, NULL), 0);
	RETURNS(fi_ep_bind(side->ep, &side->cq->fid, FI_SEND | FI_RECV), 0);
	RETURNS(fi_ep_bind(side->ep, &side->av->fid, 0), 0);
	RETURNS(fi_enable(side->ep), 0);
	side->name_len = sizeof side->name;
	RETURNS(fi_getname(&side->ep->fid, side->name, &side->name_len), 0);
}

static inline void close_side(struct side *side)
{
	RETURNS(fi_close(&side->ep->fid), 0);
	RETURNS(fi_close(&side->cq->fid), 0);
	RETURNS(fi_close(&side->av->fid), 0);
}

static inline void introduce(struct side *a, struct side *b)
{
	RETURNS(fi_av_insert(a->av, b->name, 1, &a->peer, 0, NULL), 1);
	RETURNS(fi_av_insert(b->av, a->name, 1, &b->peer, 0, NULL), 1);
}

/* Makes both sides progress until `side` has a completion. */
static inline void wait_for(struct side *side, struct side *other)
{
	struct fi_cq_tagged_entry entry;
	for (;;) {
		ssize_t got = fi_cq_read(side->cq, &entry, 1);
		if (got == 1)
			return;
		RETURNS(got, -FI_EAGAIN);
		fi_cq_read(other->cq, NULL, 0);
	}
}

/* Sends `len` bytes from one side to the other. */
static inline void pass(struct side *from, void *out, void *out_desc, struct side *to, void *in,
			void *in_desc, size_t len)
{
	ssize_t got;

	RETURNS(fi_trecv(to->ep, in, len, in_desc, FI_ADDR_UNSPEC, 7, 0, NULL), 0);
	do {
		got = fi_tsend(from->ep, out, len, out_desc, from->peer, 7, NULL);
		fi_cq_read(from->cq, NULL, 0);
		fi_cq_read(to->cq, NULL, 0);
	} while (got == -FI_EAGAIN);
	RETURNS(got, 0);
	wait_for(to, from);
	wait_for(from, to);
	CHECK(memcmp(in, out, len) == 0);
}
