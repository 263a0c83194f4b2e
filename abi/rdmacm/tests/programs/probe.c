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

static char service[8];
static struct rdma_addrinfo h, *r;

static void show_info(void)
{
	char a[64] = "", b[64] = "";
	struct sockaddr_in *from = (void *)r->ai_src_addr, *to = (void *)r->ai_dst_addr;
	if (from)
		inet_ntop(AF_INET, &from->sin_addr, a, sizeof a);
	if (to)
		inet_ntop(AF_INET, &to->sin_addr, b, sizeof b);
	printf("  flags=%#x family=%d qp=%d ps=%#x srclen=%d src=%s:%d dstlen=%d dst=%s:%d names=%d%d routes=%d connect=%d next=%d\n", r->ai_flags,
	       r->ai_family, r->ai_qp_type, r->ai_port_space, r->ai_src_len, a, from ? ntohs(from->sin_port) : 0, r->ai_dst_len, b,
	       to ? ntohs(to->sin_port) : 0, !!r->ai_src_canonname, !!r->ai_dst_canonname, (int)r->ai_route_len, (int)r->ai_connect_len,
	       !!r->ai_next);
	rdma_freeaddrinfo(r);
}

static void hint(int flags, int family, int type, int space)
{
	memset(&h, 0, sizeof h);
	h.ai_flags = flags;
	h.ai_family = family;
	h.ai_qp_type = type;
	h.ai_port_space = space;
}
/* Prints the result of a call, and what it has found. */
#define INFO(x) do { int r_; errno = 0; r_ = x; result(#x, r_); if (!r_) show_info(); } while (0)

static void looking_up(const char *six)
{
	static const struct { int flags, family, type, space; } wanted[] = {
		{ 0, 0, 0, 0 }, { RAI_PASSIVE, 0, 0, 0 }, { 0, 0, 0, RDMA_PS_TCP }, { 0, 0, 0, RDMA_PS_UDP }, { 0, 0, 0, RDMA_PS_IB },
		{ 0, 0, IBV_QPT_RC, 0 }, { 0, 0, IBV_QPT_UD, 0 }, { 0, 0, IBV_QPT_UC, 0 }, { 0, 0, IBV_QPT_XRC_SEND, 0 }, { 0, 0, IBV_QPT_UD, RDMA_PS_TCP },
		{ RAI_NUMERICHOST | RAI_NOROUTE, AF_INET, 0, 0 }, { RAI_NUMERICHOST | RAI_FAMILY, AF_INET, 0, 0 },
		{ RAI_NUMERICHOST | RAI_FAMILY, AF_INET6, 0, 0 }, { 0x4000, 0, 0, 0 }, { 0, 77, 0, 0 }, { 0, 0, 0, 0x9999 }, { 0, 0, 99, 0 },
	};
	char self[64];
	size_t at;
	puts("# getaddrinfo");
	snprintf(service, sizeof service, "%d", ports[1]);
	snprintf(self, sizeof self, "%s", SELF);
	INFO(rdma_getaddrinfo(self,service,0,&r));
	for (at = 0; at < sizeof wanted / sizeof wanted[0]; at++) {
		hint(wanted[at].flags, wanted[at].family, wanted[at].type, wanted[at].space);
		INFO(rdma_getaddrinfo(self,service,&h,&r));
	}
	hint(RAI_PASSIVE, 0, 0, RDMA_PS_TCP);
	INFO(rdma_getaddrinfo(0,service,&h,&r));
	INFO(rdma_getaddrinfo(0,0,&h,&r));
	hint(0, 0, 0, RDMA_PS_TCP);
	INFO(rdma_getaddrinfo(0,service,&h,&r));
	INFO(rdma_getaddrinfo(self,0,&h,&r));
	/* Without this, it may ask a name server. */
	h.ai_flags = RAI_NUMERICHOST;
	INFO(rdma_getaddrinfo("192.0.2.300",service,&h,&r));
	h.ai_flags = 0;
	INFO(rdma_getaddrinfo(self,"no-such-service",&h,&r));
	INFO(rdma_getaddrinfo(self,"70000",&h,&r));
	hint(RAI_FAMILY, AF_INET, 0, 0);
	INFO(rdma_getaddrinfo((char*)six,service,&h,&r));
	s = A(SELF, 0);
	hint(0, 0, 0, RDMA_PS_TCP);
	h.ai_src_addr = SA(s);
	h.ai_src_len = sizeof(struct sockaddr_in);
	INFO(rdma_getaddrinfo(self,service,&h,&r));
}

/* An endpoint, or a listener. */
static struct rdma_cm_id *ep;
static struct ibv_qp_init_attr qa;

static void look_up(int flags, int space, int port)
{
	char self[64];
	snprintf(self, sizeof self, "%s", SELF);
	snprintf(service, sizeof service, "%d", port);
	hint(flags, 0, 0, space);
	MUST(rdma_getaddrinfo(self, service, &h, &r) == 0);
	memset(&qa, 0, sizeof qa);
	qa.cap.max_send_wr = qa.cap.max_recv_wr = 4;
	qa.cap.max_send_sge = qa.cap.max_recv_sge = 1;
}

static void show_id(const char *which, struct rdma_cm_id *id)
{
	printf("  %s: event=%s channel=%d verbs=%d pd=%d qp=%d srq=%d cq=%d%d cqc=%d%d type=%d ps=%#x src=%d dst=%d\n", which,
	       id->event ? rdma_event_str(id->event->event) + 14 : "none", !!id->channel, !!id->verbs, !!id->pd, !!id->qp, !!id->srq, !!id->send_cq,
	       !!id->recv_cq, !!id->send_cq_channel, !!id->recv_cq_channel, id->qp_type, id->ps, rdma_get_src_port(id) != 0, rdma_get_dst_port(id) != 0);
}

enum answer { ACCEPTS, REJECTS, DESTROYS };
struct serving {
	enum answer answer;
	int requested, answered, disconnected, error;
};

/* The passive side of a synchronous connection. The other thread prints what it returns. */
static void *serve(void *argument)
{
	struct serving *to = argument;
	to->requested = rdma_get_request(l, &n);
	if (to->requested) {
		to->error = errno;
		return NULL;
	}
	to->answered = to->answer == ACCEPTS ? rdma_accept(n, NULL) : to->answer == REJECTS ? rdma_reject(n, "no", 2) : rdma_destroy_id(n);
	to->error = to->answered ? errno : 0;
	return NULL;
}

static void *hang_up(void *argument)
{
	struct serving *to = argument;
	to->disconnected = rdma_disconnect(n);
	to->error = to->disconnected ? errno : 0;
	return NULL;
}

/* Connects an endpoint to the listener `l`, whose thread answers like this. */
static void connect_ep(enum answer answer)
{
	struct serving to = { .answer = answer };
	pthread_t thread;
	look_up(0, RDMA_PS_TCP, ports[2]);
	R(rdma_create_ep(&ep,r,0,&qa));
	rdma_freeaddrinfo(r);
	show_id("active", ep);
	GOOD(pthread_create(&thread, NULL, serve, &to));
	R(rdma_connect(ep,0));
	GOOD(pthread_join(thread, NULL));
	show_id("active", ep);
	printf("  request %d, answer %d, %s\n", to.requested, to.answered, to.error ? strerrorname_np(to.error) : "0");
	if (answer == DESTROYS)
		return;
	show_id("passive", n);
	if (answer == ACCEPTS) {
		show_qp("active qp", ep);
		show_qp("passive qp", n);
		R(rdma_connect(ep,0));
		R(rdma_accept(n,0));
		R(rdma_establish(ep));
		GOOD(pthread_create(&thread, NULL, hang_up, &to));
		R(rdma_disconnect(ep));
		GOOD(pthread_join(thread, NULL));
		printf("  disconnect %d, %s\n", to.disconnected, to.error ? strerrorname_np(to.error) : "0");
		show_id("active", ep);
		show_id("passive", n);
	}
	rdma_destroy_ep(n);
}

static void endpoints(void)
{
	puts("# endpoints");
	rdma_destroy_id(l);
	look_up(RAI_PASSIVE, RDMA_PS_TCP, ports[2]);
	R(rdma_create_ep(&l,r,0,&qa));
	show_id("passive", l);
	R(rdma_connect(l,0));
	R(rdma_create_ep(&ep,r,0,0));
	R(rdma_listen(l,2));
	R(rdma_listen(l,2));
	show_id("passive", l);
	rdma_freeaddrinfo(r);
	connect_ep(ACCEPTS);
	R(rdma_connect(ep,0));
	rdma_destroy_ep(ep);
	connect_ep(REJECTS);
	R(rdma_connect(ep,0));
	rdma_destroy_ep(ep);
	connect_ep(DESTROYS);
	rdma_destroy_ep(ep);
	puts("# endpoints without a peer");
	look_up(0, RDMA_PS_TCP, 1);
	R(rdma_create_ep(&ep,r,0,0));
	show_id("active", ep);
	R(rdma_connect(ep,0));
	R(qp(ep));
	R(rdma_connect(ep,0));
	show_id("active", ep);
	rdma_destroy_ep(ep);
	qa.qp_type = IBV_QPT_UD;
	R(rdma_create_ep(&ep,r,0,&qa));
	qa.qp_type = 0;
	qa.cap.max_send_wr = 1 << 30;
	R(rdma_create_ep(&ep,r,0,&qa));
	rdma_freeaddrinfo(r);
	look_up(RAI_PASSIVE, RDMA_PS_TCP, ports[2]);
	R(rdma_create_ep(&ep,r,0,&qa));
	rdma_freeaddrinfo(r);
	rdma_destroy_ep(l);
}

static void synchronous(void)
{
	puts("# synchronous ids");
	R(rdma_create_id(0,&i,0,RDMA_PS_TCP));
	show_id("new", i);
	d = A("8.8.8.8", 1);
	R(rdma_resolve_addr(i,0,SA(d),500));
	show_id("unresolved", i);
	d = A(SELF, 1);
	R(rdma_resolve_addr(i,0,SA(d),500));
	show_id("resolved", i);
	R(rdma_resolve_route(i,500));
	show_id("routed", i);
	R(rdma_connect(i,0));
	R(qp(i));
	R(rdma_connect(i,0));
	show_id("refused", i);
	R(rdma_migrate_id(i,D));
	show_id("migrated", i);
	R(rdma_migrate_id(i,0));
	show_id("migrated back", i);
	rdma_destroy_qp(i);
	R(rdma_destroy_id(i));
	R(rdma_create_id(0,&i,0,RDMA_PS_UDP));
	d = A(SELF, 1);
	R(rdma_resolve_addr(i,0,SA(d),500));
	R(rdma_resolve_route(i,500));
	R(qp(i));
	R(rdma_connect(i,0));
	show_id("no service", i);
	rdma_destroy_qp(i);
	R(rdma_destroy_id(i));
}

/* An identifier that is ready to connect, without a queue pair. */
static void ready(int space, int port)
{
	i = mk(D, space);
	d = A(SELF, port);
	rdma_resolve_addr(i, NULL, SA(d), 500);
	rdma_ack_cm_event(NEXT(D, ADDR_RESOLVED, 0));
	rdma_resolve_route(i, 500);
	rdma_ack_cm_event(NEXT(D, ROUTE_RESOLVED, 0));
}

static void capabilities(void)
{
	struct ibv_ece ece = { 0 }, got = { 0 };
	puts("# ece");
	l = mk(C, RDMA_PS_TCP);
	s = A(SELF, ports[1]);
	R(rdma_bind_addr(l,SA(s)));
	R(rdma_listen(l,2));
	ready(RDMA_PS_TCP, ports[1]);
	R(rdma_set_local_ece(i,0));
	R(rdma_set_local_ece(i,&ece));
	ece.vendor_id = 0x1234;
	R(rdma_set_local_ece(i,&ece));
	ece.options = 0x56;
	R(rdma_set_local_ece(i,&ece));
	R(rdma_get_remote_ece(i,&got));
	cp.qp_num = 77;
	R(rdma_connect(i,&cp));
	e = ev(C, LONG);
	n = e->id;
	ack(e);
	R(rdma_get_remote_ece(n,0));
	R(rdma_get_remote_ece(n,&got));
	printf("  vendor=%#x options=%#x\n", got.vendor_id, got.options);
	ece.options = 0x57;
	R(rdma_set_local_ece(n,&ece));
	cp.qp_num = 78;
	R(rdma_accept(n,&cp));
	ack(ev(D, LONG));
	memset(&got, 0, sizeof got);
	R(rdma_get_remote_ece(i,&got));
	printf("  vendor=%#x options=%#x\n", got.vendor_id, got.options);
	R(rdma_establish(i));
	ack(ev(C, LONG));
	R(rdma_disconnect(i));
	ack(ev(C, LONG));
	rdma_destroy_id(n);
	rdma_destroy_id(i);
	ready(RDMA_PS_TCP, ports[1]);
	cp.qp_num = 79;
	R(rdma_reject_ece(i,0,0));
	R(rdma_connect(i,&cp));
	e = ev(C, LONG);
	n = e->id;
	ack(e);
	R(rdma_get_remote_ece(n,&got));
	R(rdma_reject_ece(n,"no",2));
	ack(ev(D, LONG));
	rdma_destroy_id(n);
	rdma_destroy_id(i);
	ready(RDMA_PS_TCP, ports[1]);
	R(qp(i));
	R(rdma_set_local_ece(i,&ece));
	R(rdma_get_remote_ece(i,&got));
	rdma_destroy_qp(i);
	rdma_destroy_id(i);
	rdma_destroy_id(l);
	cp.qp_num = 0;
}

static void joining(void)
{
	struct rdma_cm_join_mc_attr_ex join = { 0 };
	static const int flags[] = { RDMA_MC_JOIN_FLAG_FULLMEMBER, RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, RDMA_MC_JOIN_FLAG_RESERVED, 7 };
	size_t at;
	puts("# join_multicast_ex");
	ready(RDMA_PS_UDP, ports[2]);
	s = A("239.1.2.4", 0);
	R(rdma_join_multicast_ex(i,&join,0));
	join.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS;
	join.addr = SA(s);
	R(rdma_join_multicast_ex(i,&join,0));
	join.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	R(rdma_join_multicast_ex(i,&join,0));
	rdma_destroy_id(i);
	i = mk(D, RDMA_PS_UDP);
	d = A(SELF, ports[2]);
	rdma_resolve_addr(i, NULL, SA(d), 500);
	ack(ev(D, LONG));
	for (at = 0; at < sizeof flags / sizeof flags[0]; at++) {
		join.join_flags = flags[at];
		printf("  flags %d\n", flags[at]);
		R(rdma_join_multicast_ex(i,&join,0));
		ack(ev(D, 300));
		R(rdma_join_multicast_ex(i,&join,0));
		ack(ev(D, 300));
		R(rdma_leave_multicast(i,SA(s)));
		R(rdma_leave_multicast(i,SA(s)));
		R(rdma_leave_multicast(i,SA(s)));
	}
	join.join_flags = RDMA_MC_JOIN_FLAG_FULLMEMBER;
	join.comp_mask |= RDMA_CM_JOIN_MC_ATTR_RESERVED;
	R(rdma_join_multicast_ex(i,&join,0));
	join.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	s = A("10.1.2.4", 0);
	R(rdma_join_multicast_ex(i,&join,0));
	ack(ev(D, 300));
	rdma_destroy_id(i);
	i = mk(D, RDMA_PS_TCP);
	s = A(SELF, 0);
	rdma_bind_addr(i, SA(s));
	s = A("239.1.2.4", 0);
	R(rdma_join_multicast_ex(i,&join,0));
	rdma_destroy_id(i);
}

static void sharing_receives(void)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq_init_attr_ex more = { .attr = { .max_wr = 4, .max_sge = 1 } };
	puts("# create_srq");
	ready(RDMA_PS_TCP, 1);
	attr.attr.max_wr = 1 << 30;
	R(rdma_create_srq(i,0,&attr));
	attr.attr.max_wr = 4;
	R(rdma_create_srq(i,0,&attr));
	show_id("with srq", i);
	R(rdma_create_srq(i,0,&attr));
	R(rdma_create_srq(i,i->pd,&attr));
	R(qp(i));
	printf("  srq of qp %d\n", i->qp && i->qp->srq == i->srq);
	show_id("with qp", i);
	rdma_destroy_qp(i);
	rdma_destroy_srq(i);
	show_id("without", i);
	more.comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE;
	more.srq_type = IBV_SRQT_BASIC;
	more.pd = i->pd;
	R(rdma_create_srq_ex(i,&more));
	show_id("basic", i);
	rdma_destroy_srq(i);
	more.comp_mask = 0;
	R(rdma_create_srq_ex(i,&more));
	show_id("nothing given", i);
	if (i->srq)
		rdma_destroy_srq(i);
	rdma_destroy_id(i);
}

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
