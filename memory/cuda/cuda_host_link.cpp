#include <terrace/memory/cuda/cuda_host_link.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include <terrace/memory/cuda/cuda_page_lock.h>
#include <terrace/memory/cuda/internal/cuda_memory.h>
#include <terrace/memory/host/pages.h>

namespace terrace {
namespace {

constexpr uint64_t kPieces = 16;
constexpr uint64_t kPieceBytes = CudaHostLink::kSendBytes / kPieces;

const std::string kSubject = "what the host gives to operations and wants from them (device tier)";

template <size_t... indices>
std::array<CudaEvent, sizeof...(indices)> make_events(const CudaGpu& gpu, std::index_sequence<indices...>) {
  return {(static_cast<void>(indices), CudaEvent(gpu, kSubject))...};
}

}  // namespace

struct CudaHostLink::State {
  explicit State(const CudaGpu& gpu)
      : memory(PageMapping::populated(kPieceBytes + kSendBytes + kFetchBytes, false, "numbers for a GPU")),
        lock(gpu, memory.memory()),
        sent(make_events(gpu, std::make_index_sequence<kPieces>())),
        fetched(gpu, kSubject) {
    wanted.reserve(64);
  }

  std::span<std::byte> piece(uint64_t index) { return aligned().subspan(index * kPieceBytes, kPieceBytes); }
  std::span<std::byte> results() { return aligned().subspan(kSendBytes, kFetchBytes); }
  // Pieces are aligned, so that no copy crosses a cut between two registrations.
  std::span<std::byte> aligned() {
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory.memory().data());
    return memory.memory().subspan(round_up(address, kPieceBytes) - address);
  }

  PageMapping memory;
  CudaPageLock lock;
  std::array<CudaEvent, kPieces> sent;  // records the end of the copy out of each piece
  CudaEvent fetched;                    // records the end of the last copy into the results
  uint64_t next_piece = 0;
  uint64_t results_used = 0;
  std::vector<std::span<std::byte>> wanted;  // the destinations of the results, in their order
};

CudaHostLink::CudaHostLink(const CudaGpu& gpu, CUstream_st* stream) : gpu_(gpu), stream_(stream) {
  const CudaContext context(gpu);
  state_ = std::make_unique<State>(gpu);
}

// Copies under way use the memory, so the stream is waited for first.
CudaHostLink::~CudaHostLink() {
  const CudaContextAtEnd context(gpu_);
  gpu_.report(gpu_.driver().stream_synchronize(stream_), "cuStreamSynchronize", kSubject);
  state_.reset();
}

void CudaHostLink::send(std::byte* to, std::span<const std::byte> from) {
  const CudaContext context(gpu_);
  const CudaDriver& driver = gpu_.driver();
  while (!from.empty()) {
    const std::span<std::byte> piece = state_->piece(state_->next_piece);
    const CUevent sent = state_->sent[state_->next_piece].get();
    state_->next_piece = (state_->next_piece + 1) % kPieces;
    const uint64_t bytes = std::min(piece.size(), from.size());
    driver.check(driver.event_synchronize(sent), "cuEventSynchronize", kSubject);
    std::memcpy(piece.data(), from.data(), bytes);
    driver.check(driver.copy_to_device(cuda_pointer(to), piece.data(), bytes, stream_), "cuMemcpyHtoDAsync",
                 kSubject);
    driver.check(driver.event_record(sent, stream_), "cuEventRecord", kSubject);
    to += bytes;
    from = from.subspan(bytes);
  }
}

void CudaHostLink::fetch(std::span<std::byte> to, const std::byte* from) {
  const CudaContext context(gpu_);
  const CudaDriver& driver = gpu_.driver();
  if (to.size() > kFetchBytes) {
    driver.check(driver.copy_to_host(to.data(), cuda_pointer(from), to.size(), stream_), "cuMemcpyDtoHAsync",
                 kSubject);
    driver.check(driver.stream_synchronize(stream_), "cuStreamSynchronize", kSubject);
    return;
  }
  if (state_->results_used + to.size() > kFetchBytes) finish();
  std::byte* const result = state_->results().data() + state_->results_used;
  driver.check(driver.copy_to_host(result, cuda_pointer(from), to.size(), stream_), "cuMemcpyDtoHAsync",
               kSubject);
  driver.check(driver.event_record(state_->fetched.get(), stream_), "cuEventRecord", kSubject);
  state_->wanted.push_back(to);
  state_->results_used += to.size();
}

void CudaHostLink::finish() {
  if (state_->wanted.empty()) return;
  const CudaContext context(gpu_);
  gpu_.driver().check(gpu_.driver().event_synchronize(state_->fetched.get()), "cuEventSynchronize", kSubject);
  const std::byte* result = state_->results().data();
  for (const std::span<std::byte> to : state_->wanted) {
    std::memcpy(to.data(), result, to.size());
    result += to.size();
  }
  forget();
}

// The stream keeps its order: a copy still on its way lands before any result that is fetched later.
void CudaHostLink::forget() noexcept {
  state_->wanted.clear();
  state_->results_used = 0;
}

}  // namespace terrace
