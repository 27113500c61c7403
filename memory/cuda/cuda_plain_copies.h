// The driver's own copies, plain: one GPU stream per direction, one asynchronous call after the other, and
// one wait at the end. The copies of a CudaDevice are measured against these; nothing else may use them.
#pragma once

#include <cstdint>
#include <memory>

#include <terrace/memory/cuda/cuda_gpu.h>
#include <terrace/memory/cuda/cuda_page_lock.h>
#include <terrace/memory/device/copy_rates.h>

namespace terrace {

// `device` is memory of the GPU. Copies are cut at the same addresses as by CudaPageLock. Throws
// Error(device).
std::unique_ptr<CopyWay> make_plain_cuda_copies(const CudaGpu& gpu, CopyBuffers device,
                                                uint64_t host_piece_bytes = kCudaHostPieceBytes);

}  // namespace terrace
