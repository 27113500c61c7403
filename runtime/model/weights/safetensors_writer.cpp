// Writing a safetensors file from its first byte to its last.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include <terrace/aio/file.h>
#include <terrace/aio/folder.h>
#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/runtime/model/weights/internal/elements.h>
#include <terrace/runtime/model/weights/safetensors.h>

namespace terrace {
namespace {

constexpr uint64_t kBufferBytes = kMiB;

// With the permissions of any file that the user makes: weights are made to be given away.
io::File create(const std::filesystem::path& path) {
  int fd;
  do {
    fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) {
    throw Error(ErrorKind::io, {"cannot create the file", path.string(), system_reason(errno),
                                "the folder must exist and be writable"});
  }
  close(fd);
  return io::File::open(path, {.access = io::FileAccess::write});
}

}  // namespace

struct SafetensorsWriter::Parts {
  std::filesystem::path path;
  std::filesystem::path aside;
  std::vector<SafetensorsSpec> tensors;
  std::optional<io::File> file;
  std::vector<std::byte> buffer;
  size_t filled = 0;    // of buffer
  uint64_t offset = 0;  // in the file, of buffer
  uint64_t bytes = 0;   // of the whole file
  size_t current = 0;   // tensor
  uint64_t left = 0;    // elements of it
  bool finished = false;

  void skip_complete();
  void append(std::span<const std::byte> more);
  void flush();
};

// Goes to the next tensor that still wants elements.
void SafetensorsWriter::Parts::skip_complete() {
  while (left == 0 && current + 1 < tensors.size()) left = count_elements(tensors[++current].shape);
}

void SafetensorsWriter::Parts::append(std::span<const std::byte> more) {
  while (!more.empty()) {
    const size_t count = std::min(more.size(), buffer.size() - filled);
    std::memcpy(buffer.data() + filled, more.data(), count);
    filled += count;
    more = more.subspan(count);
    if (filled == buffer.size()) flush();
  }
}

void SafetensorsWriter::Parts::flush() {
  std::span<const std::byte> bytes_left(buffer.data(), filled);
  while (!bytes_left.empty()) {
    const ssize_t written =
        pwrite(file->fd(), bytes_left.data(), bytes_left.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error = written < 0 ? errno : EIO;
      const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
      throw Error(full ? ErrorKind::capacity : ErrorKind::io,
                  {fmt::format("cannot write at offset {} of", offset), aside.string(), system_reason(error),
                   full ? "free some space, or choose a folder on another disk" : ""});
    }
    offset += static_cast<uint64_t>(written);
    bytes_left = bytes_left.subspan(static_cast<size_t>(written));
  }
  filled = 0;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsSpec> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : parts_(std::make_unique<Parts>()) {
  Parts& p = *parts_;
  p.path = path;
  p.aside = path.string() + ".new";
  p.tensors = std::move(tensors);
  const std::string head = safetensors_head(p.tensors, metadata);
  p.bytes = head.size();
  for (const SafetensorsSpec& tensor : p.tensors)
    p.bytes += count_elements(tensor.shape) * bytes_of(tensor.type);
  p.buffer.resize(std::min(kBufferBytes, p.bytes));
  if (unlink(p.aside.c_str()) != 0 && errno != ENOENT)
    throw Error(ErrorKind::io, {"cannot remove the file", p.aside.string(), system_reason(errno), ""});
  p.file = create(p.aside);
  try {
    p.file->preallocate(p.bytes);
    p.append(std::as_bytes(std::span(head)));
  } catch (...) {
    unlink(p.aside.c_str());
    throw;
  }
  if (!p.tensors.empty()) p.left = count_elements(p.tensors.front().shape);
}

SafetensorsWriter::~SafetensorsWriter() {
  if (!parts_->finished) unlink(parts_->aside.c_str());
}

uint64_t SafetensorsWriter::file_bytes() const {
  return parts_->bytes;
}

void SafetensorsWriter::write(std::span<const float> values) {
  Parts& p = *parts_;
  if (values.empty()) return;
  p.skip_complete();
  TERRACE_ASSERT(values.size() <= p.left,
                 fmt::format("{} elements are more than {} takes", values.size(),
                             p.tensors.empty() ? "the file" : p.tensors[p.current].name));
  p.left -= values.size();
  weights::for_each_narrow_run(p.tensors[p.current].type, values,
                               [&](std::span<const std::byte> bytes) { p.append(bytes); });
}

void SafetensorsWriter::finish() {
  Parts& p = *parts_;
  p.skip_complete();
  p.flush();
  TERRACE_ASSERT(p.left == 0 && p.offset == p.bytes,
                 fmt::format("{} got {} of {} bytes", p.path.string(), p.offset, p.bytes));
  p.file->sync();
  io::rename_path(p.aside, p.path);
  p.finished = true;
  const std::filesystem::path folder = p.path.parent_path();
  io::sync_folder(folder.empty() ? "." : folder);
}

}  // namespace terrace
