#include <terrace/memory/cuda/cuda_page_lock.h>

#include <algorithm>

#include <terrace/base/assert.h>
#include <terrace/memory/cuda/internal/cuda_driver.h>

namespace terrace {

CudaPageLock::CudaPageLock(const CudaGpu& gpu, std::span<std::byte> memory, uint64_t piece_bytes)
    : gpu_(gpu), piece_bytes_(piece_bytes) {
  TERRACE_ASSERT(piece_bytes > 0, "pieces of registered memory hold something");
  const CudaContext context(gpu);
  for (uint64_t offset = 0; offset < memory.size();) {
    const std::span<std::byte> piece = piece_at(memory, offset);
    const CUresult result =
        gpu.driver().host_register(piece.data(), piece.size(), CU_MEMHOSTREGISTER_PORTABLE);
    if (result != CUDA_SUCCESS) {
      gpu.log().warning("cannot page-lock the " + format_bytes(memory.size()) +
                        " of the host tier for the GPU: " + gpu.driver().reason(result, "cuMemHostRegister") +
                        "; copies go through pageable memory, which is slower; raise the limit with "
                        "`ulimit -l unlimited`, or give the host a smaller budget");
      release(memory.first(offset));
      return;
    }
    offset += piece.size();
  }
  memory_ = memory;
}

CudaPageLock::~CudaPageLock() {
  try {
    const CudaContext context(gpu_);
    release(memory_);
  } catch (const Error& error) {
    gpu_.log().warning(error);
  }
}

std::span<std::byte> CudaPageLock::piece_at(std::span<std::byte> memory, uint64_t offset) const {
  const uint64_t to_cut = piece_bytes_ - reinterpret_cast<uintptr_t>(memory.data() + offset) % piece_bytes_;
  return memory.subspan(offset, std::min(memory.size() - offset, to_cut));
}

void CudaPageLock::release(std::span<std::byte> memory) const {
  for (uint64_t offset = 0; offset < memory.size();) {
    const std::span<std::byte> piece = piece_at(memory, offset);
    gpu_.report(gpu_.driver().host_unregister(piece.data()), "cuMemHostUnregister", "the host tier");
    offset += piece.size();
  }
}

}  // namespace terrace
