// What the library and the program of a wheel have in place of code that cannot be in them
// (TerraceStandalone.cmake).
#include <libaio.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace {

// As libaio answers: a result, or an error as a negative number.
template <typename... Arguments>
int answer_of(long call, Arguments... arguments) {
  const long result = syscall(call, arguments...);
  return result < 0 ? -errno : static_cast<int>(result);
}

}  // namespace

extern "C" {

// The four calls of libaio, whose licence wants it to be exchangeable. The rest of it is in its header.
int io_setup(int events, io_context_t* context) {
  return answer_of(SYS_io_setup, events, context);
}

int io_destroy(io_context_t context) {
  return answer_of(SYS_io_destroy, context);
}

int io_submit(io_context_t context, long count, iocb* blocks[]) {
  return answer_of(SYS_io_submit, context, count, blocks);
}

int io_getevents(io_context_t context, long least, long most, io_event* events, timespec* timeout) {
  return answer_of(SYS_io_getevents, context, least, most, events, timeout);
}

// std::random_device of Debian's static libstdc++ takes it from glibc 2.36, which other systems do not have.
uint32_t arc4random() noexcept {
  uint32_t value = 0;
  while (getrandom(&value, sizeof value, 0) != sizeof value) {
  }
  return value;
}

}  // extern "C"
