/* Stands between a program and the C library (LD_PRELOAD): counts what changes files, and ends the process by SIGKILL
 * before the call of a number. kill_at(0) counts alone; nothing is counted before the first kill_at().
 *   cc -shared -fPIC kill_at.c -o kill_at.so -ldl */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_int is_armed;
static atomic_long calls, wanted;

void kill_at(long number) {
  atomic_store(&calls, 0);
  atomic_store(&wanted, number);
  atomic_store(&is_armed, 1);
}

long calls_so_far(void) { return atomic_load(&calls); }

static void see(void) {
  if (atomic_load(&is_armed) && atomic_fetch_add(&calls, 1) + 1 == atomic_load(&wanted)) kill(getpid(), SIGKILL);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define CALL(result, name, arguments, ...) \
  result name arguments {                  \
    see();                                 \
    return REAL(name)(__VA_ARGS__);        \
  }
CALL(int, rename, (const char* a, const char* b), a, b)
CALL(int, renameat, (int d, const char* a, int e, const char* b), d, a, e, b)
CALL(int, renameat2, (int d, const char* a, int e, const char* b, unsigned f), d, a, e, b, f)
CALL(int, fsync, (int fd), fd)
CALL(int, fdatasync, (int fd), fd)
CALL(int, mkdir, (const char* a, mode_t m), a, m)
CALL(int, rmdir, (const char* a), a)
CALL(int, unlink, (const char* a), a)
CALL(int, unlinkat, (int d, const char* a, int f), d, a, f)
CALL(ssize_t, write, (int fd, const void* b, size_t n), fd, b, n)
CALL(ssize_t, pwrite, (int fd, const void* b, size_t n, off_t o), fd, b, n, o)
CALL(ssize_t, pwrite64, (int fd, const void* b, size_t n, off64_t o), fd, b, n, o)
CALL(int, fallocate, (int fd, int m, off_t o, off_t n), fd, m, o, n)
CALL(int, fallocate64, (int fd, int m, off64_t o, off64_t n), fd, m, o, n)
CALL(int, ftruncate, (int fd, off_t n), fd, n)
CALL(int, ftruncate64, (int fd, off64_t n), fd, n)

#define OPEN(name)                                          \
  int name(const char* path, int flags, ...) {              \
    va_list more;                                           \
    va_start(more, flags);                                  \
    mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0; \
    va_end(more);                                           \
    if (flags & O_CREAT) see();                             \
    return REAL(name)(path, flags, mode);                   \
  }
OPEN(open)
OPEN(open64)
