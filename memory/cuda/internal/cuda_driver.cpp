#include <terrace/memory/cuda/internal/cuda_driver.h>

#include <terrace/base/shared_library.h>

namespace terrace {
namespace {

#define TERRACE_CUDA_TEXT(expanded) #expanded
#define TERRACE_CUDA_EXPANDED(name) TERRACE_CUDA_TEXT(name)
#define TERRACE_CUDA_COMPARE(member, name, symbol)                         \
  static_assert(std::string_view(TERRACE_CUDA_EXPANDED(name)) == (symbol), \
                "this cuda.h has another version of the call than the table");
TERRACE_CUDA_CALLS(TERRACE_CUDA_COMPARE)
#undef TERRACE_CUDA_COMPARE

const char* advice(CUresult result) {
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return "give the device a smaller budget, or end what else uses the GPU (nvidia-smi shows it)";
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
      return "check with nvidia-smi which GPUs there are, and CUDA_VISIBLE_DEVICES; or train on the "
             "simulated "
             "device";
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_SYSTEM_NOT_READY:
      return "restart the machine or load the driver of the installed version";
    default:
      return "dmesg may say more (lines with NVRM or Xid); start the run again, it resumes from its last "
             "commit or checkpoint";
  }
}

}  // namespace

std::unique_ptr<const CudaDriver> CudaDriver::load(const std::string& library) {
  const SharedLibrary loaded(library);
  if (!loaded.reason().empty()) {
    throw Error(ErrorKind::device, {"cannot load the NVIDIA driver", library, loaded.reason(),
                                    "install the driver of the GPU, or train on the simulated device"});
  }
  auto driver = std::make_unique<CudaDriver>();
  const auto find = [&](auto& call, const char* symbol) {
    if (loaded.find(call, symbol)) return;
    throw Error(ErrorKind::device, {"cannot use the NVIDIA driver", library,
                                    std::string("it is too old: it lacks ") + symbol, "update the driver"});
  };
#define TERRACE_CUDA_FIND(member, name, symbol) find(driver->member, symbol);
  TERRACE_CUDA_CALLS(TERRACE_CUDA_FIND)
#undef TERRACE_CUDA_FIND
  return driver;
}

std::string CudaDriver::reason(CUresult result, std::string_view call) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (get_error_name(result, &name) != CUDA_SUCCESS || name == nullptr) name = "unknown CUDA error";
  if (get_error_string(result, &text) != CUDA_SUCCESS || text == nullptr) text = "no description";
  return std::string(call) + ": " + text + " (" + name + ")";
}

Error CudaDriver::error(CUresult result, std::string_view call, const std::string& subject) const {
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    return {ErrorKind::capacity,
            {"cannot allocate GPU memory for", subject, reason(result, call), advice(result)}};
  }
  return {ErrorKind::device,
          {"a call of the GPU's driver failed for", subject, reason(result, call), advice(result)}};
}

}  // namespace terrace
