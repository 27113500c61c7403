// What is declared of cuBLASLt beside its header, where that is found, and beside the library, where that is
// installed: what needs no GPU of it takes what it is given.
#include <terrace/reference/model/compute/cuda/cublas_lt.h>

#include <gtest/gtest.h>

#include <climits>
#include <cstddef>
#include <string>
#include <type_traits>

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

namespace terrace {
namespace {

using namespace cublas_lt;

// Arguments that are passed in the same way: pointers, or numbers of one size.
template <typename Ours, typename Theirs>
constexpr bool kPassedAlike =
    sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>;
template <typename Ours, typename Theirs>
constexpr bool kCalledAlike = false;
template <typename OurResult, typename... Ours, typename TheirResult, typename... Theirs>
requires(sizeof...(Ours) ==
         sizeof...(Theirs)) constexpr bool kCalledAlike<OurResult (*)(Ours...), TheirResult (*)(Theirs...)> =
    kPassedAlike<OurResult, TheirResult> && (kPassedAlike<Ours, Theirs> && ...);

#define TERRACE_CUBLAS_LT_COMPARE(member, symbol, result, parameters) \
  static_assert(kCalledAlike<decltype(CublasLt::member), decltype(&::symbol)>, #symbol);
TERRACE_CUBLAS_LT_CALLS(TERRACE_CUBLAS_LT_COMPARE)
#undef TERRACE_CUBLAS_LT_COMPARE

static_assert(kSuccess == CUBLAS_STATUS_SUCCESS && kNotSupported == CUBLAS_STATUS_NOT_SUPPORTED);
static_assert(kComputeFp32 == CUBLAS_COMPUTE_32F);
static_assert(kTypeFp32 == CUDA_R_32F && kTypeFp16 == CUDA_R_16F && kTypeBf16 == CUDA_R_16BF);
static_assert(kAsStored == CUBLAS_OP_N && kTransposed == CUBLAS_OP_T &&
              sizeof(kAsStored) == sizeof(cublasOperation_t));
static_assert(kTransposeA == CUBLASLT_MATMUL_DESC_TRANSA && kTransposeB == CUBLASLT_MATMUL_DESC_TRANSB &&
              kEpilogue == CUBLASLT_MATMUL_DESC_EPILOGUE &&
              kBiasPointer == CUBLASLT_MATMUL_DESC_BIAS_POINTER && kEpilogueBias == CUBLASLT_EPILOGUE_BIAS);
static_assert(kMaxWorkspaceBytes == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES &&
              kReductionSchemeMask == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK &&
              kReduceInFp32 == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
static_assert(kMinAlignmentA == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES &&
              kMinAlignmentB == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES &&
              kMinAlignmentC == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES &&
              kMinAlignmentD == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t) &&
              sizeof(Heuristic) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(Heuristic, workspace_bytes) ==
                  offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize) &&
              offsetof(Heuristic, status) == offsetof(cublasLtMatmulHeuristicResult_t, state) &&
              offsetof(Heuristic, waves) == offsetof(cublasLtMatmulHeuristicResult_t, wavesCount));

TEST(CublasLt, IsDeclaredAsItsHeaderHasIt) {
  SUCCEED();  // or this would not have been compiled
}

}  // namespace
}  // namespace terrace
#else
TEST(CublasLt, IsDeclaredAsItsHeaderHasIt) {
  GTEST_SKIP() << "cublasLt.h was not found; TERRACE_CUBLAS_INCLUDE says where it is";
}
#endif

namespace terrace {
namespace {

using namespace cublas_lt;

TEST(CublasLt, TakesWhatItIsGivenWhereItIsInstalled) {
  const CublasLtFound found = CublasLt::find_installed(INT_MAX);
  const CublasLt* const library = found.library.get();
  if (library == nullptr) GTEST_SKIP() << found.reason;
  const std::string version = library->version_text();
  EXPECT_TRUE(version.starts_with("12.") || version.starts_with("13.")) << version;
  Description* description = nullptr;
  ASSERT_EQ(library->description_create(&description, kComputeFp32, kTypeFp32), kSuccess);
  const float* const bias = nullptr;
  EXPECT_EQ(library->description_set(description, kTransposeA, &kTransposed, sizeof(kTransposed)), kSuccess);
  EXPECT_EQ(library->description_set(description, kTransposeB, &kAsStored, sizeof(kAsStored)), kSuccess);
  EXPECT_EQ(library->description_set(description, kEpilogue, &kEpilogueBias, sizeof(kEpilogueBias)),
            kSuccess);
  EXPECT_EQ(library->description_set(description, kBiasPointer, &bias, sizeof(bias)), kSuccess);
  Layout* layout = nullptr;
  ASSERT_EQ(library->layout_create(&layout, kTypeBf16, 6, 4, 8), kSuccess);
  Preference* preference = nullptr;
  ASSERT_EQ(library->preference_create(&preference), kSuccess);
  const uint64_t workspace_bytes = 4096;
  EXPECT_EQ(
      library->preference_set(preference, kMaxWorkspaceBytes, &workspace_bytes, sizeof(workspace_bytes)),
      kSuccess);
  const uint32_t alignment = 16;
  for (const int attribute : {kMinAlignmentA, kMinAlignmentB, kMinAlignmentC, kMinAlignmentD})
    EXPECT_EQ(library->preference_set(preference, attribute, &alignment, sizeof(alignment)), kSuccess);
  EXPECT_EQ(library->preference_set(preference, kReductionSchemeMask, &kReduceInFp32, sizeof(kReduceInFp32)),
            kSuccess);
  EXPECT_EQ(library->preference_destroy(preference), kSuccess);
  EXPECT_EQ(library->layout_destroy(layout), kSuccess);
  EXPECT_EQ(library->description_destroy(description), kSuccess);
}

}  // namespace
}  // namespace terrace
