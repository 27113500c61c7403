// NewtonSchulz: makes the step of Muon out of a whole matrix: a matrix near the orthogonal one that is
// nearest to it. With X of as many rows as columns or fewer (else its transpose), rows r:
//
//   n  = |u|, the Frobenius norm, at least eps, rounded to bf16
//   X  = u / n
//   in each iteration
//     G = X X^T
//     U = b * G + c * (G G)
//     X = a * X + U X
//   o  = X
//
// Every matrix here is bf16, rounded once when its element is known; products are summed in fp32, in the
// order of their ProductType, and n in double, row by row. So the bits depend on no thread and on no
// processor (with ProductType::fp32, on none that has fused multiply-add). Source: Jordan et al., Muon
// (2024), whose coefficients are MuonSettings'; the places of rounding are those of torch.optim.Muon.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <terrace/base/data_type.h>
#include <terrace/base/workers.h>
#include <terrace/optimizer_cpu/instruction_set.h>
#include <terrace/optimizer_cpu/optimizer.h>
#include <terrace/optimizer_cpu/products/products.h>

namespace terrace {

struct MatrixShape {
  uint64_t rows = 0;
  uint64_t columns = 0;
};

class NewtonSchulz {
 public:
  // For all workers. `set` must be supported here.
  NewtonSchulz(Workers& workers, InstructionSet set, ProductType type = ProductType::fp32);

  // The bytes of `work` for a matrix of this shape.
  static uint64_t work_bytes(const MatrixShape& shape);

  // Turns the row-major matrix from u into o, by settings.muon and settings.eps. `work` is aligned to 64
  // bytes.
  void run(const MatrixShape& shape, const OptimizerSettings& settings, Bf16* matrix,
           std::span<std::byte> work) const;

 private:
  struct Rooms;
  static Rooms rooms_in(const MatrixShape& shape, std::byte* work);
  // to = factor * from + of_product * (a product), element by element; without `from` the product alone. The
  // pointers are those of the product's first element.
  struct Sum {
    float factor, of_product;
    const Bf16* from;
    Bf16* to;
    uint64_t stride;
  };
  void iterate(const MuonSettings& settings, Rooms& rooms) const;
  void multiply(const ProductShape& shape, const Operand& a, const Operand& b, const Sum& sum) const;
  void multiply_symmetric(const ProductShape& shape, const Operand& a, const Operand& b,
                          const Sum& sum) const;
  void copy_divided(const MatrixShape& shape, const Bf16* matrix, float divisor, Bf16* to) const;
  void copy_back(const MatrixShape& shape, const Bf16* from, Bf16* matrix) const;
  float norm_of(const MatrixShape& shape, const Bf16* matrix, std::span<std::byte> work) const;

  Workers& workers_;
  const Products products_;
  std::vector<float> packing_;
  ProductScratch scratch_;
};

}  // namespace terrace
