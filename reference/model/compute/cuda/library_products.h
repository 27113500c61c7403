// LibraryProducts: products of matrices by cuBLASLt, in place of TiledProducts. Sums are in fp32; their bits
// are the library's own.
//
// The library multiplies operands of one type. A parameter of 16 bits that meets fp32 is widened, which is
// exact, into scratch memory. If that is small, its stored lines are widened in groups, and groups that lie
// along the depth are added up. A product of fp32 that lands in 16 bits passes through scratch memory too, in
// groups of rows. The plain products do the work that the library does not, and the log says once why.
//
// Results repeat. The library is asked once for an algorithm for a shape, types, strides, alignments and one
// size of workspace, and that algorithm is used from then on. Parts of a depth that it splits are added in
// fp32 in a step of their own. The question names no alignment larger than that of the arena and of every
// tensor, so it does not depend on the place of memory. A run then repeats bit for bit, wherever its state
// rests, if the library gives the same answer to the same question; it is documented to do so on the same GPU
// and version. Everything must be queued on one stream, whose order guards scratch and workspace.
// LibraryProducts must never allocate device memory or wait for the device.
#pragma once

#include <compare>
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <span>

#include <terrace/base/log.h>
#include <terrace/base/units.h>
#include <terrace/reference/model/compute/cuda/cublas_lt.h>
#include <terrace/reference/model/compute/cuda/cuda_ops.h>

namespace terrace {

// The size that NVIDIA recommends for the GPUs that want most (Hopper and later).
inline constexpr uint64_t kLibraryWorkspaceBytes = 32 * kMiB;

// Takes the memory of a product by the library: a workspace of this size, and scratch memory for operands to
// widen or results that land in 16 bits. The scratch is at most 16 MiB unless a single line is longer.
ProductMemory take_library_memory(const ProductShape& shape, const ProductTypes& types,
                                  uint64_t workspace_bytes, StackArena& arena);

// Not thread-safe. The calling thread's context is that of the GPU, or none: the library then takes that of
// the first GPU.
class LibraryProducts final : public CudaProducts {
 public:
  // The library, the plain products and the log outlive it. Throws Error(device).
  LibraryProducts(const CublasLt& library, TiledProducts& plain, uint64_t workspace_bytes, Log& log);
  ~LibraryProducts() override;

  ProductMemory take_memory(const ProductShape& shape, const ProductTypes& types,
                            StackArena& arena) const override {
    return take_library_memory(shape, types, workspace_bytes_, arena);
  }
  // The workspace has the size that was given to the constructor; scratch may have any size.
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
  // Everything on which the choice of an algorithm depends.
  struct Question {
    uint64_t rows, columns, depth, a_stride, b_stride, stride;
    uint32_t a_alignment, b_alignment, alignment, bias_alignment;  // bias_alignment is 0 without a bias
    DataType a_type, b_type, type;
    bool a_transposed, b_transposed;
    auto operator<=>(const Question&) const = default;
  };
  struct Answer;
  // A message that the log already has.
  struct Said {
    uint64_t rows, columns, depth;
    DataType a_type, b_type, type;
    const char* reason;
    auto operator<=>(const Said&) const = default;
  };

  // Returns false, with a message in the log, if the library does not do the product.
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
