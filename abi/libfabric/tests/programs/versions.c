/* Calls each version of fi_getinfo and fi_dupinfo with structures of its length, which end where readable memory ends. */
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The lengths of the structures in the headers of each version. */
struct version {
	const char *name;
	size_t info, tx, rx, ep, domain, fabric;
};
static const struct version versions[] = {
	{"FABRIC_1.0", 112, 72, 64, 80, 120, 28},
	{"FABRIC_1.1", 112, 72, 64, 96, 184, 32},
	{"FABRIC_1.2", 120, 72, 64, 96, 184, 32},
	{"FABRIC_1.3", 120, 80, 64, 96, 192, 32},
	{"FABRIC_1.7", 120, 80, 64, 96, 200, 32},
	{"FABRIC_1.8", 120, 80, 64, 96, 208, 32},
	{"FABRIC_1.9", 120, 80, 64, 96, 224, 32},
	{"FABRIC_1.10", 120, 80, 64, 104, 232, 32},
};

/* `len` zeroed bytes before a page that cannot be read. */
static void *at_the_end(size_t len)
{
	size_t page = sysconf(_SC_PAGESIZE);
	char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(pages != MAP_FAILED);
	CHECK(mprotect(pages + page, page, PROT_NONE) == 0);
	/* Structures are aligned to 8 bytes; the shortest one has 4 bytes less. */
	return pages + page - (len + 7) / 8 * 8;
}

typedef int getinfo(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
typedef struct fi_info *dupinfo(const struct fi_info *);
typedef void freeinfo(struct fi_info *);

static void check(void *library, const struct version *it)
{
	getinfo *get = (getinfo *)dlvsym(library, "fi_getinfo", it->name);
	dupinfo *dup = (dupinfo *)dlvsym(library, "fi_dupinfo", it->name);
	freeinfo *release = (freeinfo *)dlvsym(library, "fi_freeinfo", it->name);
	CHECK(get && dup && release);
	struct fi_info *hints = at_the_end(it->info), *list, *copy, *empty;
	hints->tx_attr = at_the_end(it->tx);
	hints->rx_attr = at_the_end(it->rx);
	hints->ep_attr = at_the_end(it->ep);
	hints->domain_attr = at_the_end(it->domain);
	hints->fabric_attr = at_the_end(it->fabric);
	hints->caps = FI_TAGGED;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->av_type = FI_AV_TABLE;
	hints->fabric_attr->prov_name = "rkey";
	RETURNS(get(FI_VERSION(1, 4), NULL, NULL, 0, hints, &list), 0);
	CHECK(list->ep_attr->type == FI_EP_RDM && list->domain_attr->av_type == FI_AV_TABLE);
	CHECK(!strcmp(list->fabric_attr->prov_name, "rkey") && !list->nic);

	copy = dup(hints);
	CHECK(copy && copy->caps == FI_TAGGED && copy->fabric_attr->prov_name != hints->fabric_attr->prov_name);
	CHECK(copy->domain_attr->av_type == FI_AV_TABLE && !copy->nic && !copy->ep_attr->auth_key);
	empty = dup(NULL);
	CHECK(empty && empty->tx_attr && empty->rx_attr && empty->ep_attr && empty->domain_attr && empty->fabric_attr);
	release(list);
	release(copy);
	release(empty);
}

/* fi_fabric of 1.0, whose attributes have no version. */
static void oldest_fabric(void *library)
{
	int (*open)(struct fi_fabric_attr *, struct fid_fabric **, void *) =
		(int (*)(struct fi_fabric_attr *, struct fid_fabric **, void *))dlvsym(library, "fi_fabric", "FABRIC_1.0");
	struct fi_fabric_attr *attr = at_the_end(versions[0].fabric);
	struct fid_fabric *fabric;
	CHECK(open);
	attr->name = "rkey";
	attr->prov_name = "rkey";
	attr->api_version = FI_VERSION(9, 9);
	RETURNS(open(attr, &fabric, NULL), 0);
	CHECK(fabric->api_version == FI_VERSION(1, 0));
	RETURNS(fi_close(&fabric->fid), 0);
	RETURNS(open(NULL, &fabric, NULL), -FI_EINVAL);
}

/* fi_fabric2, which the headers of 1.17 lack. */
static void newest_fabric(void *library)
{
	int (*open)(struct fi_info *, struct fid_fabric **, uint64_t, void *) =
		(int (*)(struct fi_info *, struct fid_fabric **, uint64_t, void *))dlvsym(library, "fi_fabric2", "FABRIC_1.8");
	struct fid_fabric *fabric;
	struct fi_info *info;
	CHECK(open);
	RETURNS(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, NULL, &info), 0);
	RETURNS(open(info, &fabric, 1, NULL), -260);
	RETURNS(open(NULL, &fabric, 0, NULL), -FI_EINVAL);
	RETURNS(open(info, &fabric, 0, NULL), 0);
	RETURNS(fi_close(&fabric->fid), 0);
	fi_freeinfo(info);
}

int main(void)
{
	void *library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_NOLOAD);
	CHECK(library);
	for (size_t at = 0; at < sizeof versions / sizeof *versions; at++)
		check(library, &versions[at]);
	oldest_fabric(library);
	newest_fabric(library);
	puts("done");
	return 0;
}
