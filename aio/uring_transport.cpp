#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <terrace/aio/uring_transport.h>
#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

namespace terrace::io {
namespace {

constexpr uint32_t kRegistrationSlots = 4096;  // of at most 1 GiB each
constexpr uint64_t kRegistrationBytes = kGiB;  // the kernel's limit for one fixed buffer
constexpr uint64_t kWakeUserData = UINT64_MAX;
constexpr unsigned kBestFlags = IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER |
                                IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG;

// Memory registered as fixed buffer `index`.
struct Registered {
  std::byte* begin;
  std::byte* end;
  unsigned index;
};

std::string memlock_words() {
  rlimit limit;
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "";
  if (limit.rlim_cur == RLIM_INFINITY) return "; RLIMIT_MEMLOCK is unlimited";
  return "; RLIMIT_MEMLOCK is " + format_bytes(limit.rlim_cur);
}

class UringTransport final : public Transport {
 public:
  UringTransport() = default;
  ~UringTransport() override;
  UringTransport(const UringTransport&) = delete;
  UringTransport& operator=(const UringTransport&) = delete;

  // False with the reason in `words`; true with what is missing in `words`.
  bool create(uint32_t queue_depth, std::string& words);

  EngineKind kind() const override { return EngineKind::io_uring; }
  void start(std::span<const Piece> pieces) override;
  Reaped reap(std::span<PieceResult> results, bool block) override;
  void wake() noexcept override;
  bool register_buffer(std::span<std::byte> memory) override;
  void unregister_buffer(std::span<std::byte> memory) override;
  std::string_view registration_refusal() const override { return refusal_; }
  uint64_t registered_pieces() const override { return registered_pieces_; }

 private:
  void enable();
  void arm_wake();
  void take_wake();
  void submit_all();
  const Registered* registration_of(const Piece& piece) const;
  int update_registration(unsigned index, std::byte* data, uint64_t bytes);

  io_uring ring_{};
  bool created_ = false;
  bool enabled_ = false;
  int wake_fd_ = -1;
  bool has_table_ = false;              // of fixed buffers
  std::vector<unsigned> free_indices_;  // of that table, the lowest last
  std::vector<Registered> registered_;  // by address
  std::string refusal_;
  uint64_t registered_pieces_ = 0;
};

UringTransport::~UringTransport() {
  if (created_) {
    // Gives the pinned pages back now; closing the ring does it some time later. From another thread than the
    // owner the kernel refuses, and later it is.
    if (has_table_) io_uring_unregister_buffers(&ring_);
    io_uring_queue_exit(&ring_);
  }
  if (wake_fd_ >= 0) close(wake_fd_);
}

bool UringTransport::create(uint32_t queue_depth, std::string& words) {
  io_uring_params params{};
  params.flags = kBestFlags;
  int result = io_uring_queue_init_params(queue_depth + 1, &ring_, &params);
  if (result == -EINVAL) {
    params = io_uring_params{};
    params.flags = IORING_SETUP_R_DISABLED;
    result = io_uring_queue_init_params(queue_depth + 1, &ring_, &params);
    words =
        "this kernel's io_uring has no SINGLE_ISSUER and DEFER_TASKRUN (Linux 6.1): more interrupts per "
        "request";
  }
  if (result < 0) {
    words = "io_uring_setup: " + system_reason(-result);
    return false;
  }
  created_ = true;
  io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
  const bool can_read = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0;
  io_uring_free_probe(probe);
  if (!can_read) {
    words = "io_uring has no IORING_OP_READ (it came with Linux 5.6)";
    return false;
  }
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) {
    words = "eventfd: " + system_reason(errno);
    return false;
  }
  return true;
}

void UringTransport::enable() {
  if (enabled_) return;
  // Not io_uring_enable_rings(): liburing 2.3 declares it and its shared library lacks it.
  const long result =
      syscall(__NR_io_uring_register, ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
  TERRACE_ASSERT(result == 0, "io_uring_register (enable): " + system_reason(errno));
  enabled_ = true;
  arm_wake();
  submit_all();
}

// A poll and not a read: it leaves nothing in memory that a ring being closed could still write to.
void UringTransport::arm_wake() {
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  TERRACE_ASSERT(entry != nullptr, "the submission queue has no place for the wake entry");
  io_uring_prep_poll_add(entry, wake_fd_, POLLIN);
  io_uring_sqe_set_data64(entry, kWakeUserData);
}

void UringTransport::take_wake() {
  uint64_t count;
  const ssize_t taken = read(wake_fd_, &count, sizeof count);
  TERRACE_ASSERT(taken == sizeof count || errno == EAGAIN,
                 "reading the wake eventfd: " + system_reason(errno));
}

void UringTransport::wake() noexcept {
  const uint64_t one = 1;
  const ssize_t written = write(wake_fd_, &one, sizeof one);
  // EAGAIN: 2^64 - 2 wakes are pending, and one is enough.
  TERRACE_ASSERT(written == sizeof one || errno == EAGAIN,
                 "writing the wake eventfd: " + system_reason(errno));
}

// One system call unless the kernel is short of memory for a moment; then it is asked again.
void UringTransport::submit_all() {
  while (io_uring_sq_ready(&ring_) > 0) {
    const int result = io_uring_submit(&ring_);
    if (result >= 0 || result == -EINTR) continue;
    TERRACE_ASSERT(result == -EAGAIN || result == -EBUSY, "io_uring_enter: " + system_reason(-result));
    const timespec pause{0, 1'000'000};
    nanosleep(&pause, nullptr);
  }
}

void UringTransport::start(std::span<const Piece> pieces) {
  enable();
  for (const Piece& piece : pieces) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    TERRACE_ASSERT(entry != nullptr, "more pieces were started than the queue depth");
    const Registered* registered = registration_of(piece);
    const bool is_read = piece.kind == OpKind::read;
    if (registered != nullptr) {
      ++registered_pieces_;
      const int index = static_cast<int>(registered->index);
      if (is_read) {
        io_uring_prep_read_fixed(entry, piece.fd, piece.data, piece.bytes, piece.offset, index);
      } else {
        io_uring_prep_write_fixed(entry, piece.fd, piece.data, piece.bytes, piece.offset, index);
      }
    } else if (is_read) {
      io_uring_prep_read(entry, piece.fd, piece.data, piece.bytes, piece.offset);
    } else {
      io_uring_prep_write(entry, piece.fd, piece.data, piece.bytes, piece.offset);
    }
    io_uring_sqe_set_data64(entry, piece.id);
  }
  submit_all();
}

Reaped UringTransport::reap(std::span<PieceResult> results, bool block) {
  enable();
  Reaped reaped{0, false};
  while (reaped.count < results.size()) {
    io_uring_cqe* entry = nullptr;
    const bool must_wait = block && reaped.count == 0 && !reaped.woken;
    const int result = must_wait ? io_uring_wait_cqe(&ring_, &entry) : io_uring_peek_cqe(&ring_, &entry);
    if (result == -EINTR) continue;
    if (result == -EAGAIN) {
      if (must_wait) continue;
      break;
    }
    TERRACE_ASSERT(result == 0, "io_uring_enter: " + system_reason(-result));
    if (io_uring_cqe_get_data64(entry) == kWakeUserData) {
      reaped.woken = true;
    } else {
      results[reaped.count++] =
          PieceResult{static_cast<uint32_t>(io_uring_cqe_get_data64(entry)), entry->res};
    }
    io_uring_cqe_seen(&ring_, entry);
  }
  if (reaped.woken) {
    take_wake();
    arm_wake();
    submit_all();
  }
  return reaped;
}

const Registered* UringTransport::registration_of(const Piece& piece) const {
  const auto after =
      std::upper_bound(registered_.begin(), registered_.end(), piece.data,
                       [](const std::byte* data, const Registered& r) { return data < r.begin; });
  if (after == registered_.begin()) return nullptr;
  const Registered& candidate = *std::prev(after);
  return piece.data + piece.bytes <= candidate.end ? &candidate : nullptr;
}

// Zero bytes clear the place.
int UringTransport::update_registration(unsigned index, std::byte* data, uint64_t bytes) {
  const iovec vector{data, bytes};
  const __u64 tag = 0;
  return io_uring_register_buffers_update_tag(&ring_, index, &vector, &tag, 1);
}

bool UringTransport::register_buffer(std::span<std::byte> memory) {
  TERRACE_ASSERT(!memory.empty(), "an empty buffer was registered");
  if (!has_table_) {
    const int result = io_uring_register_buffers_sparse(&ring_, kRegistrationSlots);
    if (result < 0) {
      refusal_ = "io_uring_register of a sparse table (it came with Linux 5.19): " + system_reason(-result);
      return false;
    }
    has_table_ = true;
    for (unsigned index = kRegistrationSlots; index-- > 0;) free_indices_.push_back(index);
  }
  const uint64_t count = divide_up(memory.size(), kRegistrationBytes);
  if (count > free_indices_.size()) {
    refusal_ = "the table of registered buffers is full";
    return false;
  }
  std::vector<Registered> added;
  for (uint64_t i = 0; i < count; ++i) {
    const std::span<std::byte> part =
        memory.subspan(i * kRegistrationBytes,
                       std::min<uint64_t>(kRegistrationBytes, memory.size() - i * kRegistrationBytes));
    const unsigned index = free_indices_.back();
    const int result = update_registration(index, part.data(), part.size());
    if (result < 0) {
      refusal_ = "io_uring_register of " + format_bytes(memory.size()) + ": " + system_reason(-result) +
                 (result == -ENOMEM ? memlock_words() : "");
      for (const Registered& undone : added) {
        update_registration(undone.index, nullptr, 0);
        free_indices_.push_back(undone.index);
      }
      return false;
    }
    free_indices_.pop_back();
    added.push_back(Registered{part.data(), part.data() + part.size(), index});
  }
  registered_.insert(registered_.end(), added.begin(), added.end());
  std::sort(registered_.begin(), registered_.end(),
            [](const Registered& a, const Registered& b) { return a.begin < b.begin; });
  return true;
}

void UringTransport::unregister_buffer(std::span<std::byte> memory) {
  uint64_t removed_bytes = 0;
  const auto lies_inside = [&](const Registered& r) {
    return r.begin >= memory.data() && r.end <= memory.data() + memory.size();
  };
  for (const Registered& registered : registered_) {
    if (!lies_inside(registered)) continue;
    const int result = update_registration(registered.index, nullptr, 0);
    TERRACE_ASSERT(result >= 0, "io_uring_register: " + system_reason(-result));
    free_indices_.push_back(registered.index);
    removed_bytes += static_cast<uint64_t>(registered.end - registered.begin);
  }
  TERRACE_ASSERT(removed_bytes == memory.size(), "the memory to unregister is not what was registered");
  std::erase_if(registered_, lies_inside);
}

}  // namespace

std::unique_ptr<Transport> make_uring_transport(uint32_t queue_depth, std::string& words) {
  auto transport = std::make_unique<UringTransport>();
  if (!transport->create(queue_depth, words)) return nullptr;
  return transport;
}

}  // namespace terrace::io
