/* Loads verbs as NCCL does: by name, with a version for each symbol, never linked. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *library;

static void *symbol(const char *name, const char *version) {
  void *found = dlvsym(library, name, version);
  if (!found) {
    printf("no %s@%s: %s\n", name, version, dlerror());
    exit(1);
  }
  return found;
}

int main(int argc, char **argv) {
  library = dlopen(argv[1], RTLD_NOW);
  if (!library) {
    printf("%s\n", dlerror());
    return 1;
  }
  struct ibv_device **(*get_device_list)(int *) = symbol("ibv_get_device_list", "IBVERBS_1.1");
  void (*free_device_list)(struct ibv_device **) = symbol("ibv_free_device_list", "IBVERBS_1.1");
  const char *(*get_device_name)(struct ibv_device *) = symbol("ibv_get_device_name", "IBVERBS_1.1");
  struct ibv_context *(*open_device)(struct ibv_device *) = symbol("ibv_open_device", "IBVERBS_1.1");
  int (*close_device)(struct ibv_context *) = symbol("ibv_close_device", "IBVERBS_1.1");
  int (*query_device)(struct ibv_context *, struct ibv_device_attr *) = symbol("ibv_query_device", "IBVERBS_1.1");
  int (*query_gid)(struct ibv_context *, uint8_t, int, union ibv_gid *) = symbol("ibv_query_gid", "IBVERBS_1.1");
  struct ibv_pd *(*alloc_pd)(struct ibv_context *) = symbol("ibv_alloc_pd", "IBVERBS_1.1");
  int (*dealloc_pd)(struct ibv_pd *) = symbol("ibv_dealloc_pd", "IBVERBS_1.1");
  struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int) = symbol("ibv_reg_mr", "IBVERBS_1.1");
  struct ibv_mr *(*reg_mr_iova2)(struct ibv_pd *, void *, size_t, uint64_t, unsigned) =
      symbol("ibv_reg_mr_iova2", "IBVERBS_1.8");
  int (*dereg_mr)(struct ibv_mr *) = symbol("ibv_dereg_mr", "IBVERBS_1.1");
  symbol("ibv_reg_dmabuf_mr", "IBVERBS_1.12");
  symbol("ibv_query_ece", "IBVERBS_1.10");
  symbol("ibv_set_ece", "IBVERBS_1.10");
  symbol("ibv_fork_init", "IBVERBS_1.1");
  symbol("ibv_event_type_str", "IBVERBS_1.1");

  int count = 0;
  struct ibv_device **list = get_device_list(&count);
  if (!list || count != 1) return printf("%d devices instead of one\n", count), 1;
  printf("device %s\n", get_device_name(list[0]));
  struct ibv_context *context = open_device(list[0]);
  free_device_list(list);
  struct ibv_device_attr attr;
  union ibv_gid gid;
  if (!context || query_device(context, &attr) || query_gid(context, 1, 0, &gid)) return 1;
  struct ibv_pd *pd = alloc_pd(context);
  static char memory[1 << 16];
  struct ibv_mr *plain = reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
  struct ibv_mr *relaxed = reg_mr_iova2(pd, memory, sizeof memory, (uintptr_t)memory,
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_RELAXED_ORDERING);
  if (!plain || !relaxed) return printf("ibv_reg_mr or ibv_reg_mr_iova2 failed\n"), 1;
  if (dereg_mr(plain) || dereg_mr(relaxed) || dealloc_pd(pd) || close_device(context)) return 1;
  printf("done\n");
  return 0;
}
