// The arithmetic of the host back end as a table of plain functions, one table per instruction set.
//
// The files that fill a table are compiled with wider instructions than the rest of the program. They must
// never use a function or template that another file also instantiates (the standard library's included): the
// linker keeps one copy, and a copy made of AVX-512 instructions would end the program on a machine without
// them. So this header names nothing but plain types.
//
// Numbers. Everything here runs on one thread and depends on its arguments alone. Sums over a row use 16
// lanes and one fixed tree. Products of matrices are those of optimizer_cpu/products.
#pragma once

#include <cstdint>

#include <terrace/optimizer_cpu/products/format.h>

namespace terrace::compute {

using kernels::Format;

// The most columns that column_sums and its kin take at once.
inline constexpr uint64_t kColumnSlab = 64;

struct Kernels {
  // Any format -> fp32.
  void (*widen)(const void* from, Format format, float* to, uint64_t count);
  // Writes a finished contribution into a gradient: to = from, or to = to + from, rounded once.
  void (*land)(const float* from, void* to, Format format, bool accumulate, uint64_t count);
  // to = a + b; `to` may be `a` or `b`.
  void (*add)(const float* a, const float* b, float* to, uint64_t count);
  float (*dot)(const float* a, const float* b, uint64_t count);

  // y = (x - mean) / sqrt(variance + epsilon) * gamma + beta.
  void (*norm_row)(const float* x, const float* gamma, const float* beta, float* y, uint64_t count,
                   float epsilon, float* mean, float* inverse_deviation);
  // dx += the gradient of norm_row.
  void (*norm_row_backward)(const float* dy, const float* x, const float* gamma, float mean,
                            float inverse_deviation, float* dx, uint64_t count);
  // sums[j] = sum over rows of x[row, j]; columns <= kColumnSlab.
  void (*column_sums)(const float* x, uint64_t stride, uint64_t rows, uint64_t columns, float* sums);
  // The sums of dy * normalised x and of dy over rows; columns <= kColumnSlab.
  void (*norm_column_sums)(const float* dy, const float* x, uint64_t stride, const float* means,
                           const float* inverse_deviations, uint64_t rows, uint64_t columns,
                           float* gamma_sums, float* beta_sums);

  // y = x * inverse_root * gamma with inverse_root = 1 / sqrt(mean of squares + epsilon).
  void (*rms_row)(const float* x, const float* gamma, float* y, uint64_t count, float epsilon,
                  float* inverse_root);
  // dx += the gradient of rms_row.
  void (*rms_row_backward)(const float* dy, const float* x, const float* gamma, float inverse_root, float* dx,
                           uint64_t count);
  // The sums of dy * normalised x over rows; columns <= kColumnSlab.
  void (*rms_column_sums)(const float* dy, const float* x, uint64_t stride, const float* inverse_roots,
                          uint64_t rows, uint64_t columns, float* gamma_sums);
  // Turns the pairs (x[i], x[half + i]) by their angles; `direction` is 1, or -1 for the inverse.
  void (*rotate)(float* x, const float* cosines, const float* sines, float direction, uint64_t half);
  // y = silu(gate) * up with silu(v) = v / (1 + exp(-v)).
  void (*swiglu)(const float* gate, const float* up, float* y, uint64_t count);
  // dy becomes the gradient of `gate`.
  void (*swiglu_backward)(const float* gate, const float* up, float* dy, float* dup, uint64_t count);

  // GELU in the tanh form of GPT-2.
  void (*gelu)(const float* x, float* y, uint64_t count);
  // dy becomes dx.
  void (*gelu_backward)(const float* x, float* dy, uint64_t count);

  float (*maximum)(const float* x, uint64_t count);
  float (*sum)(const float* x, uint64_t count);
  // x = x * factor in place.
  void (*scale)(float* x, float factor, uint64_t count);
  // The sum of exp(x - shift).
  float (*sum_of_exp)(const float* x, float shift, uint64_t count);
  // x = exp(x * factor - shift) in place.
  void (*exp_row)(float* x, float factor, float shift, uint64_t count);
  // x = exp(x * factor - shift) = p; dp = p * (dp - dot) * factor.
  void (*softmax_backward)(float* x, float* dp, float factor, float shift, float dot, uint64_t count);
};

extern const Kernels kernels_scalar;
#if defined(__x86_64__)
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;
#endif

}  // namespace terrace::compute
