/* Transfers between two processes over connected endpoints, and how long they take: each one, and not only their mean.
 *
 * pingpong PROVIDER PORT SIZE COUNT spin|wait pong|stream [SERVER]
 *
 * Without SERVER, it is the server. "pong": messages go back and forth. "stream": the client sends with several messages outstanding, and
 * the server answers after the last one. "wait": the program sleeps until something completes; otherwise it polls. The client prints the
 * median, the 99th and the 99.9th percentile of half a round trip in nanoseconds; for a stream, the mean time of a message.
 */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Messages that a stream has outstanding, and receives that are posted. */
#define OUTSTANDING 8
#define RECEIVES 32

static struct fid_ep *ep;
static struct fid_cq *txcq, *rxcq;
static char *buffer;
static void *desc;
static size_t size;
static int waits;

static void check(const char *what, long ret)
{
	if (ret) {
		fprintf(stderr, "%s: %s\n", what, fi_strerror((int)-ret));
		exit(1);
	}
}

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Waits for one completion. */
static void complete(struct fid_cq *cq)
{
	struct fi_cq_entry entry;
	for (;;) {
		ssize_t ret = waits ? fi_cq_sread(cq, &entry, 1, NULL, 1000) : fi_cq_read(cq, &entry, 1);
		if (ret == 1)
			return;
		if (ret == -FI_EAVAIL) {
			struct fi_cq_err_entry error = {0};
			fi_cq_readerr(cq, &error, 0);
			check("completion", -error.err);
		}
		if (ret != -FI_EAGAIN && ret != -FI_EINTR)
			check("fi_cq_read", ret);
	}
}

static void send_one(void)
{
	ssize_t ret;
	/* A full queue empties while completions are polled. */
	while ((ret = fi_send(ep, buffer, size, desc, 0, NULL)) == -FI_EAGAIN)
		fi_cq_read(txcq, NULL, 0);
	check("fi_send", ret);
}

static void receive_one(void)
{
	ssize_t ret;
	while ((ret = fi_recv(ep, buffer + size, size, desc, 0, NULL)) == -FI_EAGAIN)
		fi_cq_read(rxcq, NULL, 0);
	check("fi_recv", ret);
}

static void ping(int is_client)
{
	if (is_client)
		send_one();
	complete(rxcq);
	receive_one();
	if (!is_client)
		send_one();
	complete(txcq);
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

static void pong(int is_client, size_t count)
{
	uint64_t *times = calloc(count, sizeof *times);
	for (size_t i = 0; i < (count + 9) / 10; i++)
		ping(is_client);
	for (size_t i = 0; i < count; i++) {
		uint64_t begun = now();
		ping(is_client);
		times[i] = (now() - begun) / 2;
	}
	qsort(times, count, sizeof *times, compare);
	if (is_client)
		printf("%lu %lu %lu\n", times[count / 2], times[count * 99 / 100], times[count * 999 / 1000]);
}

static void stream(int is_client, size_t count)
{
	ping(is_client);
	uint64_t begun = now();
	size_t sent = 0, done = 0;
	while (is_client && done < count) {
		for (; sent < count && sent < done + OUTSTANDING; sent++)
			send_one();
		complete(txcq);
		done++;
	}
	for (size_t i = 0; !is_client && i < count; i++) {
		complete(rxcq);
		receive_one();
	}
	ping(!is_client);
	if (is_client)
		printf("%lu\n", (now() - begun) / count);
}

static struct fid_eq *eq;

static struct fi_info *wait_for(uint32_t wanted)
{
	struct fi_eq_cm_entry entry;
	uint32_t event;
	ssize_t ret;
	do
		ret = fi_eq_sread(eq, &event, &entry, sizeof entry, 1000, 0);
	while (ret == -FI_EAGAIN || ret == -FI_EINTR);
	if (ret < 0) {
		struct fi_eq_err_entry error = {0};
		fi_eq_readerr(eq, &error, 0);
		check("connection", -(error.err ? error.err : (int)-ret));
	}
	if (event != wanted)
		check("unexpected event", -FI_EOTHER);
	return entry.info;
}

int main(int argc, char **argv)
{
	if (argc < 7)
		return 2;
	const char *server = argv[7];
	size_t count = strtoul(argv[4], NULL, 10);
	size = strtoul(argv[3], NULL, 10);
	waits = !strcmp(argv[5], "wait");

	struct fi_info *hints = fi_allocinfo(), *info;
	hints->ep_attr->type = FI_EP_MSG;
	hints->caps = FI_MSG;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
	hints->addr_format = FI_SOCKADDR_IN;
	hints->fabric_attr->prov_name = strdup(argv[1]);
	uint64_t flags = server ? 0 : FI_SOURCE;
	check("fi_getinfo", fi_getinfo(FI_VERSION(1, 17), server, argv[2], flags, hints, &info));

	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_UNSPEC};
	check("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
	check("fi_eq_open", fi_eq_open(fabric, &eq_attr, &eq, NULL));
	if (!server) {
		struct fid_pep *pep;
		check("fi_passive_ep", fi_passive_ep(fabric, info, &pep, NULL));
		check("fi_pep_bind", fi_pep_bind(pep, &eq->fid, 0));
		check("fi_listen", fi_listen(pep));
		fi_freeinfo(info);
		info = wait_for(FI_CONNREQ);
	}
	check("fi_domain", fi_domain(fabric, info, &domain, NULL));
	struct fi_cq_attr cq_attr = {
		.format = FI_CQ_FORMAT_CONTEXT, .size = 256, .wait_obj = waits ? FI_WAIT_UNSPEC : FI_WAIT_NONE};
	check("fi_cq_open", fi_cq_open(domain, &cq_attr, &txcq, NULL));
	check("fi_cq_open", fi_cq_open(domain, &cq_attr, &rxcq, NULL));
	buffer = calloc(2, size);
	struct fid_mr *mr;
	check("fi_mr_reg", fi_mr_reg(domain, buffer, 2 * size, FI_SEND | FI_RECV, 0, 7, 0, &mr, NULL));
	desc = fi_mr_desc(mr);
	check("fi_endpoint", fi_endpoint(domain, info, &ep, NULL));
	check("fi_ep_bind", fi_ep_bind(ep, &eq->fid, 0));
	check("fi_ep_bind", fi_ep_bind(ep, &txcq->fid, FI_TRANSMIT));
	check("fi_ep_bind", fi_ep_bind(ep, &rxcq->fid, FI_RECV));
	check("fi_enable", fi_enable(ep));
	for (int i = 0; i < RECEIVES; i++)
		receive_one();
	if (server)
		check("fi_connect", fi_connect(ep, info->dest_addr, NULL, 0));
	else
		check("fi_accept", fi_accept(ep, NULL, 0));
	wait_for(FI_CONNECTED);
	if (!strcmp(argv[6], "pong"))
		pong(!!server, count);
	else
		stream(!!server, count);
	fflush(stdout);
	/* Orderly, so that the last acknowledgement is repeated if the network has lost it. */
	fi_shutdown(ep, 0);
	check("fi_close", fi_close(&ep->fid));
	return 0;
}
