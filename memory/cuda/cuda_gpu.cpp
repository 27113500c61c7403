#include <terrace/memory/cuda/cuda_gpu.h>

#include <array>
#include <exception>
#include <utility>

#include <terrace/memory/cuda/cu_file.h>
#include <terrace/memory/cuda/internal/cu_file_calls.h>
#include <terrace/memory/cuda/internal/cuda_driver.h>
#include <terrace/memory/cuda/internal/cuda_memory.h>

namespace terrace {

std::unique_ptr<CudaGpu> CudaGpu::open(int ordinal, Log& log) {
  return std::make_unique<CudaGpu>(CudaDriver::load(), ordinal, log);
}

int CudaGpu::count() {
  const std::unique_ptr<const CudaDriver> driver = CudaDriver::load();
  driver->check(driver->init(0), "cuInit", "the GPUs");
  int count = 0;
  driver->check(driver->device_count(&count), "cuDeviceGetCount", "the GPUs");
  return count;
}

CudaGpu::CudaGpu(std::unique_ptr<const CudaDriver> driver, int ordinal, Log& log)
    : CudaGpu(std::move(driver), ordinal, log, nullptr) {}

CudaGpu::CudaGpu(std::unique_ptr<const CudaDriver> driver, int ordinal, Log& log,
                 std::unique_ptr<const CuFileCalls> cu_file)
    : driver_(std::move(driver)), log_(log), cu_file_calls_(std::move(cu_file)) {
  const std::string subject = "GPU " + std::to_string(ordinal);
  driver_->check(driver_->driver_version(&facts_.driver_version), "cuDriverGetVersion", subject);
  if (facts_.driver_version < kLeastDriverVersion) {
    throw Error(ErrorKind::device, {"cannot use", subject,
                                    "its driver is for CUDA " + cuda_version_text(facts_.driver_version) +
                                        ", and " + cuda_version_text(kLeastDriverVersion) + " is the least",
                                    "update the NVIDIA driver"});
  }
  driver_->check(driver_->init(0), "cuInit", subject);
  int count = 0;
  driver_->check(driver_->device_count(&count), "cuDeviceGetCount", subject);
  if (ordinal < 0 || ordinal >= count) {
    throw Error(ErrorKind::device,
                {"there is no", subject, "the driver finds " + std::to_string(count) + " GPUs",
                 "check with nvidia-smi which GPUs there are, and CUDA_VISIBLE_DEVICES"});
  }
  driver_->check(driver_->device_get(&device_, ordinal), "cuDeviceGet", subject);
  driver_->check(driver_->context_retain(&context_, device_), "cuDevicePrimaryCtxRetain", subject);
  try {
    look();
  } catch (...) {
    report(driver_->context_release(device_), "cuDevicePrimaryCtxRelease", subject);
    throw;
  }
}

void CudaGpu::look() {
  const CudaContext context(*this);
  std::array<char, 256> name{};
  driver_->check(driver_->device_name(name.data(), static_cast<int>(name.size()) - 1, device_),
                 "cuDeviceGetName", "the GPU");
  facts_.name = name.data();
  int virtual_memory = 0;
  driver_->check(driver_->device_attribute(&virtual_memory,
                                           CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device_),
                 "cuDeviceGetAttribute(virtual memory management)", facts_.name);
  facts_.virtual_memory = virtual_memory != 0;
  driver_->check(
      driver_->device_attribute(&facts_.copy_engines, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, device_),
      "cuDeviceGetAttribute(copy engines)", facts_.name);
  size_t free_bytes = 0, total_bytes = 0;
  driver_->check(driver_->memory_info(&free_bytes, &total_bytes), "cuMemGetInfo", facts_.name);
  facts_.free_bytes = free_bytes;
  facts_.total_bytes = total_bytes;
  if (!facts_.virtual_memory) return;
  const CUmemAllocationProp properties = cuda_allocation_properties(device_);
  size_t granularity_bytes = 0;
  driver_->check(driver_->granularity(&granularity_bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                 "cuMemGetAllocationGranularity", facts_.name);
  facts_.granularity_bytes = granularity_bytes;
}

const CuFile& CudaGpu::cu_file() const {
  const CudaContext context(*this);
  const MutexLock lock(mutex_);
  if (cu_file_ == nullptr) {
    if (cu_file_calls_ == nullptr) cu_file_calls_ = CuFileCalls::load(kCuFileLibrary);
    cu_file_ = std::make_unique<CuFile>(*cu_file_calls_);
  }
  return *cu_file_;
}

// cuFile uses the context to its end, so it is closed before the context is released.
CudaGpu::~CudaGpu() {
  cu_file_.reset();
  report(driver_->context_release(device_), "cuDevicePrimaryCtxRelease", facts_.name);
}

void CudaGpu::report(int result, const char* call, const std::string& subject) const noexcept {
  if (result == CUDA_SUCCESS) return;
  try {
    log_.warning_once("a call of the GPU's driver failed for \"" + subject +
                      "\": " + driver_->reason(static_cast<CUresult>(result), call));
  } catch (const std::exception&) {
    // Without memory for a line the failure cannot be told to anybody.
  }
}

CudaContext::CudaContext(const CudaGpu& gpu) : gpu_(gpu) {
  gpu_.driver().check(gpu_.driver().context_push(gpu_.context_), "cuCtxPushCurrent", gpu_.facts().name);
}

CudaContext::~CudaContext() {
  CUcontext popped = nullptr;
  gpu_.report(gpu_.driver().context_pop(&popped), "cuCtxPopCurrent", gpu_.facts().name);
}

}  // namespace terrace
