// What is declared of NCCL beside its header, where that is found, and how a library is loaded.
#include <gtest/gtest.h>

#include <type_traits>

#include <terrace/base/error.h>
#include <terrace/comm/nccl/nccl_calls.h>

#include "support/expect_error.h"

#if __has_include(<nccl.h>)
#include <nccl.h>

namespace terrace {
namespace {

// Arguments and results that are passed in the same way: pointers, or values of one size and alignment.
template <typename Ours, typename Theirs>
constexpr bool kPassedAlike =
    sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs) &&
    std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>&& std::is_class_v<Ours> == std::is_class_v<Theirs>;
template <typename Ours, typename Theirs>
constexpr bool kCalledAlike = false;
template <typename OurResult, typename... Ours, typename TheirResult, typename... Theirs>
requires(sizeof...(Ours) ==
         sizeof...(Theirs)) constexpr bool kCalledAlike<OurResult (*)(Ours...), TheirResult (*)(Theirs...)> =
    kPassedAlike<OurResult, TheirResult> && (kPassedAlike<Ours, Theirs> && ...);

#define TERRACE_NCCL_COMPARE(member, symbol, result, parameters) \
  static_assert(kCalledAlike<decltype(NcclCalls::member), decltype(&::symbol)>, #symbol);
TERRACE_NCCL_CALLS(TERRACE_NCCL_COMPARE)
#undef TERRACE_NCCL_COMPARE
#if NCCL_VERSION_CODE >= 21300
static_assert(kCalledAlike<decltype(NcclCalls::last_error), decltype(&::ncclGetLastError)>);
static_assert(nccl::kInProgress == ncclInProgress);
#endif

static_assert(sizeof(nccl::UniqueId) == sizeof(ncclUniqueId) &&
              sizeof(nccl::UniqueId) == NCCL_UNIQUE_ID_BYTES);
static_assert(nccl::kSuccess == ncclSuccess && nccl::kBytes == ncclUint8);

TEST(Nccl, IsDeclaredAsItsHeaderHasIt) {
  SUCCEED();  // or this would not have been compiled
}

}  // namespace
}  // namespace terrace
#else
TEST(Nccl, IsDeclaredAsItsHeaderHasIt) {
  GTEST_SKIP() << "nccl.h was not found; TERRACE_NCCL_INCLUDE says where it is";
}
#endif

namespace terrace {
namespace {

TEST(Nccl, SaysWhichCallALibraryLacks) {
  testing::expect_error(ErrorKind::config, {"libm.so.6", "it lacks ncclGetVersion", "host memory"},
                        [] { NcclCalls::load("libm.so.6"); });
  testing::expect_error(ErrorKind::config, {"libterrace-no-such-library.so", "No such file"},
                        [] { NcclCalls::load("libterrace-no-such-library.so"); });
}

TEST(Nccl, CountsVersionsInBothWays) {
  EXPECT_EQ(nccl_version_text(2708), "2.7.8");
  EXPECT_EQ(nccl_version_text(21903), "2.19.3");
}

}  // namespace
}  // namespace terrace
