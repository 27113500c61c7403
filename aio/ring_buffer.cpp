#include <terrace/aio/ring_buffer.h>

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <string>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>

namespace terrace::io {
namespace {

constexpr uint64_t kHugePageBytes = 2 * kMiB;
constexpr uint64_t kPageBytes = 4 * kKiB;

// `bytes`, a multiple of 2 MiB, on a 2 MiB boundary.
std::byte* map_aligned(uint64_t bytes) {
  const uint64_t reserved_bytes = bytes + kHugePageBytes;
  void* reserved = mmap(nullptr, reserved_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) {
    throw Error(ErrorKind::capacity, {"cannot map the I/O ring", format_bytes(bytes), system_reason(errno),
                                      "free memory, raise `ulimit -v`, or make the ring smaller"});
  }
  auto* first = static_cast<std::byte*>(reserved);
  const uint64_t before =
      round_up(reinterpret_cast<uintptr_t>(first), kHugePageBytes) - reinterpret_cast<uintptr_t>(first);
  if (before > 0) munmap(first, before);
  if (before < kHugePageBytes) munmap(first + before + bytes, kHugePageBytes - before);
  return first + before;
}

std::string_view ask_for_huge_pages(std::byte* data, uint64_t bytes) {
  if (madvise(data, bytes, MADV_HUGEPAGE) != 0) return "the kernel has no transparent huge pages";
  std::ifstream setting("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string words;
  std::getline(setting, words);
  if (words.find("[never]") != std::string::npos)
    return "/sys/kernel/mm/transparent_hugepage/enabled is \"never\"";
  return {};
}

void touch(std::byte* data, uint64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return;
#endif
  // Linux before 5.14.
  for (uint64_t offset = 0; offset < bytes; offset += kPageBytes) {
    *static_cast<volatile std::byte*>(data + offset) = std::byte{0};
  }
}

}  // namespace

RingBuffer::RingBuffer(const RingOptions& options)
    : slot_bytes_(options.slot_bytes), slot_count_(options.slot_count) {
  TERRACE_ASSERT(slot_count_ > 0, "a ring has at least one slot");
  TERRACE_ASSERT(slot_bytes_ > 0 && slot_bytes_ % kPageBytes == 0,
                 "a slot of " + std::to_string(slot_bytes_) + " bytes is not a multiple of 4 KiB");
  mapped_bytes_ = round_up(slot_bytes_ * slot_count_, kHugePageBytes);
  std::byte* data = map_aligned(mapped_bytes_);
  huge_page_refusal_ = ask_for_huge_pages(data, mapped_bytes_);
  touch(data, mapped_bytes_);
  memory_ = {data, mapped_bytes_};
  fill();
}

RingBuffer::RingBuffer(std::span<std::byte> memory, uint64_t slot_bytes)
    : memory_(memory), slot_bytes_(slot_bytes) {
  TERRACE_ASSERT(slot_bytes > 0 && slot_bytes % kPageBytes == 0,
                 "a slot of " + std::to_string(slot_bytes) + " bytes is not a multiple of 4 KiB");
  TERRACE_ASSERT(reinterpret_cast<uintptr_t>(memory.data()) % kPageBytes == 0,
                 "a ring's memory is 4 KiB aligned");
  TERRACE_ASSERT(memory.size() >= slot_bytes, "the memory has room for no slot");
  slot_count_ = static_cast<uint32_t>(memory.size() / slot_bytes);
  fill();
}

RingBuffer::~RingBuffer() {
  TERRACE_ASSERT(free_count() == slot_count_,
                 std::to_string(slot_count_ - free_count()) + " slots are still out");
  if (mapped_bytes_ > 0) munmap(memory_.data(), mapped_bytes_);
}

void RingBuffer::fill() {
  const MutexLock lock(mutex_);
  is_out_.assign(slot_count_, false);
  for (uint32_t index = slot_count_; index-- > 0;) free_.push_back(index);
}

std::span<std::byte> RingBuffer::acquire() {
  const MutexLock lock(mutex_);
  if (free_.empty()) return {};
  const uint32_t index = free_.back();
  free_.pop_back();
  is_out_[index] = true;
  return memory_.subspan(index * slot_bytes_, slot_bytes_);
}

void RingBuffer::release(std::span<std::byte> slot) {
  const bool inside = slot.data() >= memory_.data() && slot.data() < memory_.data() + memory_.size();
  TERRACE_ASSERT(inside, "the slot is not of this ring");
  const auto offset = static_cast<uint64_t>(slot.data() - memory_.data());
  TERRACE_ASSERT(offset % slot_bytes_ == 0 && slot.size() == slot_bytes_, "the span is not a whole slot");
  const auto index = static_cast<uint32_t>(offset / slot_bytes_);
  const MutexLock lock(mutex_);
  TERRACE_ASSERT(index < slot_count_ && is_out_[index], "slot " + std::to_string(index) + " is not out");
  is_out_[index] = false;
  free_.push_back(index);
}

uint32_t RingBuffer::free_count() const {
  const MutexLock lock(mutex_);
  return static_cast<uint32_t>(free_.size());
}

}  // namespace terrace::io
