// LibraryProducts: products of matrices by cuBLASLt, in the place of TiledProducts. Sums are in fp32; bits
// are the library's own.
//
// The library multiplies operands of one type. Where a parameter of 16 bits meets fp32, it is widened, which
// is exact, into scratch memory: all at once or, where that is small, so many stored lines after the other,
// which are added up where they lie along the depth. A product of fp32 that lands in 16 bits goes by scratch
// memory too, so many rows after the other. What the library does not do goes to the plain products, and the
// log says once why.
//
// Deterministic: the library is asked for an algorithm once for a shape, types, strides and alignments, with
// a workspace of one size, and that is used from then on; parts of a depth that it splits are added in fp32
// in a step of their own. Of an alignment no more is told than all memory of the arena and every tensor has,
// so that the question does not depend on where memory happens to lie. So a run repeats itself bit for bit,
// wherever its state rests, as far as the library gives the same answer for the same question, which it is
// documented to do on the same GPU and version; and everything has to be queued on one stream, whose order
// guards scratch and workspace. It must never allocate device memory or wait for the device.
#pragma once

#include <compare>
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <span>

#include <terrace/base/log.h>
#include <terrace/base/units.h>
#include <terrace/runtime/model/compute/cuda/cublas_lt.h>
#include <terrace/runtime/model/compute/cuda/cuda_ops.h>

namespace terrace {

// What NVIDIA recommends for the GPUs that want most (Hopper and later).
inline constexpr uint64_t kLibraryWorkspaceBytes = 32 * kMiB;

// The memory of a product by the library: a workspace of this size, and scratch memory for what is widened or
// lands in 16 bits, at most 16 MiB of it unless a single line is longer.
ProductMemory take_library_memory(const ProductShape& shape, const ProductTypes& types,
                                  uint64_t workspace_bytes, StackArena& arena);

// Not thread-safe. The calling thread's context is that of the GPU, or none: then the library takes that of
// the first GPU.
class LibraryProducts final : public CudaProducts {
 public:
  // All of these outlive it. Throws Error(device).
  LibraryProducts(const CublasLt& library, TiledProducts& plain, uint64_t workspace_bytes, Log& log);
  ~LibraryProducts() override;

  ProductMemory take_memory(const ProductShape& shape, const ProductTypes& types,
                            StackArena& arena) const override {
    return take_library_memory(shape, types, workspace_bytes_, arena);
  }
  // Their workspace has the size that was given; scratch may be any.
  void multiply(const CudaLaunch& where, const ProductShape& shape, const Operand& a, const Operand& b,
                const ProductTarget& target, const ProductMemory& memory) override;
  void multiply_into(const CudaLaunch& where, const ProductShape& shape, const Operand& a, const Operand& b,
                     const GradientTarget& target, const ProductMemory& memory) override;

 private:
  struct Target {
    void* data;
    uint64_t stride;
    DataType type;
    bool accumulate;
    const float* bias;  // null: none
  };
  // What the choice of an algorithm may depend on.
  struct Question {
    uint64_t rows, columns, depth, a_stride, b_stride, stride;
    uint32_t a_alignment, b_alignment, alignment, bias_alignment;  // the last 0: no bias
    DataType a_type, b_type, type;
    bool a_transposed, b_transposed;
    auto operator<=>(const Question&) const = default;
  };
  struct Answer;
  // What the log has been told.
  struct Said {
    uint64_t rows, columns, depth;
    DataType a_type, b_type, type;
    const char* reason;
    auto operator<=>(const Said&) const = default;
  };

  // False, and said in the log, where the library does not do it.
  bool run(const CudaLaunch& where, const ProductShape& shape, const Operand& a, const Operand& b,
           const Target& target, std::span<std::byte> workspace);
  Answer& answer_to(const Question& question, const Target& target);
  void describe(const Question& question, const Target& target, Answer& answer) const;
  void choose(const Question& question, Answer& answer);
  void say(const ProductShape& shape, DataType a, DataType b, DataType target, const char* reason);
  void multiply_widened(const CudaLaunch& where, const ProductShape& shape, const Operand& a,
                        const Operand& b, const ProductTarget& target, const ProductMemory& memory);
  void multiply_and_land(const CudaLaunch& where, const ProductShape& shape, const Operand& a,
                         const Operand& b, const GradientTarget& target, const ProductMemory& memory);

  const CublasLt& library_;
  TiledProducts& plain_;
  const uint64_t workspace_bytes_;
  Log& log_;
  cublas_lt::Handle* handle_ = nullptr;
  std::map<Question, std::unique_ptr<Answer>> answers_;
  std::set<Said> said_;
};

}  // namespace terrace
