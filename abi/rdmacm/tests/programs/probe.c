/* Prints calls, their results and errors, and the events that follow. The recording (../oracle) comes from the same calls on the stock
 * library with the kernel's rxe. The text of a call is part of the output, so do not reformat the expressions.
 *
 * probe ADDRESS ADDRESS6 PORT PORT PORT PORT: two addresses of this host, and four free ports. */
#define _GNU_SOURCE
#include "common.h"
#include <time.h>

static const char *SELF;
static int ports[4];

static struct sockaddr_storage A(const char *ip, int port)
{
	struct sockaddr_storage s = { 0 };
	struct sockaddr_in *four = (void *)&s;
	struct sockaddr_in6 *six = (void *)&s;
	if (strchr(ip, ':')) {
		six->sin6_family = AF_INET6;
		inet_pton(AF_INET6, ip, &six->sin6_addr);
		six->sin6_port = htons(port);
	} else {
		four->sin_family = AF_INET;
		inet_pton(AF_INET, ip, &four->sin_addr);
		four->sin_port = htons(port);
	}
	return s;
}
#define SA(s) ((struct sockaddr *)&(s))

static void result(const char *call, int r)
{
	printf("%s = %d%s%s\n", call, r, r ? " " : "", r == -1 ? strerrorname_np(errno) : "");
}
#define R(x) do { fflush(stdout); errno = 0; result(#x, (int)(long)(x)); } while (0)

static void print_event(struct rdma_cm_event *e)
{
	struct rdma_conn_param *c = &e->param.conn;
	char a[64], b[64];
	struct sockaddr_in *s = (void *)rdma_get_local_addr(e->id), *d = (void *)rdma_get_peer_addr(e->id);
	inet_ntop(AF_INET, &s->sin_addr, a, sizeof a);
	inet_ntop(AF_INET, &d->sin_addr, b, sizeof b);
	printf("    +0.000 %s status=%d id=%s pdl=%d rr=%d id=%d fc=%d rc=%d rnr=%d srq=%d qpn=%s src=%s:%d dst=%s:%d verbs=%d pd=%d port=%d paths=%d\n",
	       rdma_event_str(e->event) + 14, e->status, e->listen_id ? "new" : "own", c->private_data_len, c->responder_resources,
	       c->initiator_depth, c->flow_control, c->retry_count, c->rnr_retry_count, c->srq, c->qp_num ? "set" : "0", a,
	       ntohs(s->sin_port), b, ntohs(d->sin_port), !!e->id->verbs, !!e->id->pd, e->id->port_num, e->id->route.num_paths);
}

/* Fetches the next event. Returns NULL if none arrives in time. */
static struct rdma_cm_event *ev(struct rdma_event_channel *c, int ms)
{
	struct pollfd fd = { c->fd, POLLIN, 0 };
	struct rdma_cm_event *e;
	if (poll(&fd, 1, ms) <= 0) {
		printf("    (no event in %d ms)\n", ms);
		return NULL;
	}
	if (rdma_get_cm_event(c, &e)) {
		printf("    get_cm_event: %s\n", strerrorname_np(errno));
		return NULL;
	}
	print_event(e);
	return e;
}
/* The timeout for events that must arrive, even on a busy machine. */
#define LONG 60000

static void ack(struct rdma_cm_event *e)
{
	if (e)
		rdma_ack_cm_event(e);
}

static struct rdma_event_channel *C, *D;

static struct rdma_cm_id *mk(struct rdma_event_channel *c, int ps)
{
	struct rdma_cm_id *i = NULL;
	MUST(rdma_create_id(c, &i, NULL, ps) == 0);
	return i;
}

static int qp(struct rdma_cm_id *i)
{
	struct ibv_qp_init_attr a = { .qp_type = i->qp_type, .cap = { 4, 4, 1, 1, 0 } };
	return rdma_create_qp(i, NULL, &a);
}

static void show_qp(const char *which, struct rdma_cm_id *i)
{
	struct ibv_qp_attr q;
	struct ibv_qp_init_attr qi;
	GOOD(ibv_query_qp(i->qp, &q, 0xfffff, &qi));
	printf("  %s: st=%d mtu=%d to=%d retry=%d rnr=%d minrnr=%d rd=%d/%d acc=%#x\n", which, q.qp_state, q.path_mtu, q.timeout, q.retry_cnt,
	       q.rnr_retry, q.min_rnr_timer, q.max_rd_atomic, q.max_dest_rd_atomic, q.qp_access_flags);
}

static struct rdma_cm_id *i, *l, *n;
static struct rdma_cm_event *e;
static struct sockaddr_storage s, d;
static struct rdma_conn_param cp = { .retry_count = 7, .rnr_retry_count = 7, .responder_resources = 1, .initiator_depth = 1 };
static int one = 1;

static void channels(void)
{
	puts("# channel");
	fcntl(C->fd, F_SETFL, O_NONBLOCK);
	R(rdma_get_cm_event(C,&e));
	R(rdma_get_cm_event(C,0));
	R(rdma_ack_cm_event(0));
	struct pollfd p = { C->fd, POLLIN | POLLOUT, 0 };
	int ready = poll(&p, 1, 0);
	printf("poll=%d revents=%#x\n", ready, p.revents);
	R(rdma_create_id(C,&i,0,0x9999));
	R(rdma_create_id(C,&i,0,RDMA_PS_IPOIB));
}

static void binding(const char *six)
{
	puts("# bind");
	i = mk(C, RDMA_PS_TCP);
	s = A("192.0.2.9", 0);
	R(rdma_bind_addr(i,SA(s)));
	s = A(SELF, ports[3]);
	R(rdma_bind_addr(i,SA(s)));
	rdma_destroy_id(i);
	i = mk(C, RDMA_PS_TCP);
	s = A(SELF, 0);
	((struct sockaddr *)&s)->sa_family = 77;
	R(rdma_bind_addr(i,SA(s)));
	s = A("fe80::1", 0);
	R(rdma_bind_addr(i,SA(s)));
	s = A("127.0.0.1", ports[0]);
	R(rdma_bind_addr(i,SA(s)));
	printf("  verbs=%d port=%d\n", !!i->verbs, ntohs(rdma_get_src_port(i)));
	R(rdma_bind_addr(i,SA(s)));
	n = mk(C, RDMA_PS_TCP);
	s = A(SELF, ports[0]);
	R(rdma_bind_addr(n,SA(s)));
	rdma_destroy_id(i);
	R(rdma_bind_addr(n,SA(s)));
	printf("  verbs=%d dst_port=%d\n", !!n->verbs, ntohs(rdma_get_dst_port(n)));
	i = mk(C, RDMA_PS_TCP);
	R(rdma_bind_addr(i,SA(s)));
	R(rdma_set_option(i,RDMA_OPTION_ID,RDMA_OPTION_ID_REUSEADDR,&one,4));
	R(rdma_bind_addr(i,SA(s)));
	R(rdma_set_option(n,RDMA_OPTION_ID,RDMA_OPTION_ID_REUSEADDR,&one,4));
	R(rdma_bind_addr(i,SA(s)));
	R(rdma_listen(i,1));
	rdma_destroy_id(n);
	R(rdma_listen(i,1));
	R(rdma_listen(i,1));
	R(rdma_set_option(i,RDMA_OPTION_ID,RDMA_OPTION_ID_REUSEADDR,&one,4));
	R(rdma_set_option(i,RDMA_OPTION_ID,RDMA_OPTION_ID_AFONLY,&one,4));
	n = mk(C, RDMA_PS_UDP);
	R(rdma_bind_addr(n,SA(s)));
	rdma_destroy_id(n);
	n = mk(C, RDMA_PS_TCP);
	s = A(six, ports[0]);
	R(rdma_bind_addr(n,SA(s)));
	rdma_destroy_id(n);
	n = mk(C, RDMA_PS_TCP);
	s = A("::", ports[0]);
	R(rdma_bind_addr(n,SA(s)));
	rdma_destroy_id(n);
	rdma_destroy_id(i);
}

static void fresh(void)
{
	struct ibv_qp_attr q = { .qp_state = IBV_QPS_INIT };
	int m;
	puts("# option");
	i = mk(C, RDMA_PS_TCP);
	R(rdma_set_option(i,7,0,&one,4));
	R(rdma_set_option(i,0,99,&one,4));
	R(rdma_set_option(i,0,RDMA_OPTION_ID_TOS,&one,4));
	R(rdma_set_option(i,0,RDMA_OPTION_ID_ACK_TIMEOUT,&one,1));
	puts("# calls on a fresh id");
	R(rdma_reject(i,0,0));
	R(rdma_disconnect(i));
	R(rdma_establish(i));
	R(rdma_notify(i,IBV_EVENT_COMM_EST));
	R(rdma_init_qp_attr(i,&q,&m));
	s = A("239.1.2.3", 0);
	R(rdma_join_multicast(i,SA(s),0));
	R(rdma_leave_multicast(i,SA(s)));
	R(rdma_get_request(i,&n));
	R(rdma_migrate_id(i,D));
	R(rdma_migrate_id(i,C));
	R(rdma_migrate_id(i,0));
	R(rdma_migrate_id(i,0));
	rdma_destroy_id(i);
}

static void resolving(const char *six)
{
	puts("# resolve");
	i = mk(C, RDMA_PS_TCP);
	s = A(SELF, 0);
	d = A(six, 1);
	R(rdma_resolve_addr(i,SA(s),SA(d),500));
	d = A("8.8.8.8", 1);
	R(rdma_resolve_addr(i,0,SA(d),500));
	ack(ev(C, LONG));
	rdma_destroy_id(i);
	i = mk(C, RDMA_PS_TCP);
	d = A("192.0.2.99", 1);
	R(rdma_resolve_addr(i,0,SA(d),700));
	ack(ev(C, LONG));
	R(rdma_resolve_addr(i,0,SA(d),300));
	ack(ev(C, LONG));
	d = A(SELF, ports[1]);
	R(rdma_resolve_addr(i,0,SA(d),500));
	ack(ev(C, LONG));
	R(rdma_resolve_addr(i,0,SA(d),500));
	R(rdma_connect(i,&cp));
	R(rdma_resolve_route(i,0));
	R(rdma_resolve_route(i,500));
	ack(ev(C, LONG));
	struct ibv_sa_path_rec *path = i->route.path_rec;
	int from = ntohs(rdma_get_src_port(i));
	printf("  mtu=%d plt=%d hop=%d rate=%d fl=%s sport=%d\n", path->mtu, path->packet_life_time, path->hop_limit, path->rate,
	       ntohl(path->flow_label) == ((from * 31u + ports[1]) & 0xfffff) ? "of ports" : "wrong", from);
	R(rdma_resolve_route(i,500));
	R(rdma_listen(i,1));
	R(qp(i));
	R(qp(i));
	printf("  qp state %d\n", i->qp->state);
	cp.private_data = "0123456789012345678901234567890123456789012345678901234567890123456789";
	cp.private_data_len = 57;
	R(rdma_connect(i,&cp));
	cp.private_data_len = 56;
	puts("# no listener");
	R(rdma_connect(i,&cp));
	ack(ev(C, LONG));
	R(rdma_connect(i,&cp));
	R(rdma_disconnect(i));
	ack(ev(C, 300));
	rdma_destroy_qp(i);
	rdma_destroy_id(i);
}

static void start_listening(void)
{
	puts("# listen any");
	l = mk(C, RDMA_PS_TCP);
	R(rdma_listen(l,1));
	printf("  auto port %d\n", ntohs(rdma_get_src_port(l)));
	rdma_destroy_id(l);
	l = mk(C, RDMA_PS_TCP);
	s = A("0.0.0.0", ports[1]);
	R(rdma_bind_addr(l,SA(s)));
	R(rdma_listen(l,1));
	printf(" l verbs %d\n", !!l->verbs);
}

static void ask(void)
{
	i = mk(D, RDMA_PS_TCP);
	d = A(SELF, ports[1]);
	rdma_resolve_addr(i, NULL, SA(d), 500);
	ack(ev(D, LONG));
	rdma_resolve_route(i, 500);
	ack(ev(D, LONG));
	qp(i);
	cp.private_data_len = 8;
	cp.initiator_depth = 3;
	cp.responder_resources = 2;
	R(rdma_connect(i,&cp));
	MUST(e = ev(C, LONG));
	n = e->id;
	printf("    data '%.8s' same ctx %d\n", (const char *)e->param.conn.private_data, n->verbs == i->verbs);
	ack(e);
	cp.initiator_depth = 1;
	cp.responder_resources = 1;
}

static void refused(void)
{
	puts("# connect, refused by destroy / by reject / accepted");
	ask();
	R(rdma_destroy_id(n));
	ack(ev(D, LONG));
	rdma_destroy_qp(i);
	rdma_destroy_id(i);
	ask();
	R(rdma_reject(n,"no",2));
	if ((e = ev(D, LONG)))
		printf("    data %.2s\n", (const char *)e->param.conn.private_data);
	ack(e);
	R(rdma_reject(n,"no",2));
	R(rdma_accept(n,&cp));
	rdma_destroy_id(n);
	rdma_destroy_qp(i);
	rdma_destroy_id(i);
}

static void accepted(void)
{
	ask();
	qp(n);
	R(rdma_accept(n,&cp));
	show_qp("passive qp after accept", n);
	ack(ev(D, LONG));
	show_qp("active qp", i);
	ack(ev(C, LONG));
	R(rdma_accept(n,&cp));
	R(rdma_reject(n,0,0));
	R(rdma_establish(i));
	R(rdma_notify(n,IBV_EVENT_COMM_EST));
	R(rdma_disconnect(i));
	ack(ev(C, LONG));
	ack(ev(D, 600));
	R(rdma_disconnect(n));
	ack(ev(D, LONG));
	R(rdma_disconnect(i));
	ack(ev(D, LONG));
	puts("   timewait after 2.10");
	ack(ev(C, LONG));
	R(rdma_connect(i,&cp));
	rdma_destroy_qp(n);
	rdma_destroy_id(n);
	rdma_destroy_qp(i);
	rdma_destroy_id(i);
}

static void loopback_address(void)
{
	puts("# 127.0.0.1");
	i = mk(D, RDMA_PS_TCP);
	d = A("127.0.0.1", ports[1]);
	R(rdma_resolve_addr(i,0,SA(d),500));
	ack(ev(D, LONG));
	R(rdma_resolve_route(i,500));
	ack(ev(D, 1500));
	qp(i);
	R(rdma_connect(i,&cp));
	e = ev(C, 1500);
	if (e) {
		n = e->id;
		ack(e);
		qp(n);
		R(rdma_accept(n,&cp));
	}
	ack(ev(D, 3000));
	if (e)
		ack(ev(C, LONG));
}

static void datagrams(void)
{
	puts("# udp");
	rdma_destroy_id(l);
	l = mk(C, RDMA_PS_UDP);
	s = A(SELF, ports[2]);
	R(rdma_bind_addr(l,SA(s)));
	R(rdma_listen(l,1));
	s = A("ff0e::1", 0);
	i = mk(D, RDMA_PS_UDP);
	d = A(SELF, ports[2]);
	rdma_resolve_addr(i, NULL, SA(d), 500);
	ack(ev(D, LONG));
	R(rdma_join_multicast(i,SA(s),0));
	ack(ev(D, 300));
	s = A("239.1.2.3", 0);
	R(rdma_join_multicast(i,SA(s),0));
	e = ev(D, LONG);
	if (e) {
		struct ibv_global_route *grh = &e->param.ud.ah_attr.grh;
		printf("   mc qpn=%#x qkey=%#x dgid=%02x%02x..%02x hop=%d\n", e->param.ud.qp_num, e->param.ud.qkey, grh->dgid.raw[10],
		       grh->dgid.raw[12], grh->dgid.raw[15], grh->hop_limit);
	}
	ack(e);
	R(rdma_leave_multicast(i,SA(s)));
	rdma_resolve_route(i, 500);
	ack(ev(D, LONG));
	qp(i);
	cp.private_data_len = 181;
	R(rdma_connect(i,&cp));
	cp.private_data_len = 5;
	R(rdma_connect(i,&cp));
	e = ev(C, LONG);
	if (!e)
		return;
	n = e->id;
	printf("   ud req pdl=%d\n", e->param.ud.private_data_len);
	ack(e);
	qp(n);
	R(rdma_accept(n,&cp));
	e = ev(D, LONG);
	if (e)
		printf("   ud est pdl=%d qkey=%#x\n", e->param.ud.private_data_len, e->param.ud.qkey);
	ack(e);
	ack(ev(C, 500));
	R(rdma_disconnect(i));
	ack(ev(D, 300));
}

#include "probe_endpoints.h"

int main(int argc, char **argv)
{
	int at;
	MUST(argc == 7);
	begin();
	SELF = argv[1];
	for (at = 0; at < 4; at++)
		ports[at] = atoi(argv[3 + at]);
	MUST((C = rdma_create_event_channel()) && (D = rdma_create_event_channel()));
	channels();
	binding(argv[2]);
	fresh();
	resolving(argv[2]);
	start_listening();
	refused();
	accepted();
	loopback_address();
	datagrams();
	looking_up(argv[2]);
	endpoints();
	synchronous();
	capabilities();
	joining();
	sharing_receives();
	return bad;
}
