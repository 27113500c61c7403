#include <terrace/memory/cuda/cuda_plain_copies.h>

#include <algorithm>
#include <string>

#include <terrace/memory/cuda/internal/cuda_memory.h>

namespace terrace {
namespace {

class PlainCudaCopies final : public PlainCopies {
 public:
  PlainCudaCopies(const CudaGpu& gpu, CopyBuffers device, uint64_t host_piece_bytes)
      : gpu_(gpu),
        device_(device),
        host_piece_bytes_(host_piece_bytes),
        to_device_(gpu, subject_),
        to_host_(gpu, subject_) {}

 private:
  void copy_all(const CopyRun& run, bool to_device) override;
  void copy(const CopyRun& run, bool to_device, uint64_t offset) const;

  const std::string subject_ = "plain copies beside the device tier";
  const CudaGpu& gpu_;
  const CopyBuffers device_;
  const uint64_t host_piece_bytes_;
  const CudaStream to_device_, to_host_;
};

void PlainCudaCopies::copy_all(const CopyRun& run, bool to_device) {
  const CudaContext context(gpu_);
  const CUstream stream = (to_device ? to_device_ : to_host_).get();
  try {
    for (uint64_t i = 0; i < run.count; ++i) copy(run, to_device, run.offset_of(i));
  } catch (...) {
    // Copies that are on the stream already still use the host memory.
    gpu_.report(gpu_.driver().stream_synchronize(stream), "cuStreamSynchronize", subject_);
    throw;
  }
  gpu_.driver().check(gpu_.driver().stream_synchronize(stream), "cuStreamSynchronize", subject_);
}

void PlainCudaCopies::copy(const CopyRun& run, bool to_device, uint64_t offset) const {
  const CudaDriver& driver = gpu_.driver();
  for (const uint64_t end = offset + run.bytes; offset < end;) {
    std::byte* const host = (to_device ? run.host.to_device : run.host.to_host).data() + offset;
    const uint64_t to_cut = host_piece_bytes_ - reinterpret_cast<uintptr_t>(host) % host_piece_bytes_;
    const uint64_t bytes = std::min(end - offset, to_cut);
    if (to_device) {
      driver.check(driver.copy_to_device(cuda_pointer(device_.to_device.data() + offset), host, bytes,
                                         to_device_.get()),
                   "cuMemcpyHtoDAsync", subject_);
    } else {
      driver.check(
          driver.copy_to_host(host, cuda_pointer(device_.to_host.data() + offset), bytes, to_host_.get()),
          "cuMemcpyDtoHAsync", subject_);
    }
    offset += bytes;
  }
}

}  // namespace

std::unique_ptr<CopyWay> make_plain_cuda_copies(const CudaGpu& gpu, CopyBuffers device,
                                                uint64_t host_piece_bytes) {
  const CudaContext context(gpu);
  return std::make_unique<PlainCudaCopies>(gpu, device, host_piece_bytes);
}

}  // namespace terrace
