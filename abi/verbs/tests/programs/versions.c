/* Looks up every symbol by its version, as the loader does for a program linked with that version. The arguments are
   NAME@@VERSION. Then tests the calls that Debian's headers lack, with structures from the manual pages of rdma-core
   65. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct mr_init_attr {
  size_t length;
  int access;
  uint64_t comp_mask, iova;
  void *addr;
  int fd;
  uint64_t fd_offset;
  void *dmah;
  void *buf;
};
enum { MASK_IOVA = 1, MASK_ADDR = 2, MASK_FD = 4, MASK_FD_OFFSET = 8, MASK_DMAH = 16, MASK_BUF = 32 };
_Static_assert(sizeof(struct mr_init_attr) == 72 && offsetof(struct mr_init_attr, comp_mask) == 16, "layout");

static void *library;
static int wrong;

static void *symbol(const char *name, const char *version) {
  void *found = dlvsym(library, name, version);
  if (!found) printf("no %s@%s: %s\n", name, version, dlerror()), wrong++;
  return found;
}

static void check(const char *what, int good) {
  if (!good) printf("%s: errno %d\n", what, errno), wrong++;
}

int main(int argc, char **argv) {
  library = dlopen("libibverbs.so.1", RTLD_NOW);
  if (!library || argc < 100) return printf("the library is missing, or only %d symbols were passed\n", argc - 1), 1;
  for (int i = 1; i < argc; i++) {
    char *at = strchr(argv[i], '@'), *version = strrchr(argv[i], '@') + 1;
    *at = 0;
    symbol(argv[i], version);
  }
  if (wrong) return 1;

  struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *, struct mr_init_attr *) = symbol("ibv_reg_mr_ex", "IBVERBS_1.15");
  void *(*alloc_dmah)(struct ibv_context *, void *) = symbol("ibv_alloc_dmah", "IBVERBS_1.15");
  int (*dealloc_dmah)(void *) = symbol("ibv_dealloc_dmah", "IBVERBS_1.15");
  int (*dm_export)(void *) = symbol("ibv_dm_export_dmabuf_fd", "IBVERBS_1.16");
  int (*port_speed)(struct ibv_context *, uint32_t, uint64_t *) = symbol("ibv_query_port_speed", "IBVERBS_1.16");
  void *(*alloc_buf)(struct ibv_pd *, size_t, void **) = symbol("ibv_alloc_buf", "IBVERBS_1.17");
  void (*free_buf)(void *) = symbol("ibv_free_buf", "IBVERBS_1.17");
  struct ibv_mr *(*reg_buf_mr)(struct ibv_pd *, void *, void *, size_t, int) = symbol("ibv_reg_buf_mr", "IBVERBS_1.17");
  void *(*create_cntr)(struct ibv_context *, void *) = symbol("ibv_create_comp_cntr", "IBVERBS_1.18");
  int (*query_caps)(struct ibv_context *, void *) = symbol("ibv_query_comp_cntr_caps", "IBVERBS_1.18");
  const char *(*opcode_str)(int) = dlsym(library, "ibv_wr_opcode_str");

  struct ibv_device **list = ibv_get_device_list(NULL);
  struct ibv_context *context = ibv_open_device(list[0]);
  struct ibv_pd *pd = ibv_alloc_pd(context), *other = ibv_alloc_pd(context);
  if (!pd || !other) return printf("ibv_alloc_pd failed: errno %d\n", errno), 1;

  static char memory[8192];
  struct mr_init_attr attr = {.length = 64, .access = IBV_ACCESS_LOCAL_WRITE, .comp_mask = MASK_ADDR, .addr = memory};
  struct ibv_mr *mr = reg_mr_ex(pd, &attr);
  check("ibv_reg_mr_ex of an address", mr && mr->addr == memory && mr->length == 64 && !ibv_dereg_mr(mr));
  errno = 0, attr.comp_mask = MASK_IOVA;
  check("ibv_reg_mr_ex without memory is refused", !reg_mr_ex(pd, &attr) && errno == EINVAL);
  errno = 0, attr.comp_mask = MASK_ADDR | 1 << 20;
  check("ibv_reg_mr_ex with an unknown field is refused", !reg_mr_ex(pd, &attr) && errno == EOPNOTSUPP);
  errno = 0, attr.comp_mask = MASK_ADDR | MASK_DMAH;
  check("ibv_reg_mr_ex with a DMA handle is refused", !reg_mr_ex(pd, &attr) && errno == EOPNOTSUPP);
  check("ibv_reg_mr_ex with null attributes is refused", !reg_mr_ex(pd, NULL) && errno == EINVAL);
  int fd = memfd_create("memory", 0);
  attr.comp_mask = MASK_FD | MASK_FD_OFFSET | MASK_IOVA, attr.fd = fd, attr.fd_offset = 4096;
  check("ftruncate of the file", fd >= 0 && !ftruncate(fd, 8192));
  mr = reg_mr_ex(pd, &attr);
  check("ibv_reg_mr_ex of a file", mr && mr->length == 64 && !ibv_dereg_mr(mr));
  close(fd);

  void *buf = NULL;
  char *bytes = alloc_buf(pd, 10000, &buf);
  check("ibv_alloc_buf", bytes && buf && !((uintptr_t)bytes % 4096));
  if (!bytes) return 1;
  memset(bytes, 1, 10000);
  mr = reg_buf_mr(pd, buf, bytes + 8, 9992, IBV_ACCESS_LOCAL_WRITE);
  check("ibv_reg_buf_mr", mr && mr->addr == bytes + 8 && !ibv_dereg_mr(mr));
  attr = (struct mr_init_attr){.length = 10000, .comp_mask = MASK_ADDR | MASK_BUF, .addr = bytes, .buf = buf};
  mr = reg_mr_ex(pd, &attr);
  check("ibv_reg_mr_ex of a buffer", mr && !ibv_dereg_mr(mr));
  errno = 0;
  check("ibv_reg_buf_mr past the end is refused", !reg_buf_mr(pd, buf, bytes + 8, 9993, 0) && errno == EINVAL);
  check("ibv_reg_buf_mr before the start is refused", !reg_buf_mr(pd, buf, bytes - 1, 8, 0) && errno == EINVAL);
  check("ibv_reg_buf_mr of a range that wraps around is refused", !reg_buf_mr(pd, buf, bytes + 8, SIZE_MAX, 0) && errno == EINVAL);
  check("ibv_reg_buf_mr in another domain is refused", !reg_buf_mr(other, buf, bytes, 8, 0) && errno == EINVAL);
  free_buf(buf);
  check("ibv_reg_buf_mr of a freed buffer is refused", !reg_buf_mr(pd, buf, bytes, 8, 0) && errno == EINVAL);
  errno = 0;
  check("ibv_alloc_buf of 0 bytes is refused", !alloc_buf(pd, 0, &buf) && errno == EINVAL);
  check("ibv_alloc_buf of SIZE_MAX bytes is refused", !alloc_buf(pd, SIZE_MAX, &buf));

  uint64_t speed = 0;
  check("ibv_query_port_speed", !port_speed(context, 1, &speed) && speed == 1000);
  check("ibv_query_port_speed of a missing port is refused", port_speed(context, 2, &speed) == EINVAL && port_speed(context, 257, &speed) == EINVAL);
  errno = 0;
  check("ibv_alloc_dmah", !alloc_dmah(context, NULL) && errno == EOPNOTSUPP);
  check("ibv_dealloc_dmah", dealloc_dmah(NULL) == EOPNOTSUPP);
  errno = 0;
  check("ibv_dm_export_dmabuf_fd", dm_export(NULL) == -1 && errno == EOPNOTSUPP);
  errno = 0;
  check("ibv_create_comp_cntr", !create_cntr(context, NULL) && errno == EOPNOTSUPP);
  check("ibv_query_comp_cntr_caps", query_caps(context, NULL) == EOPNOTSUPP);
  check("ibv_wr_opcode_str", opcode_str && !strcmp(opcode_str(IBV_WR_SEND), "send") && opcode_str(-1));

  check("domains", !ibv_dealloc_pd(pd) && !ibv_dealloc_pd(other) && !ibv_close_device(context));
  if (wrong) return 1;
  printf("done\n");
  return 0;
}
