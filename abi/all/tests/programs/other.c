/* A library that defines the symbols of a provider and calls them itself. */
#include <stdio.h>

int dapl_extensions(void) { return 1; }
int dat_provider_init(void) { return 2; }
int fi_prov_ini(void) { return 3; }

__attribute__((constructor)) static void use(void) {
  int (*volatile functions[])(void) = {dapl_extensions, dat_provider_init, fi_prov_ini};
  int sum = 0;
  for (int i = 0; i < 3; i++) sum += functions[i]();
  puts(sum == 6 ? "own symbols" : "others' symbols");
}
