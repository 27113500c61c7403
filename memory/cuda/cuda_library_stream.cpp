#include <terrace/memory/cuda/cuda_library_stream.h>

#include <array>
#include <string>

#include <terrace/memory/cuda/internal/cuda_memory.h>

namespace terrace {
namespace {

const std::string kLibraryStream = "the stream of a library (device tier)";

}  // namespace

struct CudaLibraryStream::State {
  explicit State(const CudaGpu& gpu) : stream(gpu, kLibraryStream) {}
  CudaStream stream;
};

CudaLibraryStream::CudaLibraryStream(const CudaGpu& gpu) : gpu_(gpu) {
  const CudaContext context(gpu);
  state_ = std::make_unique<State>(gpu);
}

CudaLibraryStream::~CudaLibraryStream() {
  const CudaContextAtEnd context(gpu_);
  state_.reset();
}

CUstream_st* CudaLibraryStream::get() const {
  return state_->stream.get();
}

// The plural of the call takes memory that no GPU knows, too: its type is 0 then.
bool CudaLibraryStream::has(const std::byte* memory) const {
  const CudaContext context(gpu_);
  unsigned type = 0;
  int ordinal = -1;
  std::array<CUpointer_attribute, 2> attributes = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  std::array<void*, 2> values = {&type, &ordinal};
  gpu_.driver().check(gpu_.driver().pointer_attributes(attributes.size(), attributes.data(), values.data(),
                                                       cuda_pointer(memory)),
                      "cuPointerGetAttributes", kLibraryStream);
  return type == CU_MEMORYTYPE_DEVICE && ordinal == gpu_.device();
}

bool CudaLibraryStream::is_over() const {
  const CudaContext context(gpu_);
  const CUresult result = gpu_.driver().stream_query(state_->stream.get());
  if (result == CUDA_ERROR_NOT_READY) return false;
  gpu_.driver().check(result, "cuStreamQuery", kLibraryStream);
  return true;
}

}  // namespace terrace
