// CudaHostLink: passes small data (token ids, tables, losses) between the host and operations on a GPU, in
// the order of those operations. Everything large goes by the copies of CudaDevice, and only those are
// counted. One thread uses it.
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
  // The most that may be on its way to the GPU at once. send() takes more in turns, and waits.
  static constexpr uint64_t kSendBytes = 1024 * 1024;
  // The most that may be fetched without waiting.
  static constexpr uint64_t kFetchBytes = 4096;

  // `stream` is where operations run (CudaDevice::compute_stream()); both outlive the link. Throws
  // Error(device).
  CudaHostLink(const CudaGpu& gpu, CUstream_st* stream);
  ~CudaHostLink();
  CudaHostLink(const CudaHostLink&) = delete;
  CudaHostLink& operator=(const CudaHostLink&) = delete;

  // Copies to the GPU behind everything that the stream holds; `from` may be changed when this returns.
  void send(std::byte* to, std::span<const std::byte> from);
  // Asks for the bytes at `from` as operations before leave them; they are at `to` when finish() returns.
  void fetch(std::span<std::byte> to, const std::byte* from);
  // Waits for the fetches that were asked for, and for nothing else.
  void finish();
  // Gives up the fetches that are not finished.
  void forget() noexcept;

 private:
  struct State;
  const CudaGpu& gpu_;
  CUstream_st* const stream_;
  std::unique_ptr<State> state_;
};

}  // namespace terrace
