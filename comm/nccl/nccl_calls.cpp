#include <terrace/comm/nccl/nccl_calls.h>

#include <fmt/format.h>

#include <utility>

#include <terrace/base/error.h>
#include <terrace/base/shared_library.h>

namespace terrace {
namespace {

Error nccl_refusal(std::string what, const std::string& library, std::string reason) {
  return Error(ErrorKind::config,
               {std::move(what), library, std::move(reason),
                "install NCCL 2.7 or newer where the loader of shared libraries finds it, or let ranks "
                "exchange through host memory"});
}

}  // namespace

// NCCL has counted in two ways: 2.7.8 is 2708, and 2.19.3 is 21903.
std::string nccl_version_text(int version) {
  const int major = version < 10000 ? 1000 : 10000;
  return fmt::format("{}.{}.{}", version / major, version % major / 100, version % 100);
}

std::unique_ptr<const NcclCalls> NcclCalls::load(const std::string& library) {
  const SharedLibrary loaded(library);
  if (!loaded.reason().empty()) throw nccl_refusal("cannot load NCCL", library, loaded.reason());
  auto calls = std::make_unique<NcclCalls>();
  const auto require = [&](bool is_found, const char* symbol) {
    if (!is_found) throw nccl_refusal("cannot use NCCL", library, std::string("it lacks ") + symbol);
  };
#define TERRACE_NCCL_FIND(member, symbol, result, parameters) \
  require(loaded.find(calls->member, #symbol), #symbol);
  TERRACE_NCCL_CALLS(TERRACE_NCCL_FIND)
#undef TERRACE_NCCL_FIND
  loaded.find(calls->last_error, "ncclGetLastError");
  int version = 0;
  if (const int result = calls->version(&version); result != nccl::kSuccess)
    throw nccl_refusal("cannot use NCCL", library, calls->reason(result, "ncclGetVersion", nullptr));
  if (version < nccl::kLeastVersion)
    throw nccl_refusal("cannot use NCCL", library, fmt::format("it is {}", nccl_version_text(version)));
  return calls;
}

std::string NcclCalls::reason(int result, std::string_view call, nccl::Comm comm) const {
  std::string text = fmt::format("{}: {} ({})", call, error_text(result), result);
  const char* const last = last_error != nullptr && comm != nullptr ? last_error(comm) : nullptr;
  if (last != nullptr && *last != '\0') text += fmt::format(": {}", last);
  return text;
}

}  // namespace terrace
