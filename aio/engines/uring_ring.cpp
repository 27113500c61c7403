#include <terrace/aio/engines/uring_ring.h>

#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <utility>

namespace terrace::io {
namespace {

constexpr uint32_t kBufferPlaces = 4096;  // of at most 1 GiB each
constexpr uint64_t kBufferBytes = kGiB;   // the kernel's limit for one fixed buffer
// A run has a handful of tier files; every piece looks through those that are registered.
constexpr uint32_t kFilePlaces = 64;
std::string memlock_words() {
  rlimit limit;
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "";
  if (limit.rlim_cur == RLIM_INFINITY) return "; RLIMIT_MEMLOCK is unlimited";
  return "; RLIMIT_MEMLOCK is " + format_bytes(limit.rlim_cur);
}

std::vector<uint32_t> places(uint32_t count) {
  std::vector<uint32_t> free;
  for (uint32_t index = count; index-- > 0;) free.push_back(index);
  return free;
}

// Empty if the ring has the operations that are used here.
std::string why_no_reads(io_uring* ring) {
  constexpr unsigned kOperations = 256;
  const std::unique_ptr<io_uring_probe, void (*)(void*)> probe(
      static_cast<io_uring_probe*>(
          std::calloc(1, sizeof(io_uring_probe) + kOperations * sizeof(io_uring_probe_op))),
      std::free);
  if (probe == nullptr) return "no memory is left to ask what io_uring can do";
  const int result = io_uring_register_probe(ring, probe.get(), kOperations);
  if (result < 0 && result != -EINVAL)
    return "io_uring_register: " + system_reason(-result) +
           (result == -EPERM || result == -EACCES || result == -ENOSYS ? " (a seccomp filter may forbid it)"
                                                                       : "");
  if (result < 0 || io_uring_opcode_supported(probe.get(), IORING_OP_READ) == 0)
    return "io_uring has no IORING_OP_READ (it came with Linux 5.6)";
  return "";
}

}  // namespace

UringRing::UringRing() : ring_(std::make_unique<io_uring>()) {}

UringRing::~UringRing() {
  for (const int end : end_) {
    if (end >= 0) close(end);
  }
  if (!created_) return;
  // Gives the pinned pages and the open files back now; closing the ring does it some time later.
  if (has_buffer_table_) io_uring_unregister_buffers(ring_.get());
  io_uring_unregister_files(ring_.get());
  io_uring_queue_exit(ring_.get());
}

std::unique_ptr<UringRing> UringRing::create(uint32_t most_in_flight, Reason& words) {
  std::unique_ptr<UringRing> made(new UringRing());
  if (pipe2(made->end_.data(), O_CLOEXEC) != 0) {
    words = "pipe: " + system_reason(errno);
    return nullptr;
  }
  io_uring* const ring = made->ring_.get();
  const int result = io_uring_queue_init(most_in_flight, ring, 0);
  if (result < 0) {
    words = "io_uring_setup: " + system_reason(-result);
    return nullptr;
  }
  made->created_ = true;
  words = why_no_reads(ring);
  if (words.text.empty()) words = made->make_file_table();
  return words.text.empty() ? std::move(made) : nullptr;
}

// The table has the pipe's writing end behind the places of files. Returns why there is none. The call is
// not liburing's, which would raise the process's limit of open files where the table is longer than that;
// the pipe alone is in the table then.
Reason UringRing::make_file_table() {
  std::array<int, kFilePlaces + 1> files;
  files.fill(-1);
  files.back() = end_[1];
  const auto make = [&](std::span<const int> of) {
    const auto count = static_cast<unsigned>(of.size());
    return syscall(__NR_io_uring_register, ring_->ring_fd, IORING_REGISTER_FILES, of.data(), count) == 0;
  };
  if (make(files)) {
    free_files_ = places(kFilePlaces);
    return {};
  }
  files_refusal_ = "io_uring_register of a table of files: " + system_reason(errno).text;
  if (make(std::span(files).last(1))) return {};
  return "io_uring_register of a file: " + system_reason(errno);
}

// Closing a ring returns at once, while its requests still move bytes. That they have ended shows in a pipe:
// the kernel's copy of its writing end is closed with the table of files, after the last of them.
void UringRing::retire() {
  if (!created_) return;
  close(std::exchange(end_[1], -1));
  io_uring_queue_exit(ring_.get());
  created_ = false;
  std::byte nothing;
  while (read(end_[0], &nothing, 1) < 0 && errno == EINTR) {
  }
}

io_uring_sqe* UringRing::next_entry() {
  if (failure_ != 0) return nullptr;
  io_uring_sqe* const entry = io_uring_get_sqe(ring_.get());
  TERRACE_ASSERT(entry != nullptr, "more was started than the submission queue holds");
  return entry;
}

UringRing::Registered UringRing::add(const Piece& piece) {
  io_uring_sqe* entry = next_entry();
  if (entry == nullptr) return {false, false};
  const RegisteredMemory* memory = memory_of(piece);
  const RegisteredFile* file = file_of(piece.fd);
  const int fd = file != nullptr ? static_cast<int>(file->index) : piece.fd;
  const bool is_read = piece.kind == OpKind::read;
  if (memory != nullptr) {
    const int index = static_cast<int>(memory->index);
    if (is_read) {
      io_uring_prep_read_fixed(entry, fd, piece.data, piece.bytes, piece.offset, index);
    } else {
      io_uring_prep_write_fixed(entry, fd, piece.data, piece.bytes, piece.offset, index);
    }
  } else if (is_read) {
    io_uring_prep_read(entry, fd, piece.data, piece.bytes, piece.offset);
  } else {
    io_uring_prep_write(entry, fd, piece.data, piece.bytes, piece.offset);
  }
  if (file != nullptr) io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE);
  io_uring_sqe_set_data64(entry, piece.id);
  return {memory != nullptr, file != nullptr};
}

// A poll and not a read: it leaves nothing in memory that a ring being closed could still write to.
void UringRing::add_wake(int event_fd) {
  io_uring_sqe* entry = next_entry();
  if (entry == nullptr) return;
  io_uring_prep_poll_add(entry, event_fd, POLLIN);
  io_uring_sqe_set_data64(entry, kWakeId);
}

uint64_t UringRing::submit() {
  uint64_t calls = 0;
  while (failure_ == 0 && io_uring_sq_ready(ring_.get()) > 0) {
    ++calls;
    const int result = io_uring_submit(ring_.get());
    if (result >= 0) {
      patience_.succeeded();
    } else if (result != -EINTR) {
      failure_ = patience_.failed(-result);
    }
  }
  return calls;
}

bool UringRing::take(Taken& taken, bool block) {
  if (failure_ != 0) return false;
  io_uring_cqe* entry = nullptr;
  const int result = block ? io_uring_wait_cqe(ring_.get(), &entry) : io_uring_peek_cqe(ring_.get(), &entry);
  if (result == -EINTR || (result == -EAGAIN && !block)) return false;
  if (result < 0) {
    failure_ = patience_.failed(-result);
    return false;
  }
  patience_.succeeded();
  taken = Taken{io_uring_cqe_get_data64(entry), entry->res};
  io_uring_cqe_seen(ring_.get(), entry);
  return true;
}

const UringRing::RegisteredMemory* UringRing::memory_of(const Piece& piece) const {
  const auto after =
      std::upper_bound(registered_.begin(), registered_.end(), piece.data,
                       [](const std::byte* data, const RegisteredMemory& r) { return data < r.begin; });
  if (after == registered_.begin()) return nullptr;
  const RegisteredMemory& candidate = *std::prev(after);
  return piece.data + piece.bytes <= candidate.end ? &candidate : nullptr;
}

const UringRing::RegisteredFile* UringRing::file_of(int fd) const {
  for (const RegisteredFile& file : registered_files_) {
    if (file.fd == fd) return &file;
  }
  return nullptr;
}

// Zero bytes clear the place.
int UringRing::update_buffer(uint32_t index, std::byte* data, uint64_t bytes) {
  const iovec vector{data, bytes};
  const __u64 tag = 0;
  return io_uring_register_buffers_update_tag(ring_.get(), index, &vector, &tag, 1);
}

bool UringRing::make_buffer_table() {
  if (has_buffer_table_) return true;
  const int result = io_uring_register_buffers_sparse(ring_.get(), kBufferPlaces);
  if (result < 0) {
    refusal_ = "io_uring_register of a sparse table (it came with Linux 5.19): " + system_reason(-result);
    return false;
  }
  has_buffer_table_ = true;
  free_buffers_ = places(kBufferPlaces);
  return true;
}

bool UringRing::register_buffer(std::span<std::byte> memory) {
  TERRACE_ASSERT(!memory.empty(), "an empty buffer was registered");
  if (!make_buffer_table()) return false;
  const uint64_t count = divide_up(memory.size(), kBufferBytes);
  if (count > free_buffers_.size()) {
    refusal_ = "the table of registered buffers is full";
    return false;
  }
  std::vector<RegisteredMemory> added;
  for (uint64_t i = 0; i < count; ++i) {
    const std::span<std::byte> part =
        memory.subspan(i * kBufferBytes, std::min<uint64_t>(kBufferBytes, memory.size() - i * kBufferBytes));
    const uint32_t index = free_buffers_.back();
    const int result = update_buffer(index, part.data(), part.size());
    if (result < 0) {
      refusal_ = "io_uring_register of " + format_bytes(memory.size()) + ": " + system_reason(-result) +
                 (result == -ENOMEM ? memlock_words() : "");
      for (const RegisteredMemory& undone : added) {
        update_buffer(undone.index, nullptr, 0);
        free_buffers_.push_back(undone.index);
      }
      return false;
    }
    free_buffers_.pop_back();
    added.push_back(RegisteredMemory{part.data(), part.data() + part.size(), index});
  }
  registered_.insert(registered_.end(), added.begin(), added.end());
  std::sort(registered_.begin(), registered_.end(),
            [](const RegisteredMemory& a, const RegisteredMemory& b) { return a.begin < b.begin; });
  return true;
}

void UringRing::unregister_buffer(std::span<std::byte> memory) {
  uint64_t removed_bytes = 0;
  const auto lies_inside = [&](const RegisteredMemory& r) {
    return r.begin >= memory.data() && r.end <= memory.data() + memory.size();
  };
  for (const RegisteredMemory& registered : registered_) {
    if (!lies_inside(registered)) continue;
    // A place that the kernel does not clear keeps its pages and is used no more.
    if (update_buffer(registered.index, nullptr, 0) >= 0) free_buffers_.push_back(registered.index);
    removed_bytes += static_cast<uint64_t>(registered.end - registered.begin);
  }
  TERRACE_ASSERT(removed_bytes == memory.size(), "the memory to unregister is not what was registered");
  std::erase_if(registered_, lies_inside);
}

bool UringRing::register_file(int fd) {
  TERRACE_ASSERT(file_of(fd) == nullptr, "descriptor " + std::to_string(fd) +
                                             " is registered already: it was closed before it was "
                                             "unregistered, or registered twice");
  if (!files_refusal_.empty()) {
    refusal_ = files_refusal_;
    return false;
  }
  if (free_files_.empty()) {
    refusal_ = "the table of registered files is full: it has " + std::to_string(kFilePlaces) + " places";
    return false;
  }
  const uint32_t index = free_files_.back();
  const int result = io_uring_register_files_update(ring_.get(), index, &fd, 1);
  if (result < 0) {
    refusal_ = "io_uring_register of a file: " + system_reason(-result);
    return false;
  }
  free_files_.pop_back();
  registered_files_.push_back(RegisteredFile{fd, index});
  return true;
}

void UringRing::unregister_file(int fd) {
  const RegisteredFile* file = file_of(fd);
  TERRACE_ASSERT(file != nullptr, "descriptor " + std::to_string(fd) + " is not registered");
  constexpr int kNone = -1;
  const int result = io_uring_register_files_update(ring_.get(), file->index, &kNone, 1);
  // A place that the kernel does not clear keeps the old file open and is used no more.
  if (result >= 0) free_files_.push_back(file->index);
  std::erase_if(registered_files_, [fd](const RegisteredFile& r) { return r.fd == fd; });
}

}  // namespace terrace::io
