// CuFileCalls: the calls of cuFile that Terrace uses, as a table that is filled at run time. No header of
// cuFile is needed to build: this file declares its documented binary interface, and a test compares it with
// cufile.h where that is found. It must never call anything by itself.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include <terrace/base/error.h>

namespace terrace {

namespace cu_file {

// CUfileError_t.
struct Status {
  int file_error;    // CUfileOpError; 0: none
  int driver_error;  // CUresult, where file_error is kDriverError
};
inline constexpr int kDriverError = 5011, kAlreadyOpen = 5026;

// CUfileHandle_t: a registered file.
using Handle = void*;
// CUfileDescr_t.
struct Descriptor {
  int type;
  union {
    int fd;
    void* handle;
  } file;
  const void* operations;  // calls of a file system in user space; null
};
inline constexpr int kFileDescriptor = 1;  // CU_FILE_HANDLE_TYPE_OPAQUE_FD

}  // namespace cu_file

// CALL(member, symbol, result, parameters)
#define TERRACE_CU_FILE_CALLS(CALL)                                                                      \
  CALL(version, cuFileGetVersion, cu_file::Status, (int*))                                               \
  CALL(driver_open, cuFileDriverOpen, cu_file::Status, ())                                               \
  CALL(driver_close, cuFileDriverClose, cu_file::Status, ())                                             \
  CALL(handle_register, cuFileHandleRegister, cu_file::Status, (cu_file::Handle*, cu_file::Descriptor*)) \
  CALL(handle_deregister, cuFileHandleDeregister, void, (cu_file::Handle))                               \
  CALL(read, cuFileRead, ssize_t,                                                                        \
       (cu_file::Handle, void* memory, size_t bytes, off_t file_offset, off_t memory_offset))

struct CuFileCalls {
#define TERRACE_CU_FILE_MEMBER(member, symbol, result, parameters) result(*member) parameters = nullptr;
  TERRACE_CU_FILE_CALLS(TERRACE_CU_FILE_MEMBER)
#undef TERRACE_CU_FILE_MEMBER

  // Loads `library` and looks up every call; the library stays loaded until the process ends. Throws
  // Error(device) when it is not there or lacks a call.
  static std::unique_ptr<const CuFileCalls> load(const std::string& library);
};

// The reason of a failed call, with the CUDA driver's own words when the driver failed.
std::string cu_file_reason(const cu_file::Status& status, std::string_view call);

}  // namespace terrace
