/* Stands between a program and the C library (LD_PRELOAD): what reads a drive, writes to one or reads another process's memory
 * takes so many microseconds more, from slow_at() on. Each process sets its own.
 *   cc -shared -fPIC slow_at.c -o slow_at.so -ldl */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_uint drive_us, memory_us;

void slow_at(unsigned of_drive_us, unsigned of_memory_us) {
  atomic_store(&drive_us, of_drive_us);
  atomic_store(&memory_us, of_memory_us);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define CALL(us, name, arguments, ...)  \
  ssize_t name arguments {              \
    const unsigned t = atomic_load(us); \
    if (t > 0) usleep(t);               \
    return REAL(name)(__VA_ARGS__);     \
  }
CALL(&drive_us, pread, (int fd, void* to, size_t n, off_t at), fd, to, n, at)
CALL(&drive_us, pread64, (int fd, void* to, size_t n, off64_t at), fd, to, n, at)
CALL(&drive_us, pwrite, (int fd, const void* from, size_t n, off_t at), fd, from, n, at)
CALL(&drive_us, pwrite64, (int fd, const void* from, size_t n, off64_t at), fd, from, n, at)
CALL(&memory_us, process_vm_readv,
     (pid_t process, const struct iovec* to, unsigned long n, const struct iovec* from, unsigned long m,
      unsigned long flags),
     process, to, n, from, m, flags)
