// CudaHostLink: the few numbers that the host gives to operations on a GPU and wants from them (token ids,
// tables, losses), in the order of those operations. Everything large goes by the copies of CudaDevice, and
// only those are counted. Used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <terrace/memory/cuda/cuda_gpu.h>

struct CUstream_st;

namespace terrace {

class CudaHostLink {
 public:
  // What may be on its way to the GPU at once. More is taken in turns, and then waited for.
  static constexpr uint64_t kSendBytes = 1024 * 1024;
  // What may be fetched without waiting at once.
  static constexpr uint64_t kFetchBytes = 4096;

  // `stream` is where operations run (CudaDevice::compute_stream()); both outlive the link. Throws
  // Error(device).
  CudaHostLink(const CudaGpu& gpu, CUstream_st* stream);
  ~CudaHostLink();
  CudaHostLink(const CudaHostLink&) = delete;
  CudaHostLink& operator=(const CudaHostLink&) = delete;

  // Behind what the stream holds; `from` may be changed when this returns.
  void send(std::byte* to, std::span<const std::byte> from);
  // What operations before leave at `from` is at `to` when finish() returns.
  void fetch(std::span<std::byte> to, const std::byte* from);
  // Waits for what is to be fetched, and for nothing else.
  void finish();
  // What has not been fetched is not wanted any more.
  void forget() noexcept;

 private:
  struct State;
  const CudaGpu& gpu_;
  CUstream_st* const stream_;
  std::unique_ptr<State> state_;
};

}  // namespace terrace
