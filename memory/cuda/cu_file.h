// cuFile, NVIDIA's GPUDirect Storage: a probe for it on this machine, and its driver in use. Its library is
// loaded at run time. CudaDevice::make_file_reader() reads files by it.
#pragma once

#include <string>
#include <string_view>

namespace terrace {

struct CuFileCalls;

inline constexpr const char* kCuFileLibrary = "libcufile.so.0";

struct CuFileFacts {
  std::string version;  // "1.13"; empty where there is no cuFile
  std::string reason;   // why there is no cuFile
};

// Loads `library`, which stays loaded until the process ends, and asks it for its version alone: that needs
// no GPU, opens no driver and writes no log of its own. Never throws for what is missing.
CuFileFacts probe_cu_file(const std::string& library = kCuFileLibrary);

// Errors of cuFile itself are above this; smaller ones are an errno of the system.
inline constexpr int kCuFileErrorBase = 5000;
// "cuFileHandleRegister: the file system of this file is not supported (5008)"; `error` is a CUfileOpError.
std::string cu_file_reason(int error, std::string_view call);

// The driver of cuFile, open for as long as this object lives. Thread-safe.
class CuFile {
 public:
  // `calls` outlive it. Throws Error(device) when the driver does not open.
  explicit CuFile(const CuFileCalls& calls);
  ~CuFile();
  CuFile(const CuFile&) = delete;
  CuFile& operator=(const CuFile&) = delete;

  const CuFileCalls& calls() const { return calls_; }

 private:
  const CuFileCalls& calls_;
  bool closes_ = true;  // false when the driver was open before
};

}  // namespace terrace
