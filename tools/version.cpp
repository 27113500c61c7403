#include "version.h"

#include <fmt/format.h>
#include <hwy/highway.h>
#include <tbb/version.h>
#include <xxhash.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace terrace {
namespace {

constexpr const char* kCompiler =
#ifdef __clang__
    "Clang " __clang_version__;
#else
    "GCC " __VERSION__;
#endif
constexpr const char* kKernels =
#ifdef TERRACE_CUDA_KERNELS
    "with CUDA kernels";
#else
    "without CUDA kernels";
#endif

}  // namespace

std::string version_text() {
  return fmt::format(
      "terrace " TERRACE_VERSION
      "\nbuilt by {} as {}, {}\nlibraries: oneTBB {}, Highway {}.{}.{}, PCRE2 {}.{}, fmt {}.{}.{}, xxHash "
      "{}.{}.{}",
      kCompiler, TERRACE_BUILD_TYPE, kKernels, TBB_VERSION_STRING, HWY_MAJOR, HWY_MINOR, HWY_PATCH,
      PCRE2_MAJOR, PCRE2_MINOR, FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100,
      XXH_VERSION_MAJOR, XXH_VERSION_MINOR, XXH_VERSION_RELEASE);
}

}  // namespace terrace
