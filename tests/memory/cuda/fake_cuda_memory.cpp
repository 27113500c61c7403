// The fake driver's memory: addresses, physical memory, mappings, registrations.
#include <sys/mman.h>
#include <unistd.h>

#include "fake_cuda_state.h"

namespace terrace::testing {

CUresult fake_address_reserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  ENTER("cuMemAddressReserve");
  PageMapping mapping = PageMapping::inaccessible(bytes);
  *address = reinterpret_cast<uint64_t>(mapping.memory().data());
  current->reservations.emplace(*address, std::move(mapping));
  return CUDA_SUCCESS;
}
CUresult fake_address_free(CUdeviceptr address, size_t bytes) {
  ENTER("cuMemAddressFree");
  const auto reservation = current->reservations.find(address);
  if (reservation == current->reservations.end()) return CUDA_ERROR_INVALID_VALUE;
  const auto inside = current->mappings.lower_bound(address);
  if (inside != current->mappings.end() && inside->first < address + bytes) return CUDA_ERROR_INVALID_VALUE;
  current->reservations.erase(reservation);
  return CUDA_SUCCESS;
}
CUresult fake_memory_create(CUmemGenericAllocationHandle* handle, size_t bytes,
                            const CUmemAllocationProp* properties, unsigned long long) {
  ENTER("cuMemCreate");
  if (bytes % current->options.granularity_bytes != 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > current->options.memory_bytes - current->used_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const int file = memfd_create("fake GPU memory", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *handle = current->next_handle++;
  current->handles[*handle] = {properties->location.id, file, bytes, false, 0};
  current->used_bytes += bytes;
  return CUDA_SUCCESS;
}
namespace {

// Memory goes when it is released and nowhere mapped any more.
void drop_if_unused(CUmemGenericAllocationHandle id) {
  const auto handle = current->handles.find(id);
  if (!handle->second.released || handle->second.mappings > 0) return;
  close(handle->second.file);
  current->used_bytes -= handle->second.bytes;
  current->handles.erase(handle);
}

}  // namespace

CUresult fake_memory_release(CUmemGenericAllocationHandle id) {
  ENTER("cuMemRelease");
  const auto handle = current->handles.find(id);
  if (handle == current->handles.end() || handle->second.released) return CUDA_ERROR_INVALID_VALUE;
  handle->second.released = true;
  drop_if_unused(id);
  return CUDA_SUCCESS;
}
CUresult fake_memory_map(CUdeviceptr address, size_t bytes, size_t, CUmemGenericAllocationHandle id,
                         unsigned long long) {
  ENTER("cuMemMap");
  const auto handle = current->handles.find(id);
  if (handle == current->handles.end() || handle->second.bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
  const auto next = current->mappings.lower_bound(address);
  if (next != current->mappings.end() && next->first < address + bytes) return CUDA_ERROR_INVALID_VALUE;
  if (next != current->mappings.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second.bytes > address) return CUDA_ERROR_INVALID_VALUE;
  }
  const auto reservation = current->reservations.upper_bound(address);
  if (reservation == current->reservations.begin()) return CUDA_ERROR_INVALID_VALUE;
  const auto reserved = std::prev(reservation);
  if (address + bytes > reserved->first + reserved->second.memory().size()) return CUDA_ERROR_INVALID_VALUE;
  if (mmap(pointer(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, handle->second.file, 0) == MAP_FAILED)
    return CUDA_ERROR_OPERATING_SYSTEM;
  current->mappings[address] = {bytes, id, false};
  ++handle->second.mappings;
  return CUDA_SUCCESS;
}
CUresult fake_set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc*, size_t) {
  ENTER("cuMemSetAccess");
  const auto mapping = current->mappings.find(address);
  if (mapping == current->mappings.end() || mapping->second.bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
  mapping->second.accessible = true;
  return mprotect(pointer(address), bytes, PROT_READ | PROT_WRITE) == 0 ? CUDA_SUCCESS
                                                                        : CUDA_ERROR_OPERATING_SYSTEM;
}
CUresult fake_memory_unmap(CUdeviceptr address, size_t bytes) {
  ENTER("cuMemUnmap");
  const auto mapping = current->mappings.find(address);
  if (mapping == current->mappings.end() || mapping->second.bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
  if (mmap(pointer(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
           0) == MAP_FAILED)
    return CUDA_ERROR_OPERATING_SYSTEM;
  const CUmemGenericAllocationHandle handle = mapping->second.handle;
  current->mappings.erase(mapping);
  --current->handles[handle].mappings;
  drop_if_unused(handle);
  return CUDA_SUCCESS;
}

// Of what is asked here: the kind of memory, and which GPU's it is. Of other memory both stay as they were.
CUresult fake_pointer_attributes(unsigned count, CUpointer_attribute* attributes, void** values,
                                 CUdeviceptr address) {
  ENTER("cuPointerGetAttributes");
  TERRACE_ASSERT(pushed_contexts > 0, "cuPointerGetAttributes without a context");
  if (!current->is_accessible(address, 1)) return CUDA_SUCCESS;
  const Mapping& mapping = std::prev(current->mappings.upper_bound(address))->second;
  for (unsigned a = 0; a < count; ++a) {
    if (attributes[a] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
      *static_cast<unsigned*>(values[a]) = CU_MEMORYTYPE_DEVICE;
    if (attributes[a] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
      *static_cast<int*>(values[a]) = current->handles.at(mapping.handle).device;
  }
  return CUDA_SUCCESS;
}

CUresult fake_host_register(void* memory, size_t bytes, unsigned) {
  ENTER("cuMemHostRegister");
  current->registered[reinterpret_cast<uint64_t>(memory)] = bytes;
  current->largest_registration = std::max<uint64_t>(current->largest_registration, bytes);
  return CUDA_SUCCESS;
}
CUresult fake_host_unregister(void* memory) {
  ENTER("cuMemHostUnregister");
  return current->registered.erase(reinterpret_cast<uint64_t>(memory)) == 1 ? CUDA_SUCCESS
                                                                            : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace terrace::testing
