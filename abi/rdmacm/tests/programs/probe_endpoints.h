/* The second half of probe.c: looking up addresses, endpoints, synchronous identifiers, ECE, joining groups, shared receive queues. */

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
