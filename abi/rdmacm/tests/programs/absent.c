/* Calls that the library does not support yet fail with ENOSYS. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static void fails(const char *what, long result)
{
	if (result != -1 || errno != ENOSYS) {
		printf("%s: %ld, errno %d\n", what, result, errno);
		exit(1);
	}
	errno = 0;
}

int main(void)
{
	static const char *const later[][2] = {
		{ "repoll_create", "RDMACM_1.5" },
		{ "repoll_ctl", "RDMACM_1.5" },
		{ "repoll_wait", "RDMACM_1.5" },
	};
	unsigned i;
	for (i = 0; i < sizeof later / sizeof *later; i++) {
		int (*call)(void) = (int (*)(void))dlvsym(RTLD_DEFAULT, later[i][0], later[i][1]);
		if (!call) {
			printf("%s of %s is missing\n", later[i][0], later[i][1]);
			return 1;
		}
		fails(later[i][0], call());
	}
	printf("done\n");
	return 0;
}
