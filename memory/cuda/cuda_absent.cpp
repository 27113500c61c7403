// This file stands in for the CUDA back end if cuda.h was not found. Opening a GPU fails with that reason, so
// nothing else of the back end can be reached.
#include <string>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/memory/cuda/cu_file.h>
#include <terrace/memory/cuda/cuda_device.h>
#include <terrace/memory/cuda/cuda_file_reads.h>
#include <terrace/memory/cuda/cuda_gpu.h>
#include <terrace/memory/cuda/cuda_host_link.h>
#include <terrace/memory/cuda/cuda_library_stream.h>
#include <terrace/memory/cuda/cuda_page_lock.h>
#include <terrace/memory/cuda/cuda_plain_copies.h>
#include <terrace/memory/cuda/internal/cu_file_calls.h>

namespace terrace {

// CudaDriver must be complete, so that the owner of one can be destroyed.
struct CudaDriver {};

namespace {

[[noreturn]] void unreachable() {
  assertion_failed("false", __FILE__, __LINE__, "there is no CudaGpu without the CUDA back end");
}

[[noreturn]] void refuse(std::string subject) {
  throw Error(ErrorKind::device,
              {"cannot use", std::move(subject), "Terrace was built without CUDA: cuda.h was not found",
               "install the CUDA headers and build again, or use the simulated device"});
}

}  // namespace

std::unique_ptr<CudaGpu> CudaGpu::open(int ordinal, Log&) {
  refuse("GPU " + std::to_string(ordinal));
}

int CudaGpu::count() {
  refuse("the GPUs");
}

CudaGpu::~CudaGpu() {
  unreachable();
}

CudaContext::CudaContext(const CudaGpu& gpu) : gpu_(gpu) {
  unreachable();
}

CudaContext::~CudaContext() {
  unreachable();
}

std::unique_ptr<Device> make_cuda_device(const CudaGpu&, CudaDeviceOptions) {
  unreachable();
}

std::unique_ptr<CopyWay> make_plain_cuda_copies(const CudaGpu&, CopyBuffers, uint64_t) {
  unreachable();
}

std::string why_no_file_reads(const CudaGpu&, std::span<const std::filesystem::path>) {
  unreachable();
}

CudaPageLock::CudaPageLock(const CudaGpu& gpu, std::span<std::byte>, uint64_t piece_bytes)
    : gpu_(gpu), piece_bytes_(piece_bytes) {
  unreachable();
}

CudaPageLock::~CudaPageLock() {
  unreachable();
}

struct CudaLibraryStream::State {};

CudaLibraryStream::CudaLibraryStream(const CudaGpu& gpu) : gpu_(gpu) {
  unreachable();
}

CudaLibraryStream::~CudaLibraryStream() {
  unreachable();
}

CUstream_st* CudaLibraryStream::get() const {
  unreachable();
}

bool CudaLibraryStream::has(const std::byte*) const {
  unreachable();
}

bool CudaLibraryStream::is_over() const {
  unreachable();
}

struct CudaHostLink::State {};

CudaHostLink::~CudaHostLink() {
  unreachable();
}

void CudaHostLink::send(std::byte*, std::span<const std::byte>) {
  unreachable();
}

void CudaHostLink::fetch(std::span<std::byte>, const std::byte*) {
  unreachable();
}

void CudaHostLink::finish() {
  unreachable();
}

void CudaHostLink::forget() noexcept {
  unreachable();
}

}  // namespace terrace
