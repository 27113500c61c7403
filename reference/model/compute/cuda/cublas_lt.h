// CublasLt: the calls of cuBLASLt that Terrace uses, in a table that is filled at run time. The build needs
// no header of cuBLAS: this header declares the documented binary interface, which is the same in cuBLAS 12
// and 13, and a test compares it with cublasLt.h where that is found. CublasLt must never call anything by
// itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <terrace/base/error.h>

struct CUstream_st;

namespace terrace {

namespace cublas_lt {

using Status = int;
inline constexpr Status kSuccess = 0;
inline constexpr Status kNotSupported = 15;

inline constexpr int kComputeFp32 = 68;  // CUBLAS_COMPUTE_32F: sums in fp32, operands as they are
inline constexpr int kTypeFp32 = 0, kTypeFp16 = 2, kTypeBf16 = 14;  // CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF
inline constexpr int32_t kAsStored = 0, kTransposed = 1;            // CUBLAS_OP_N, CUBLAS_OP_T

// cublasLtMatmulDescAttributes_t
inline constexpr int kTransposeA = 3, kTransposeB = 4, kEpilogue = 7, kBiasPointer = 8;
inline constexpr uint32_t kEpilogueBias = 4;  // a value for each row of the (column-major) result
// cublasLtMatmulPreferenceAttributes_t
inline constexpr int kMaxWorkspaceBytes = 1, kReductionSchemeMask = 3;
inline constexpr int kMinAlignmentA = 5, kMinAlignmentB = 6, kMinAlignmentC = 7, kMinAlignmentD = 8;
// cublasLtReductionScheme_t: parts of the depth are added in fp32, in a step of their own. The schemes that
// the mask leaves out add them in the output and in its type.
inline constexpr uint32_t kReduceInFp32 = 2;

struct Algorithm {
  uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  size_t workspace_bytes;
  Status status;
  float waves;
  int reserved[4];
};

// Objects of the library, each only ever behind a pointer.
struct Handle;
struct Description;
struct Layout;
struct Preference;

}  // namespace cublas_lt

// CALL(member, symbol, result, parameters)
#define TERRACE_CUBLAS_LT_CALLS(CALL)                                                                      \
  CALL(version, cublasLtGetVersion, size_t, ())                                                            \
  CALL(status_text, cublasLtGetStatusString, const char*, (cublas_lt::Status))                             \
  CALL(create, cublasLtCreate, cublas_lt::Status, (cublas_lt::Handle**))                                   \
  CALL(destroy, cublasLtDestroy, cublas_lt::Status, (cublas_lt::Handle*))                                  \
  CALL(description_create, cublasLtMatmulDescCreate, cublas_lt::Status,                                    \
       (cublas_lt::Description**, int compute_type, int scale_type))                                       \
  CALL(description_destroy, cublasLtMatmulDescDestroy, cublas_lt::Status, (cublas_lt::Description*))       \
  CALL(description_set, cublasLtMatmulDescSetAttribute, cublas_lt::Status,                                 \
       (cublas_lt::Description*, int attribute, const void* value, size_t bytes))                          \
  CALL(layout_create, cublasLtMatrixLayoutCreate, cublas_lt::Status,                                       \
       (cublas_lt::Layout**, int type, uint64_t rows, uint64_t columns, int64_t stride))                   \
  CALL(layout_destroy, cublasLtMatrixLayoutDestroy, cublas_lt::Status, (cublas_lt::Layout*))               \
  CALL(preference_create, cublasLtMatmulPreferenceCreate, cublas_lt::Status, (cublas_lt::Preference**))    \
  CALL(preference_destroy, cublasLtMatmulPreferenceDestroy, cublas_lt::Status, (cublas_lt::Preference*))   \
  CALL(preference_set, cublasLtMatmulPreferenceSetAttribute, cublas_lt::Status,                            \
       (cublas_lt::Preference*, int attribute, const void* value, size_t bytes))                           \
  CALL(find, cublasLtMatmulAlgoGetHeuristic, cublas_lt::Status,                                            \
       (cublas_lt::Handle*, cublas_lt::Description*, cublas_lt::Layout * a, cublas_lt::Layout * b,         \
        cublas_lt::Layout * c, cublas_lt::Layout * d, cublas_lt::Preference*, int wanted,                  \
        cublas_lt::Heuristic* found, int* found_count))                                                    \
  CALL(multiply, cublasLtMatmul, cublas_lt::Status,                                                        \
       (cublas_lt::Handle*, cublas_lt::Description*, const void* alpha, const void* a, cublas_lt::Layout*, \
        const void* b, cublas_lt::Layout*, const void* beta, const void* c, cublas_lt::Layout*, void* d,   \
        cublas_lt::Layout*, const cublas_lt::Algorithm*, void* workspace, size_t workspace_bytes,          \
        CUstream_st*))

struct CublasLtFound;

struct CublasLt {
#define TERRACE_CUBLAS_LT_MEMBER(member, symbol, result, parameters) result(*member) parameters = nullptr;
  TERRACE_CUBLAS_LT_CALLS(TERRACE_CUBLAS_LT_MEMBER)
#undef TERRACE_CUBLAS_LT_MEMBER

  // Loads `library` and looks up every call; the library stays loaded until the process ends. Throws
  // Error(device) when it is not there or lacks a call.
  static std::unique_ptr<const CublasLt> load(const std::string& library);
  // Finds the newest installed library that a driver for this version of CUDA (as CudaFacts has it) can run.
  static CublasLtFound find_installed(int driver_version);

  std::string version_text() const;  // "12.4.5"
  // Returns "cublasLtMatmul: the function failed to launch on the GPU".
  std::string reason(cublas_lt::Status status, std::string_view call) const;
  // Throws Error(device) naming the call and `subject`, the product.
  void check(cublas_lt::Status status, std::string_view call, const std::string& subject) const;
};

struct CublasLtFound {
  std::unique_ptr<const CublasLt> library;
  std::string reason;  // why there is no library
};

}  // namespace terrace
