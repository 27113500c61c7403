/* Stands between a program and the C library (LD_PRELOAD): counts reads, writes and requests for room of files of saved
 * activations, and fails one of a kind with an error number, or all from that one on.
 *   cc -shared -fPIC fail_at.c -o fail_at.so -ldl */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { kReads, kWrites, kRoom, kKinds };

static atomic_long calls[kKinds];
static atomic_int is_armed, failing_kind, failing_error, fails_on;
static atomic_long failing_call;

/* Counts from 0 on. Call `call` of `kind` fails with `error`, and with `on` all after it; call 0 is none. */
void fail_at(int kind, long call, int error, int on) {
  for (int k = 0; k < kKinds; ++k) atomic_store(&calls[k], 0);
  atomic_store(&failing_kind, kind);
  atomic_store(&failing_call, call);
  atomic_store(&failing_error, error);
  atomic_store(&fails_on, on);
  atomic_store(&is_armed, 1);
}

long calls_of(int kind) { return atomic_load(&calls[kind]); }

static int is_of_saved(int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return 0;
  path[length] = 0;
  return strstr(path, "/saved") != NULL;
}

static int fails(int kind, int fd) {
  if (!atomic_load(&is_armed) || !is_of_saved(fd)) return 0;
  const long call = atomic_fetch_add(&calls[kind], 1) + 1, failing = atomic_load(&failing_call);
  if (kind != atomic_load(&failing_kind) || failing == 0) return 0;
  if (call != failing && !(atomic_load(&fails_on) && call > failing)) return 0;
  errno = atomic_load(&failing_error);
  return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define CALL(kind, result, name, arguments, ...)                      \
  result name arguments {                                             \
    return fails(kind, fd) ? (result)-1 : REAL(name)(__VA_ARGS__);    \
  }
CALL(kReads, ssize_t, pread, (int fd, void* to, size_t n, off_t at), fd, to, n, at)
CALL(kReads, ssize_t, pread64, (int fd, void* to, size_t n, off64_t at), fd, to, n, at)
CALL(kWrites, ssize_t, pwrite, (int fd, const void* from, size_t n, off_t at), fd, from, n, at)
CALL(kWrites, ssize_t, pwrite64, (int fd, const void* from, size_t n, off64_t at), fd, from, n, at)
CALL(kRoom, int, fallocate, (int fd, int mode, off_t at, off_t n), fd, mode, at, n)
CALL(kRoom, int, fallocate64, (int fd, int mode, off64_t at, off64_t n), fd, mode, at, n)
