#include "fake_cuda_driver.h"

#include <cstring>

#include "fake_cuda_state.h"

namespace terrace::testing {

FakeCudaDriver::State* current = nullptr;
thread_local int pushed_contexts = 0;

CUresult enter(const char* call, const Lock&) {
  ++current->call_counts[call];
  if (current->health() != CUDA_SUCCESS) return current->health();
  const auto failure = current->failures.find(call);
  if (failure == current->failures.end() || --failure->second.left > 0) return CUDA_SUCCESS;
  const CUresult result = failure->second.result;
  current->failures.erase(failure);
  return result;
}

CUresult fake_get_error_name(CUresult result, const char** name) {
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      break;
    case CUDA_ERROR_NO_DEVICE:
      *name = "CUDA_ERROR_NO_DEVICE";
      break;
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
      *name = "CUDA_ERROR_DEVICE_UNAVAILABLE";
      break;
    case CUDA_ERROR_ILLEGAL_ADDRESS:
      *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
      break;
    case CUDA_ERROR_INVALID_VALUE:
      *name = "CUDA_ERROR_INVALID_VALUE";
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}
CUresult fake_get_error_string(CUresult, const char** text) {
  *text = "as the test asked";
  return CUDA_SUCCESS;
}
CUresult fake_init(unsigned) {
  ENTER("cuInit");
  return current->options.gpu_count > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}
CUresult fake_driver_version(int* version) {
  ENTER("cuDriverGetVersion");
  *version = current->options.driver_version;
  return CUDA_SUCCESS;
}
CUresult fake_device_count(int* count) {
  ENTER("cuDeviceGetCount");
  *count = current->options.gpu_count;
  return CUDA_SUCCESS;
}
CUresult fake_device_get(CUdevice* device, int ordinal) {
  ENTER("cuDeviceGet");
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult fake_device_name(char* name, int bytes, CUdevice) {
  ENTER("cuDeviceGetName");
  std::strncpy(name, "Fake GPU", static_cast<size_t>(bytes));
  return CUDA_SUCCESS;
}
CUresult fake_device_attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  ENTER("cuDeviceGetAttribute");
  *value = attribute == CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT ? 2 : current->options.virtual_memory;
  return CUDA_SUCCESS;
}
CUresult fake_context_retain(CUcontext* context, CUdevice) {
  ENTER("cuDevicePrimaryCtxRetain");
  ++current->contexts;
  *context = reinterpret_cast<CUcontext>(current);
  return CUDA_SUCCESS;
}
CUresult fake_context_release(CUdevice) {
  const Lock lock(current->mutex);
  --current->contexts;
  return enter("cuDevicePrimaryCtxRelease", lock);
}
// A thread without a context can do nothing on a real GPU, so here every call that needs one asserts it.
CUresult fake_context_push(CUcontext) {
  ++pushed_contexts;  // whatever is returned: who fails to push does not go on
  ENTER("cuCtxPushCurrent");
  return CUDA_SUCCESS;
}
CUresult fake_context_pop(CUcontext*) {
  --pushed_contexts;
  return CUDA_SUCCESS;
}
CUresult fake_memory_info(size_t* free_bytes, size_t* total_bytes) {
  ENTER("cuMemGetInfo");
  *total_bytes = current->options.memory_bytes;
  *free_bytes = current->options.memory_bytes - current->used_bytes;
  return CUDA_SUCCESS;
}
CUresult fake_granularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  ENTER("cuMemGetAllocationGranularity");
  *bytes = current->options.granularity_bytes;
  return CUDA_SUCCESS;
}

FakeCudaDriver::FakeCudaDriver(FakeCudaOptions options) : state_(std::make_unique<State>(options)) {
  TERRACE_ASSERT(current == nullptr, "one fake driver at a time");
  current = state_.get();
}

FakeCudaDriver::~FakeCudaDriver() {
  TERRACE_ASSERT(state_->streams.empty(), "the fake driver goes before its streams");
  current = nullptr;
}

void FakeCudaDriver::fail(const std::string& call, uint64_t nth, CUresult result) {
  const Lock lock(state_->mutex);
  state_->failures[call] = {nth, result};
}

void FakeCudaDriver::lose_device() {
  const Lock lock(state_->mutex);
  state_->lost = true;
  state_->changed.notify_all();
}

void FakeCudaDriver::hold_copies() {
  const Lock lock(state_->mutex);
  state_->hold = true;
}

void FakeCudaDriver::let_copies_go() {
  const Lock lock(state_->mutex);
  state_->hold = false;
  state_->changed.notify_all();
}

void FakeCudaDriver::run_operation(CUstream stream, std::function<void()> work) {
  const Lock lock(state_->mutex);
  put(stream, [this, count = state_->operations_released, work = std::move(work)] {
    wait_on_stream([&] { return state_->operations_released > count; });
    work();
  });
}

void FakeCudaDriver::run_kernel(CUstream stream, std::function<void()> work) {
  const Lock lock(state_->mutex);
  put(stream, [this, work = std::move(work)] {
    {
      const Lock on_stream(state_->mutex);
      if (state_->health() != CUDA_SUCCESS) return;
    }
    work();
  });
}

void FakeCudaDriver::release_operations() {
  const Lock lock(state_->mutex);
  ++state_->operations_released;
  state_->changed.notify_all();
}

uint64_t FakeCudaDriver::calls(const std::string& call) const {
  const Lock lock(state_->mutex);
  return state_->call_counts[call];
}

bool FakeCudaDriver::has_all(const void* memory, uint64_t bytes) const {
  const Lock lock(state_->mutex);
  return state_->is_accessible(reinterpret_cast<uint64_t>(memory), bytes);
}

bool FakeCudaDriver::has_some(const void* memory, uint64_t bytes) const {
  const Lock lock(state_->mutex);
  const auto begin = reinterpret_cast<uint64_t>(memory);
  for (const auto& [address, mapping] : state_->mappings) {
    if (address < begin + bytes && begin < address + mapping.bytes) return true;
  }
  return false;
}

uint64_t FakeCudaDriver::used_bytes() const {
  const Lock lock(state_->mutex);
  return state_->used_bytes;
}

uint64_t FakeCudaDriver::registered_bytes() const {
  const Lock lock(state_->mutex);
  uint64_t bytes = 0;
  for (const auto& [address, size] : state_->registered) bytes += size;
  return bytes;
}

uint64_t FakeCudaDriver::largest_registration_bytes() const {
  const Lock lock(state_->mutex);
  return state_->largest_registration;
}

std::string FakeCudaDriver::leftovers() const {
  const Lock lock(state_->mutex);
  std::string result;
  const auto count = [&](const char* what, uint64_t left) {
    if (left > 0) result += std::to_string(left) + " " + what + "; ";
  };
  count("address ranges", state_->reservations.size());
  count("mappings", state_->mappings.size());
  count("pieces of memory", state_->handles.size());
  count("registrations", state_->registered.size());
  count("streams", state_->streams.size());
  count("events", state_->events.size());
  count("contexts", static_cast<uint64_t>(state_->contexts));
  return result;
}

std::unique_ptr<const CudaDriver> FakeCudaDriver::table() {
  auto table = std::make_unique<CudaDriver>();
#define TERRACE_FAKE(member, name, symbol) table->member = fake_##member;
  TERRACE_CUDA_CALLS(TERRACE_FAKE)
#undef TERRACE_FAKE
  return table;
}

}  // namespace terrace::testing
