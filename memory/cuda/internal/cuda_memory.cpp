#include <terrace/memory/cuda/internal/cuda_memory.h>

#include <terrace/memory/host/pages.h>

namespace terrace {

CudaAddresses::CudaAddresses(const CudaGpu& gpu, uint64_t bytes, const std::string& subject) : gpu_(gpu) {
  CUdeviceptr address = 0;
  gpu.driver().check(gpu.driver().address_reserve(&address, bytes, kHugePageBytes, 0, 0),
                     "cuMemAddressReserve", subject);
  memory_ = {reinterpret_cast<std::byte*>(static_cast<uintptr_t>(address)), bytes};
}

CudaAddresses::~CudaAddresses() {
  if (memory_.empty()) return;
  gpu_.report(gpu_.driver().address_free(cuda_pointer(memory_.data()), memory_.size()), "cuMemAddressFree",
              "addresses of the device tier");
}

void cuda_map(const CudaGpu& gpu, std::byte* address, uint64_t bytes, CUmemGenericAllocationHandle handle,
              const std::string& subject) {
  const CudaDriver& driver = gpu.driver();
  driver.check(driver.memory_map(cuda_pointer(address), bytes, 0, handle, 0), "cuMemMap", subject);
  CUmemAccessDesc access = {};
  access.location = cuda_allocation_properties(gpu.device()).location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const CUresult result = driver.set_access(cuda_pointer(address), bytes, &access, 1);
  if (result == CUDA_SUCCESS) return;
  gpu.report(driver.memory_unmap(cuda_pointer(address), bytes), "cuMemUnmap", subject);
  throw driver.error(result, "cuMemSetAccess", subject);
}

CudaPiece::CudaPiece(const CudaGpu& gpu, std::byte* home, uint64_t bytes, const std::string& subject)
    : gpu_(gpu), home_(home), bytes_(bytes) {
  const CudaDriver& driver = gpu.driver();
  const CUmemAllocationProp properties = cuda_allocation_properties(gpu.device());
  driver.check(driver.memory_create(&handle_, bytes, &properties, 0), "cuMemCreate", subject);
  try {
    cuda_map(gpu, home, bytes, handle_, subject);
  } catch (...) {
    gpu.report(driver.memory_release(handle_), "cuMemRelease", subject);
    throw;
  }
}

CudaPiece::~CudaPiece() {
  if (home_ == nullptr) return;
  gpu_.report(gpu_.driver().memory_unmap(cuda_pointer(home_), bytes_), "cuMemUnmap",
              "memory of the device tier");
  gpu_.report(gpu_.driver().memory_release(handle_), "cuMemRelease", "memory of the device tier");
}

CudaStream::CudaStream(const CudaGpu& gpu, const std::string& subject) : gpu_(gpu) {
  gpu.driver().check(gpu.driver().stream_create(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate", subject);
}

CudaStream::~CudaStream() {
  gpu_.report(gpu_.driver().stream_destroy(stream_), "cuStreamDestroy", "a stream of the device tier");
}

CudaEvent::CudaEvent(const CudaGpu& gpu, const std::string& subject) : gpu_(gpu) {
  gpu.driver().check(gpu.driver().event_create(&event_, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC),
                     "cuEventCreate", subject);
}

CudaEvent::~CudaEvent() {
  if (event_ == nullptr) return;
  gpu_.report(gpu_.driver().event_destroy(event_), "cuEventDestroy", "an event of the device tier");
}

}  // namespace terrace
