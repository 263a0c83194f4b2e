/* The library answers stat and access for the device's file, and for nothing else. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static int fails(int code, int with) { return code == -1 && errno == with; }

int main(void) {
  struct ibv_device **list = ibv_get_device_list(NULL);
  char path[128];
  snprintf(path, sizeof path, "/dev/infiniband/%s", list[0]->dev_name);
  struct stat found;
  /* So that the compiler does not see what is passed. */
  char *volatile wild = (char *)8;
  struct stat *volatile nowhere = (struct stat *)8;
  if (stat(path, &found) || !S_ISCHR(found.st_mode)) return printf("there is no %s\n", path), 1;
  if (access(path, R_OK | W_OK)) return printf("%s may not be opened\n", path), 1;
  if (!fails(stat(path, nowhere), EFAULT)) return printf("stat wrote to 8\n"), 1;
  if (!fails(stat(wild, &found), EFAULT)) return printf("stat read from 8\n"), 1;
  if (!fails(access(wild, R_OK), EFAULT)) return printf("access read from 8\n"), 1;
  wild = NULL;
  if (!fails(stat(wild, &found), EFAULT) || !fails(access(wild, R_OK), EFAULT)) return printf("null is a path\n"), 1;
  if (!fails(stat("/dev/infiniband/none", &found), ENOENT)) return printf("there is a device none\n"), 1;
  if (stat("/", &found) || !S_ISDIR(found.st_mode) || access("/", R_OK)) return printf("/ is no folder\n"), 1;
  ibv_free_device_list(list);
  printf("done\n");
  return 0;
}
