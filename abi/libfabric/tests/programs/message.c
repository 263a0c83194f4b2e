/* A program for libfabric 1.17: what the library offers, its errors, and a message. */
#include "check.h"
#include "pair.h"
#include <rdma/providers/fi_log.h>
#include <rdma/providers/fi_prov.h>

static struct fi_info *hints(void)
{
	struct fi_info *hints = fi_allocinfo();
	CHECK(hints);
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_TAGGED | FI_MSG;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	return hints;
}

/* What `fi_getinfo` returns for the name of a provider. */
static int offered(const char *name)
{
	struct fi_info *with = hints(), *info = NULL;
	with->fabric_attr->prov_name = strdup(name);
	int got = fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, with, &info);
	CHECK((got == 0) == (info != NULL));
	if (info)
		CHECK(strcmp(info->fabric_attr->prov_name, "rkey") == 0);
	fi_freeinfo(info);
	fi_freeinfo(with);
	return got;
}

static void offers(void)
{
	struct fi_info *info;

	RETURNS(offered("rkey"), 0);
	RETURNS(offered("RKEY"), 0);
	RETURNS(offered("^tcp"), 0);
	RETURNS(offered("tcp"), -FI_ENODATA);
	RETURNS(offered("^rkey"), -FI_ENODATA);
	RETURNS(offered("rkey;ofi_rxm"), -FI_ENODATA);
	RETURNS(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, NULL, NULL), -FI_EINVAL);
	RETURNS(fi_getinfo(FI_VERSION(9, 0), NULL, NULL, 0, NULL, &info), -FI_ENOSYS);
	CHECK(FI_VERSION_GE(fi_version(), FI_VERSION(1, 17)));

	RETURNS(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, FI_PROV_ATTR_ONLY, NULL, &info), 0);
	CHECK(strcmp(info->fabric_attr->prov_name, "rkey") == 0 && !info->next);
	fi_freeinfo(info);
	fi_freeinfo(NULL);
	CHECK(strcmp(fi_strerror(-FI_ENOKEY), "Required key not available") == 0);
	/* Text that does not fit into the buffer is truncated. */
	uint64_t caps = FI_MSG | FI_RMA;
	char small[10], tiny[1] = {'x'};
	CHECK(strcmp(fi_tostr_r(small, sizeof small, &caps, FI_TYPE_CAPS), "FI_MSG, F") == 0);
	CHECK(strcmp(fi_tostr_r(tiny, sizeof tiny, &caps, FI_TYPE_CAPS), "") == 0);
}

static void fabrics(struct fi_info *info)
{
	struct fid_fabric *fabric;
	struct fi_fabric_attr attr = *info->fabric_attr;

	RETURNS(fi_fabric(NULL, &fabric, NULL), -FI_EINVAL);
	RETURNS(fi_fabric(&attr, NULL, NULL), -FI_EINVAL);
	attr.prov_name = NULL;
	RETURNS(fi_fabric(&attr, &fabric, NULL), -FI_EINVAL);
	attr.prov_name = "tcp";
	RETURNS(fi_fabric(&attr, &fabric, NULL), -FI_ENODEV);
}

static void copies(struct fi_info *info)
{
	struct fi_info *copy = fi_dupinfo(info);
	CHECK(copy && copy->src_addr != info->src_addr && !copy->next);
	CHECK(memcmp(copy->src_addr, info->src_addr, info->src_addrlen) == 0);
	CHECK(copy->domain_attr->name != info->domain_attr->name);
	CHECK(strcmp(copy->domain_attr->name, info->domain_attr->name) == 0);
	CHECK(copy->fabric_attr->api_version == FI_VERSION(1, 17));
	fi_freeinfo(copy);
}

static void parameters(void)
{
	struct fi_provider own = {.name = "mine"};
	struct fi_param *params;
	int count, number, yes, found = 0;
	size_t size;
	char *text;

	RETURNS(fi_param_define(&own, "depth", FI_PARAM_INT, "%s of %d (%c%c)", "depth", 16, 'a', 'b'), 0);
	RETURNS(fi_param_define(&own, "on", FI_PARAM_BOOL, "on"), 0);
	RETURNS(fi_param_define(&own, "size", FI_PARAM_SIZE_T, "size"), 0);
	RETURNS(fi_param_define(NULL, "word", FI_PARAM_STRING, "word"), 0);
	RETURNS(fi_param_define(&own, "", FI_PARAM_STRING, "word"), -FI_EINVAL);
	RETURNS(fi_param_define(&own, NULL, FI_PARAM_STRING, "word"), -FI_EINVAL);

	RETURNS(fi_param_get_int(&own, "unknown", &number), -FI_ENOENT);
	RETURNS(fi_param_get_int(&own, "depth", &number), -FI_ENODATA);
	setenv("FI_MINE_DEPTH", "0x11", 1);
	setenv("FI_MINE_ON", "yes", 1);
	setenv("FI_MINE_SIZE", "5000000000", 1);
	setenv("FI_WORD", "hello", 1);
	RETURNS(fi_param_get_int(&own, "depth", &number), 0);
	RETURNS(fi_param_get_bool(&own, "on", &yes), 0);
	RETURNS(fi_param_get_size_t(&own, "size", &size), 0);
	RETURNS(fi_param_get_str(NULL, "word", &text), 0);
	CHECK(number == 17 && yes == 1 && size == 5000000000 && strcmp(text, "hello") == 0);
	setenv("FI_MINE_DEPTH", "deep", 1);
	RETURNS(fi_param_get_int(&own, "depth", &number), -FI_EINVAL);
	RETURNS(fi_param_get(&own, "depth", NULL), -FI_EINVAL);

	RETURNS(fi_getparams(&params, &count), 0);
	CHECK(!params[count].name);
	for (int at = 0; at < count; at++) {
		found += !strcmp(params[at].name, "FI_PROVIDER");
		if (strcmp(params[at].name, "FI_MINE_DEPTH"))
			continue;
		CHECK(!strcmp(params[at].help_string, "depth of 16 (ab)"));
		CHECK(!strcmp(params[at].value, "deep") && params[at].type == FI_PARAM_INT);
		found++;
	}
	CHECK(found == 2);
	fi_freeparams(params);
}

/* The test reads what this function writes to standard error. */
static void messages(void)
{
	struct fi_provider own = {.name = "mine"};
	uint64_t showtime = 0;

	CHECK(fi_log_enabled(&own, FI_LOG_INFO, FI_LOG_MR));
	CHECK(!fi_log_enabled(&own, FI_LOG_DEBUG, FI_LOG_MR));
	CHECK(fi_log_ready(&own, FI_LOG_WARN, FI_LOG_MR, &showtime));
	CHECK(!fi_log_ready(&own, FI_LOG_WARN, FI_LOG_MR, &showtime));
	fi_log(&own, FI_LOG_INFO, FI_LOG_MR, "messages", 12, "%d %s %ld %.1f %x %d\n", 1, "two", 3L, 4.5, 6, 7);
}

int main(void)
{
	struct fi_info *with = hints(), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct side a, b;
	char out[20000], in[sizeof out];

	offers();
	RETURNS(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, with, &info), 0);
	fabrics(info);
	copies(info);
	parameters();
	messages();

	RETURNS(fi_fabric(info->fabric_attr, &fabric, NULL), 0);
	CHECK(fabric->api_version == FI_VERSION(1, 17));
	RETURNS(fi_domain(fabric, info, &domain, NULL), 0);
	open_side(domain, info, &a);
	open_side(domain, info, &b);
	introduce(&a, &b);
	memset(out, 'x', sizeof out);
	pass(&a, out, NULL, &b, in, NULL, 100);
	pass(&b, out, NULL, &a, in, NULL, sizeof out);
	close_side(&a);
	close_side(&b);
	RETURNS(fi_close(&domain->fid), 0);
	RETURNS(fi_close(&fabric->fid), 0);
	fi_freeinfo(info);
	fi_freeinfo(with);
	puts("done");
	return 0;
}
