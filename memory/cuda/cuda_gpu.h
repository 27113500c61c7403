// CudaGpu: one NVIDIA GPU of this machine, its driver and its primary context. It must never allocate memory
// of the GPU: CudaDevice does, within a budget.
//
// Public headers know nothing of cuda.h. Where Terrace is built without it, everything still links, and
// CudaGpu::open() says so.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <terrace/base/log.h>
#include <terrace/base/mutex.h>

struct CUctx_st;

namespace terrace {

struct CudaDriver;
struct CuFileCalls;
class CuFile;

// The abilities of a GPU and its driver. "driver version" is the newest CUDA that the driver runs.
struct CudaFacts {
  std::string name;
  int driver_version = 0;       // as CUDA counts: 12040 is 12.4
  bool virtual_memory = false;  // without it there is no CudaDevice
  int copy_engines = 0;         // 2 and more: copies both ways at once
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;         // when the GPU was opened
  uint64_t granularity_bytes = 0;  // granularity of physical memory; 0 without virtual memory
};
// "12.4"
inline std::string cuda_version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Thread-safe.
class CudaGpu {
 public:
  static constexpr int kLeastDriverVersion = 11000;

  // Loads the driver. open() and the constructors throw Error(device) in one clear line when there is no
  // driver, it is too old, or the machine has no such GPU. `log` must outlive the GPU.
  static std::unique_ptr<CudaGpu> open(int ordinal, Log& log);
  // The number of GPUs that the driver finds. Throws as open() does.
  static int count();
  CudaGpu(std::unique_ptr<const CudaDriver> driver, int ordinal, Log& log);
  // Uses the given cuFile in place of the machine's, which is otherwise loaded when it is first wanted.
  CudaGpu(std::unique_ptr<const CudaDriver> driver, int ordinal, Log& log,
          std::unique_ptr<const CuFileCalls> cu_file);
  ~CudaGpu();
  CudaGpu(const CudaGpu&) = delete;
  CudaGpu& operator=(const CudaGpu&) = delete;

  const CudaFacts& facts() const { return facts_; }
  int device() const { return device_; }
  const CudaDriver& driver() const { return *driver_; }
  Log& log() const { return log_; }
  // Opens cuFile's driver when it is first wanted. Every call throws Error(device) when that fails.
  const CuFile& cu_file() const;

  // Logs one warning when a call failed (`result` is a CUresult); for destructors, which cannot throw.
  void report(int result, const char* call, const std::string& subject) const noexcept;

 private:
  friend class CudaContext;
  void look();

  const std::unique_ptr<const CudaDriver> driver_;
  Log& log_;
  int device_ = 0;
  CUctx_st* context_ = nullptr;
  CudaFacts facts_;
  mutable Mutex mutex_;
  mutable std::unique_ptr<const CuFileCalls> cu_file_calls_ TERRACE_GUARDED_BY(mutex_);
  mutable std::unique_ptr<const CuFile> cu_file_ TERRACE_GUARDED_BY(mutex_);
};

// While a CudaContext lives, the GPU's context is the calling thread's; afterwards the previous one is again,
// so that a program's own context is never lost. Throws Error(device).
class CudaContext {
 public:
  explicit CudaContext(const CudaGpu& gpu);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

 private:
  const CudaGpu& gpu_;
};

}  // namespace terrace
