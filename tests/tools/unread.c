/* Stands between a program and the C library (LD_PRELOAD) and plays a drive that fails: reads of files whose path ends
 * with the value of UNREAD are refused with EIO, those of UNREAD_LEAST bytes and more.
 *   cc -shared -fPIC unread.c -o unread.so -ldl */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int is_unread(int fd) {
  const char* const end = getenv("UNREAD");
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = end == NULL ? -1 : readlink(link, path, sizeof path - 1);
  if (length < 0 || (size_t)length < strlen(end)) return 0;
  return memcmp(path + length - strlen(end), end, strlen(end)) == 0;
}

static int is_long(size_t count) {
  const char* const least = getenv("UNREAD_LEAST");
  return least == NULL || count >= (size_t)atoll(least);
}

#define REFUSED(name, offset_type)                                            \
  ssize_t name(int fd, void* bytes, size_t count, offset_type offset) {       \
    if (is_unread(fd) && is_long(count)) return errno = EIO, -1;              \
    return ((__typeof__(&name))dlsym(RTLD_NEXT, #name))(fd, bytes, count, offset); \
  }
REFUSED(pread, off_t)
REFUSED(pread64, off64_t)

ssize_t read(int fd, void* bytes, size_t count) {
  if (is_unread(fd)) return errno = EIO, -1;
  return ((__typeof__(&read))dlsym(RTLD_NEXT, "read"))(fd, bytes, count);
}
