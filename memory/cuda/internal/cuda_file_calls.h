// CudaFileCalls: the threads of an engine read files into slots of a GPU by these calls of cuFile. They know
// addresses and descriptors only and must never decide what is read or when.
//
// Order. A read writes the slot's memory by its home. On the host it comes behind the slot's `after`, on the
// GPU behind the operations that the slot's last detach() recorded: cuFileRead is in the order of no stream,
// so the thread that is about to call it waits for both. cuFileRead returns when the bytes are there, and
// everything launched later sees them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/aio/engines/thread_transport.h>
#include <terrace/base/event.h>
#include <terrace/base/mutex.h>
#include <terrace/memory/cuda/cu_file.h>
#include <terrace/memory/cuda/internal/cu_file_calls.h>
#include <terrace/memory/cuda/internal/cuda_copy_engine.h>

namespace terrace {

// A slot that files are being read into, by its home.
struct CudaFill {
  std::byte* home = nullptr;
  uint64_t bytes = 0;
  const Event* after = nullptr;
  const CudaOrder* order = nullptr;
};

// The slots of a device that are being filled, or may be. Thread-safe.
class CudaFills {
 public:
  // Replaces the fill with the same home.
  void set(const CudaFill& fill);
  // Returns the fill of the slot that has this address; it must have been set.
  CudaFill at(const std::byte* address) const;

 private:
  mutable Mutex mutex_;
  std::vector<CudaFill> fills_ TERRACE_GUARDED_BY(mutex_);  // by address
};

class CudaFileCalls final : public io::FileCalls {
 public:
  // All arguments outlive the object.
  CudaFileCalls(const CudaGpu& gpu, const CuFile& cu_file, const CudaFills& fills)
      : gpu_(gpu), cu_file_(cu_file), fills_(fills) {}
  ~CudaFileCalls() override;

  int64_t move(const io::Piece& piece) noexcept override;
  bool register_file(int fd) override;
  void unregister_file(int fd) override;
  std::string_view registration_refusal() const override { return refusal_; }

 private:
  struct File {
    int fd;
    cu_file::Handle handle;
  };
  cu_file::Handle handle_of(int fd) const;
  int64_t read(const io::Piece& piece, const CudaFill& fill);

  const CudaGpu& gpu_;
  const CuFile& cu_file_;
  const CudaFills& fills_;
  std::string refusal_;  // used by the engine's owner thread alone
  mutable Mutex mutex_;
  std::vector<File> files_ TERRACE_GUARDED_BY(mutex_);
};

}  // namespace terrace
