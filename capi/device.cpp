#include <terrace/capi/device.h>

#include <string>
#include <utility>

#include <terrace/capi/errors.h>
#include <terrace/capi/limits.h>
#include <terrace/capi/structs.h>
#include <terrace/memory/cuda/cuda_device.h>
#include <terrace/memory/device/simulated_device.h>

namespace terrace::c {

constexpr Names kCudaDevice = TERRACE_CALL_AS(device_cuda, "CudaDevice");
constexpr Names kSimulatedDevice = TERRACE_CALL_AS(device_simulated, "SimulatedDevice");
namespace {

// Takes no lines: a description has nobody to tell them to, and the store's log hears them again.
class SilentLog final : public Log {
 public:
  void write(LogLevel, std::string_view) override {}
};

}  // namespace

MadeDevice make_device(const terrace_device& described, Log& log) {
  MadeDevice made;
  if (!described.is_cuda) {
    made.device = std::make_unique<SimulatedDevice>(
        SimulatedDeviceOptions{described.budget_bytes, described.strict, described.h2d_bytes_per_second,
                               described.d2h_bytes_per_second});
    return made;
  }
  made.gpu = CudaGpu::open(described.ordinal, log);
  CudaDeviceOptions options;
  options.budget_bytes = described.budget_bytes;
  options.strict = described.strict;
#ifdef TERRACE_C_HAS_CUDA
  auto cuda = std::make_unique<CudaDevice>(*made.gpu, options);
  made.cuda = cuda.get();
  made.device = std::move(cuda);
#endif
  return made;
}

void* compute_stream([[maybe_unused]] const MadeDevice& made) {
#ifdef TERRACE_C_HAS_CUDA
  if (made.cuda != nullptr) return made.cuda->compute_stream();
#endif
  return nullptr;
}

void use_stream([[maybe_unused]] const MadeDevice& made, [[maybe_unused]] void* stream) {
#ifdef TERRACE_C_HAS_CUDA
  if (made.cuda != nullptr) return made.cuda->use_stream(static_cast<CUstream_st*>(stream));
#endif
  refuse(ErrorKind::config, "cannot use a stream", "store", "its device is simulated, and computes at once",
         "create it with " + Wording(kCudaDevice));
}

}  // namespace terrace::c

using namespace terrace;  // NOLINT: the functions of C are in no namespace

terrace_error* terrace_device_simulated(const terrace_simulated_options* options, terrace_device** device) {
  return c::answer([&] {
    constexpr std::string_view kAction = "cannot describe a simulated device";
    c::require_pointer(device, kAction, "device");
    *device = nullptr;
    const terrace_simulated_options given = c::taken(options, kAction, "options");
    c::require_bytes(given.budget_bytes, kAction, Option::device_budget);
    auto made = std::make_unique<terrace_device>();
    made->budget_bytes = given.budget_bytes;
    made->strict = given.strict != 0;
    made->h2d_bytes_per_second = given.h2d_bytes_per_second;
    made->d2h_bytes_per_second = given.d2h_bytes_per_second;
    *device = made.release();
  });
}

terrace_error* terrace_device_cuda(const terrace_cuda_options* options, terrace_device** device) {
  return c::answer([&] {
    constexpr std::string_view kAction = "cannot describe a GPU";
    c::require_pointer(device, kAction, "device");
    *device = nullptr;
    const terrace_cuda_options given = c::taken(options, kAction, "options");
    c::require_bytes(given.budget_bytes, kAction, Option::cuda_budget);
    c::require_zero(given.reserved, kAction, "terrace_cuda_options.reserved");
    if (given.ordinal > c::kMostDevices)
      c::refuse(ErrorKind::config, kAction, "terrace_cuda_options.ordinal",
                "it is " + std::to_string(given.ordinal), "count GPUs from 0");
#ifdef TERRACE_C_HAS_CUDA
    c::SilentLog log;
    const auto gpu = CudaGpu::open(static_cast<int>(given.ordinal), log);
    auto made = std::make_unique<terrace_device>();
    made->is_cuda = true;
    made->budget_bytes = given.budget_bytes;
    made->strict = given.strict != 0;
    made->ordinal = static_cast<int>(given.ordinal);
    made->granularity_bytes = gpu->facts().granularity_bytes;
    *device = made.release();
#else
    c::refuse(ErrorKind::config, kAction, "GPU " + std::to_string(given.ordinal),
              "the library was built without CUDA: cuda.h was not found",
              "install the CUDA headers and build it again, or use " + Wording(c::kSimulatedDevice));
#endif
  });
}

void terrace_device_free(terrace_device* device) {
  delete device;
}
