#include <terrace/base/text/text_file.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include <terrace/base/units.h>

namespace terrace {
namespace {

constexpr int kWriterWaitMs = 2000;

class Descriptor {
 public:
  // O_NONBLOCK, because opening a pipe waits for its writer otherwise.
  explicit Descriptor(const std::filesystem::path& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int fd() const { return fd_; }

 private:
  int fd_;
};

// Waits until something can be read or, if `may_end`, for as long as a writer may take to come.
void wait_for_writer(int fd, bool may_end) {
  pollfd wanted{.fd = fd, .events = POLLIN, .revents = 0};
  ::poll(&wanted, 1, may_end ? kWriterWaitMs : -1);
}

}  // namespace

std::string text_of_file(const std::filesystem::path& path, size_t most_bytes,
                         FunctionRef<void(const Reason&)> fail) {
  const Descriptor file(path);
  if (file.fd() < 0) fail(system_reason(errno));
  struct stat status {};
  if (::fstat(file.fd(), &status) != 0) fail(system_reason(errno));
  const bool is_pipe = S_ISFIFO(status.st_mode);
  std::string text(std::max<size_t>(most_bytes + 1, 1), '\0');
  size_t size = 0;
  bool had_writer = !is_pipe;
  while (size < text.size()) {
    const ssize_t count = ::read(file.fd(), text.data() + size, text.size() - size);
    if (count > 0) {
      size += static_cast<size_t>(count);
      had_writer = true;
    } else if (count == 0) {
      if (had_writer) break;
      wait_for_writer(file.fd(), true);
      had_writer = true;  // the next end is the end, whether a writer came or not
    } else if (errno == EAGAIN) {
      wait_for_writer(file.fd(), false);
      had_writer = true;
    } else if (errno != EINTR) {
      fail(system_reason(errno));
    }
  }
  if (size > most_bytes) fail("it is larger than " + format_bytes(most_bytes));
  if (is_pipe && size == 0)
    fail("it is a pipe, and nothing came out of it (of several ranks that read a pipe, one gets all)");
  text.resize(size);
  return text;
}

}  // namespace terrace
