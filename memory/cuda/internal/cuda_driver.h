// CudaDriver: the calls of the CUDA driver that Terrace uses, as a table that is filled at run time. So a
// program is built with cuda.h alone, is not linked to CUDA, and runs on machines without it; and a test can
// fill the table with calls of its own. It must never call anything by itself.
//
// The CUDA runtime is not used: contexts, streams and memory are the driver's. A program that uses the
// runtime as well (as PyTorch does) shares the same primary context.
#pragma once

#include <cuda.h>

#include <memory>
#include <string>
#include <string_view>

#include <terrace/base/error.h>

namespace terrace {

// CALL(member, name in cuda.h, symbol). cuda.h names the newest version of a call and maps it to its symbol
// by a macro; a table must not follow it unseen to a version with other parameters, so each symbol is written
// here and compared.
#define TERRACE_CUDA_CALLS(CALL)                                                    \
  CALL(get_error_name, cuGetErrorName, "cuGetErrorName")                            \
  CALL(get_error_string, cuGetErrorString, "cuGetErrorString")                      \
  CALL(init, cuInit, "cuInit")                                                      \
  CALL(driver_version, cuDriverGetVersion, "cuDriverGetVersion")                    \
  CALL(device_count, cuDeviceGetCount, "cuDeviceGetCount")                          \
  CALL(device_get, cuDeviceGet, "cuDeviceGet")                                      \
  CALL(device_name, cuDeviceGetName, "cuDeviceGetName")                             \
  CALL(device_attribute, cuDeviceGetAttribute, "cuDeviceGetAttribute")              \
  CALL(context_retain, cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")        \
  CALL(context_release, cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2")  \
  CALL(context_push, cuCtxPushCurrent, "cuCtxPushCurrent_v2")                       \
  CALL(context_pop, cuCtxPopCurrent, "cuCtxPopCurrent_v2")                          \
  CALL(memory_info, cuMemGetInfo, "cuMemGetInfo_v2")                                \
  CALL(pointer_attributes, cuPointerGetAttributes, "cuPointerGetAttributes")        \
  CALL(granularity, cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity") \
  CALL(address_reserve, cuMemAddressReserve, "cuMemAddressReserve")                 \
  CALL(address_free, cuMemAddressFree, "cuMemAddressFree")                          \
  CALL(memory_create, cuMemCreate, "cuMemCreate")                                   \
  CALL(memory_release, cuMemRelease, "cuMemRelease")                                \
  CALL(memory_map, cuMemMap, "cuMemMap")                                            \
  CALL(memory_unmap, cuMemUnmap, "cuMemUnmap")                                      \
  CALL(set_access, cuMemSetAccess, "cuMemSetAccess")                                \
  CALL(host_register, cuMemHostRegister, "cuMemHostRegister_v2")                    \
  CALL(host_unregister, cuMemHostUnregister, "cuMemHostUnregister")                 \
  CALL(stream_create, cuStreamCreate, "cuStreamCreate")                             \
  CALL(stream_destroy, cuStreamDestroy, "cuStreamDestroy_v2")                       \
  CALL(stream_synchronize, cuStreamSynchronize, "cuStreamSynchronize")              \
  CALL(stream_query, cuStreamQuery, "cuStreamQuery")                                \
  CALL(stream_wait_event, cuStreamWaitEvent, "cuStreamWaitEvent")                   \
  CALL(event_create, cuEventCreate, "cuEventCreate")                                \
  CALL(event_destroy, cuEventDestroy, "cuEventDestroy_v2")                          \
  CALL(event_record, cuEventRecord, "cuEventRecord")                                \
  CALL(event_synchronize, cuEventSynchronize, "cuEventSynchronize")                 \
  CALL(copy_to_device, cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2")                   \
  CALL(copy_to_host, cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2")                     \
  CALL(copy_on_device, cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2")                   \
  CALL(fill_bytes, cuMemsetD8Async, "cuMemsetD8Async")                              \
  CALL(fill_words, cuMemsetD32Async, "cuMemsetD32Async")

struct CudaDriver {
#define TERRACE_CUDA_MEMBER(member, name, symbol) decltype(&::name) member = nullptr;
  TERRACE_CUDA_CALLS(TERRACE_CUDA_MEMBER)
#undef TERRACE_CUDA_MEMBER

  // Loads `library` and looks up every call; the library stays loaded until the process ends. Throws
  // Error(device) when it is not there or lacks a call.
  static std::unique_ptr<const CudaDriver> load(const std::string& library = "libcuda.so.1");

  // "cuMemCreate: out of memory (CUDA_ERROR_OUT_OF_MEMORY)".
  std::string reason(CUresult result, std::string_view call) const;
  // The Error for a failed call on `subject`, which names the slot or purpose and the tier: Error(capacity)
  // when out of memory, else Error(device).
  Error error(CUresult result, std::string_view call, const std::string& subject) const;
  void check(CUresult result, std::string_view call, const std::string& subject) const {
    if (result != CUDA_SUCCESS) throw error(result, call, subject);
  }
};

}  // namespace terrace
