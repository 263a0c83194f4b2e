/* A library that is linked with libibverbs, and calls it when it is loaded. */
#include <infiniband/verbs.h>
#include <stdlib.h>

__attribute__((constructor)) static void use(void) {
  int count = 0;
  struct ibv_device **list = ibv_get_device_list(&count);
  if (!list || count != 1) abort();
  ibv_free_device_list(list);
}
