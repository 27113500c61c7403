// What is declared of cuFile beside its header, where that is found, and beside the library, where that is
// installed.
#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

#include <terrace/memory/cuda/cu_file.h>
#include <terrace/memory/cuda/internal/cu_file_calls.h>

#include "support/expect_error.h"

#if __has_include(<cufile.h>)
#include <cufile.h>

namespace terrace {
namespace {

// Arguments and results that are passed in the same way: pointers, or values of one size and alignment.
template <typename Ours, typename Theirs>
constexpr bool passed_alike() {
  if constexpr (std::is_void_v<Ours> || std::is_void_v<Theirs>) {
    return std::is_void_v<Ours> == std::is_void_v<Theirs>;
  } else {
    return sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs) &&
           std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
           std::is_class_v<Ours> == std::is_class_v<Theirs>;
  }
}
template <typename Ours, typename Theirs>
constexpr bool kCalledAlike = false;
template <typename OurResult, typename... Ours, typename TheirResult, typename... Theirs>
requires(sizeof...(Ours) ==
         sizeof...(Theirs)) constexpr bool kCalledAlike<OurResult (*)(Ours...), TheirResult (*)(Theirs...)> =
    passed_alike<OurResult, TheirResult>() && (passed_alike<Ours, Theirs>() && ...);

#define TERRACE_CU_FILE_COMPARE(member, symbol, result, parameters) \
  static_assert(kCalledAlike<decltype(CuFileCalls::member), decltype(&::symbol)>, #symbol);
TERRACE_CU_FILE_CALLS(TERRACE_CU_FILE_COMPARE)
#undef TERRACE_CU_FILE_COMPARE

static_assert(offsetof(cu_file::Status, file_error) == offsetof(CUfileError_t, err) &&
              offsetof(cu_file::Status, driver_error) == offsetof(CUfileError_t, cu_err));
static_assert(sizeof(cu_file::Descriptor) == sizeof(CUfileDescr_t) &&
              offsetof(cu_file::Descriptor, file) == offsetof(CUfileDescr_t, handle) &&
              offsetof(cu_file::Descriptor, operations) == offsetof(CUfileDescr_t, fs_ops));
static_assert(cu_file::kFileDescriptor == CU_FILE_HANDLE_TYPE_OPAQUE_FD);
static_assert(kCuFileErrorBase == CUFILEOP_BASE_ERR && cu_file::kDriverError == CU_FILE_CUDA_DRIVER_ERROR &&
              cu_file::kAlreadyOpen == CU_FILE_DRIVER_ALREADY_OPEN);

TEST(CuFile, IsDeclaredAsItsHeaderHasIt) {
  SUCCEED();  // or this would not have been compiled
}

}  // namespace
}  // namespace terrace
#else
TEST(CuFile, IsDeclaredAsItsHeaderHasIt) {
  GTEST_SKIP() << "cufile.h was not found; TERRACE_CUFILE_INCLUDE says where it is";
}
#endif

namespace terrace {
namespace {

TEST(CuFile, HasEveryCallWhereItIsInstalled) {
  const CuFileFacts facts = probe_cu_file();
  if (facts.version.empty()) GTEST_SKIP() << facts.reason;
  EXPECT_NE(CuFileCalls::load(kCuFileLibrary)->read, nullptr);
}

TEST(CuFile, SaysWhichCallALibraryLacks) {
  testing::expect_error(ErrorKind::device, {"libm.so.6", "it lacks cuFileGetVersion"},
                        [] { CuFileCalls::load("libm.so.6"); });
  testing::expect_error(ErrorKind::device, {"libterrace-no-such-library.so", "No such file"},
                        [] { CuFileCalls::load("libterrace-no-such-library.so"); });
}

TEST(CuFile, SaysInWordsWhatFailedAndItsNumber) {
  EXPECT_EQ(cu_file_reason(5008, "cuFileHandleRegister"),
            "cuFileHandleRegister: the file system of this file is not supported (5008)");
  EXPECT_EQ(cu_file_reason(5999, "cuFileRead"), "cuFileRead: cuFile failed (5999)");
  EXPECT_EQ(cu_file_reason(cu_file::Status{5011, 2}, "cuFileDriverOpen"),
            "cuFileDriverOpen: a call of the CUDA driver failed (5011), CUDA error 2");
}

}  // namespace
}  // namespace terrace
