/* Loads the libraries given as arguments, and then counts the loaded objects that define one of our symbols. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>

static int copies;

static int look(struct dl_phdr_info *info, size_t size, void *nothing) {
  void *library = *info->dlpi_name ? dlopen(info->dlpi_name, RTLD_NOW | RTLD_NOLOAD) : NULL;
  void *symbol = library ? dlvsym(library, "rkey_dat_provider", "RKEY_1") : NULL;
  struct link_map *map;
  Dl_info found;
  /* dlvsym also searches the dependencies of a library. */
  if (symbol && !dlinfo(library, RTLD_DI_LINKMAP, &map) && dladdr(symbol, &found)) copies += (ElfW(Addr))found.dli_fbase == map->l_addr;
  return 0;
}

int main(int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    if (!dlopen(argv[i], RTLD_NOW | RTLD_LOCAL)) {
      puts(dlerror());
      return 1;
    }
  }
  dl_iterate_phdr(look, NULL);
  printf("%d %s\n", copies, copies == 1 ? "copy" : "copies");
  return 0;
}
