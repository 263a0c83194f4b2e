/* The library emulates stat, access and their variants for the device's files and for no others, even in programs
   that were linked with older C libraries. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Functions called by programs that were linked before glibc 2.33. */
#ifdef __x86_64__
#define OLD "GLIBC_2.2.5"
#define OLD_AT "GLIBC_2.4"
#define STAT_VERSION 1
#else
#define OLD "GLIBC_2.17"
#define OLD_AT OLD
#define STAT_VERSION 0
#endif
typedef int old_stat(int, const char *, struct stat *);
typedef int old_fstatat(int, int, const char *, struct stat *, int);
old_stat __old_xstat, __old_lxstat, __old_xstat64, __old_lxstat64;
old_fstatat __old_fxstatat, __old_fxstatat64;
__asm__(".symver __old_xstat, __xstat@" OLD);
__asm__(".symver __old_lxstat, __lxstat@" OLD);
__asm__(".symver __old_xstat64, __xstat64@" OLD);
__asm__(".symver __old_lxstat64, __lxstat64@" OLD);
__asm__(".symver __old_fxstatat, __fxstatat@" OLD_AT);
__asm__(".symver __old_fxstatat64, __fxstatat64@" OLD_AT);

/* Every call that checks a file, with its result: 0 or -1. */
enum { WAYS = 12 };
static const char *const NAMES[WAYS] = {"stat", "lstat", "fstatat", "statx", "__xstat", "__lxstat", "__xstat64",
    "__lxstat64", "__fxstatat", "__fxstatat64", "stat64", "fstatat64"};
static int look(int way, const char *path, struct stat *into) {
  struct statx more;
  switch (way) {
    case 0: return stat(path, into);
    case 1: return lstat(path, into);
    case 2: return fstatat(AT_FDCWD, path, into, 0);
    case 3:
      if (statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &more)) return -1;
      memset(into, 0, sizeof *into);
      into->st_mode = more.stx_mode;
      into->st_rdev = makedev(more.stx_rdev_major, more.stx_rdev_minor);
      return 0;
    case 4: return __old_xstat(STAT_VERSION, path, into);
    case 5: return __old_lxstat(STAT_VERSION, path, into);
    case 6: return __old_xstat64(STAT_VERSION, path, into);
    case 7: return __old_lxstat64(STAT_VERSION, path, into);
    case 8: return __old_fxstatat(STAT_VERSION, AT_FDCWD, path, into, 0);
    case 9: return __old_fxstatat64(STAT_VERSION, AT_FDCWD, path, into, AT_SYMLINK_NOFOLLOW);
    case 10: return stat64(path, (struct stat64 *)into);
    default: return fstatat64(AT_FDCWD, path, (struct stat64 *)into, 0);
  }
}

static int fails(int code, int with) { return code == -1 && errno == with; }

int main(void) {
  struct ibv_device **list = ibv_get_device_list(NULL);
  char path[128];
  snprintf(path, sizeof path, "/dev/infiniband/%s", list[0]->dev_name);
  struct stat found;
  /* Volatile, so that the compiler does not know the arguments. */
  char *volatile wild = (char *)8;
  struct stat *volatile nowhere = (struct stat *)8;
  if (stat(path, &found) || !S_ISCHR(found.st_mode)) return printf("stat does not find the device %s\n", path), 1;
  if (access(path, R_OK | W_OK)) return printf("access says that %s cannot be opened\n", path), 1;
  if (!fails(stat(path, nowhere), EFAULT)) return printf("stat accepts an invalid buffer\n"), 1;
  if (!fails(stat(wild, &found), EFAULT)) return printf("stat accepts an invalid path address\n"), 1;
  if (!fails(access(wild, R_OK), EFAULT)) return printf("access accepts an invalid path address\n"), 1;
  wild = NULL;
  if (!fails(stat(wild, &found), EFAULT) || !fails(access(wild, R_OK), EFAULT)) return printf("stat or access accepts a null path\n"), 1;
  if (!fails(stat("/dev/infiniband/none", &found), ENOENT)) return printf("stat finds /dev/infiniband/none\n"), 1;
  if (stat("/", &found) || !S_ISDIR(found.st_mode) || access("/", R_OK)) return printf("stat does not find the directory /\n"), 1;

  struct stat first;
  if (stat(path, &first)) return 1;
  for (int way = 0; way < WAYS; way++) {
    const char *name = NAMES[way];
    if (look(way, path, &found)) return printf("%s does not find %s\n", name, path), 1;
    if (found.st_mode != first.st_mode || found.st_rdev != first.st_rdev) return printf("%s returns another mode or device than stat\n", name), 1;
    if (!fails(look(way, "/dev/infiniband/none", &found), ENOENT)) return printf("%s finds /dev/infiniband/none\n", name), 1;
    if (look(way, "/", &found) || !S_ISDIR(found.st_mode)) return printf("%s does not find the directory /\n", name), 1;
    char *volatile bad = (char *)8;
    if (!fails(look(way, bad, &found), EFAULT)) return printf("%s accepts an invalid path address\n", name), 1;
  }
  if (faccessat(AT_FDCWD, path, R_OK | W_OK, 0)) return printf("faccessat does not find %s\n", path), 1;
  if (!fails(faccessat(AT_FDCWD, "/dev/infiniband/none", F_OK, 0), ENOENT)) return printf("faccessat finds /dev/infiniband/none\n"), 1;
  if (!fails(access(path, X_OK), EACCES)) return printf("access says that %s can be executed\n", path), 1;

  char room[PATH_MAX], *got = realpath(path, room);
  if (got != room || strcmp(room, path)) return printf("realpath of %s is wrong\n", path), 1;
  got = realpath(path, NULL);
  if (!got || strcmp(got, path)) return printf("realpath without a buffer is wrong\n"), 1;
  free(got);
  got = canonicalize_file_name(path);
  if (!got || strcmp(got, path)) return printf("canonicalize_file_name is wrong\n"), 1;
  free(got);
  char *(*checked)(const char *, char *, size_t) = dlsym(RTLD_DEFAULT, "__realpath_chk");
  if (!checked || checked(path, room, sizeof room) != room || strcmp(room, path)) return printf("__realpath_chk is missing or wrong\n"), 1;
  if (realpath("/dev/infiniband/none", room) || errno != ENOENT) return printf("realpath finds /dev/infiniband/none\n"), 1;
  if (!realpath("/proc/self/../self", room) || strstr(room, "self")) return printf("realpath of /proc/self/../self is wrong\n"), 1;
  /* The links in sysfs lead to the directory of a device without hardware; all calls agree. */
  const char *links[] = {list[0]->ibdev_path, list[0]->dev_path};
  for (int i = 0; i < 2; i++) {
    const char *link = links[i];
    if (access(link, R_OK | X_OK) || faccessat(AT_FDCWD, link, R_OK, 0)) return printf("%s does not exist\n", link), 1;
    for (int way = 0; way < WAYS; way++) {
      const char *name = NAMES[way];
      int follows = way != 1 && way != 5 && way != 7 && way != 9;
      if (look(way, link, &found)) return printf("%s does not find %s\n", name, link), 1;
      if ((found.st_mode & S_IFMT) != (follows ? S_IFDIR : S_IFLNK)) return printf("%s: %s has the wrong file type\n", name, link), 1;
      snprintf(room, sizeof room, "%s/device", link);
      if (!fails(look(way, room, &found), ENOENT)) return printf("%s finds %s\n", name, room), 1;
    }
    char target[PATH_MAX];
    if (!realpath(link, target) || strncmp(target, "/sys/devices/virtual/", 21)) return printf("realpath of %s is not below /sys/devices/virtual\n", link), 1;
    if (stat(target, &found) || !S_ISDIR(found.st_mode)) return printf("%s is not a directory\n", target), 1;
    snprintf(room, sizeof room, "%s/device", link);
    if (realpath(room, target) || errno != ENOENT) return printf("realpath finds %s\n", room), 1;
    /* Some programs search for the hardware two directories up. */
    snprintf(room, sizeof room, "%s/../..", link);
    got = realpath(room, target);
    if (got ? strcmp(got, "/sys/devices/virtual") != 0 : access("/sys/devices/virtual", F_OK) == 0)
      return printf("realpath of %s is wrong\n", room), 1;
    if (stat(room, &found) != stat("/sys/devices/virtual", &first) || found.st_ino != first.st_ino)
      return printf("stat of %s is wrong\n", room), 1;
  }
  ibv_free_device_list(list);
  printf("done\n");
  return 0;
}
