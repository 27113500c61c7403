#include <terrace/memory/host/pages.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/topology.h>

// These constants are newer than some C libraries.
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace terrace {
namespace {

// NORESERVE keeps address space out of the system's commit accounting.
constexpr int kBareSpace = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

// Returns null with errno set if the system refuses. It maps more than is needed and cuts the ends off.
std::byte* map_aligned(uint64_t bytes, int protection, int flags) {
  const uint64_t mapped_bytes = bytes + kHugePageBytes - page_bytes();
  void* mapped = mmap(nullptr, mapped_bytes, protection, flags, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  const auto begin = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t aligned = round_up(begin, kHugePageBytes);
  const uint64_t head_bytes = aligned - begin;
  const uint64_t tail_bytes = mapped_bytes - head_bytes - bytes;
  auto* const result = static_cast<std::byte*>(mapped) + head_bytes;
  if (head_bytes > 0) munmap(mapped, head_bytes);
  if (tail_bytes > 0) munmap(result + bytes, tail_bytes);
  return result;
}

// Returns 0 or an errno.
int populate(std::span<std::byte> memory) {
  constexpr uint64_t kPieceBytes = kGiB;
  for (uint64_t offset = 0; offset < memory.size(); offset += kPieceBytes) {
    const auto piece = memory.subspan(offset, std::min<uint64_t>(kPieceBytes, memory.size() - offset));
    int result;
    do {
      result = madvise(piece.data(), piece.size(), MADV_POPULATE_WRITE);
    } while (result != 0 && (errno == EINTR || errno == EAGAIN));
    if (result == 0) continue;
    if (errno != EINVAL) return errno;
    // Linux before 5.14 does not know the advice, so every page is touched.
    for (uint64_t page = 0; page < piece.size(); page += page_bytes()) {
      *static_cast<volatile std::byte*>(piece.data() + page) = std::byte{0};
    }
  }
  return 0;
}

// Returns the memory nodes of the processors that this process may use.
const std::vector<uint32_t>& memory_nodes() {
  static const std::vector<uint32_t> nodes = read_topology().nodes();
  return nodes;
}

[[noreturn]] void fail_mapping(uint64_t bytes, std::string_view purpose, int error) {
  throw Error(ErrorKind::capacity, {"cannot allocate " + format_bytes(bytes) + " for", std::string(purpose),
                                    system_reason(error), "set a smaller budget, or free memory"});
}

[[noreturn]] void fail_move(uint64_t bytes, std::string_view call, int error) {
  throw Error(
      ErrorKind::device,
      {"cannot move " + format_bytes(bytes) + " of device memory to its address", std::string(call),
       system_reason(error),
       error == ENOMEM ? "raise the number of mappings a process may have: sysctl vm.max_map_count" : ""});
}

}  // namespace

uint64_t page_bytes() {
  static const auto bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

PageMapping PageMapping::inaccessible(uint64_t bytes) {
  TERRACE_ASSERT(bytes > 0 && bytes % page_bytes() == 0,
                 std::to_string(bytes) + " bytes are not whole pages");
  std::byte* const begin = map_aligned(bytes, PROT_NONE, kBareSpace);
  if (begin == nullptr) {
    throw Error(ErrorKind::device,
                {"cannot reserve addresses for " + format_bytes(bytes), "", system_reason(errno),
                 "raise the limit of virtual memory: `ulimit -v unlimited`"});
  }
  return PageMapping({begin, bytes});
}

PageMapping PageMapping::populated(uint64_t bytes, bool huge, std::string_view purpose) {
  PageMapping mapping = zeros(bytes, huge, purpose, MAP_PRIVATE | MAP_ANONYMOUS);
  if (const int error = populate(mapping.memory_); error != 0) fail_mapping(bytes, purpose, error);
  return mapping;
}

PageMapping PageMapping::unpopulated(uint64_t bytes, bool huge, std::string_view purpose) {
  return zeros(bytes, huge, purpose, kBareSpace);
}

PageMapping PageMapping::zeros(uint64_t bytes, bool huge, std::string_view purpose, int flags) {
  TERRACE_ASSERT(bytes > 0 && bytes % page_bytes() == 0,
                 std::to_string(bytes) + " bytes are not whole pages");
  std::byte* const begin = map_aligned(bytes, PROT_READ | PROT_WRITE, flags);
  if (begin == nullptr) fail_mapping(bytes, purpose, errno);
  // A kernel without huge pages refuses the advice; everything works without them, so nothing is reported.
  (void)madvise(begin, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  // Threads of all nodes use this memory. If the system refuses, as containers do, pages lie where they are
  // first touched.
  if (memory_nodes().size() > 1) static_cast<void>(interleave_memory(begin, bytes, memory_nodes()));
  return PageMapping({begin, bytes});
}

void discard_pages(std::span<std::byte> memory) {
  TERRACE_ASSERT(
      reinterpret_cast<uintptr_t>(memory.data()) % page_bytes() == 0 && memory.size() % page_bytes() == 0,
      "only whole pages can be given back");
  const int result = memory.empty() ? 0 : madvise(memory.data(), memory.size(), MADV_DONTNEED);
  TERRACE_ASSERT(result == 0, "pages that are still locked cannot be given back: " + system_reason(errno));
}

void populate_pages(std::span<std::byte> memory, std::string_view purpose) {
  const int error = populate(memory);
  if (error == 0) return;
  throw Error(ErrorKind::capacity, {"cannot allocate " + format_bytes(memory.size()) + " for",
                                    std::string(purpose), system_reason(error), "free memory"});
}

PageMapping::PageMapping(PageMapping&& other) noexcept : memory_(std::exchange(other.memory_, {})) {}

PageMapping& PageMapping::operator=(PageMapping&& other) noexcept {
  std::swap(memory_, other.memory_);
  return *this;
}

PageMapping::~PageMapping() {
  if (!memory_.empty()) munmap(memory_.data(), memory_.size());
}

MoveMethod probe_move_method() {
  const uint64_t bytes = page_bytes();
  const PageMapping from = PageMapping::populated(bytes, false, "a probe of mremap");
  const PageMapping to = PageMapping::inaccessible(bytes);
  const void* moved = mremap(from.memory().data(), bytes, bytes,
                             MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to.memory().data());
  return moved == MAP_FAILED ? MoveMethod::refill_hole : MoveMethod::keep_source;
}

void move_pages(std::byte* source, std::byte* destination, uint64_t bytes, MoveMethod method) {
  const bool keep = method == MoveMethod::keep_source;
  const int flags = MREMAP_MAYMOVE | MREMAP_FIXED | (keep ? MREMAP_DONTUNMAP : 0);
  if (mremap(source, bytes, bytes, flags, destination) == MAP_FAILED) fail_move(bytes, "mremap", errno);
  // With keep_source the pages have gone but the mapping has not. It is replaced in one call, so its
  // addresses are never free for others.
  const int placement = keep ? MAP_FIXED : MAP_FIXED_NOREPLACE;
  const void* taken = mmap(source, bytes, PROT_NONE, kBareSpace | placement, -1, 0);
  if (taken == MAP_FAILED) fail_move(bytes, "mmap", errno);
  if (taken != source) {  // a kernel before 4.17 takes MAP_FIXED_NOREPLACE for a hint
    munmap(const_cast<void*>(taken), bytes);
    fail_move(bytes, "mmap", EEXIST);
  }
}

}  // namespace terrace
