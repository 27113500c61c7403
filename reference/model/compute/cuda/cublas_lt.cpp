#include <terrace/reference/model/compute/cuda/cublas_lt.h>

#include <terrace/base/shared_library.h>

namespace terrace {
namespace {

struct Library {
  const char* name;
  int cuda;  // whose driver it needs, or that of a later one
};
constexpr Library kLibraries[] = {{"libcublasLt.so.13", 13}, {"libcublasLt.so.12", 12}};

}  // namespace

std::unique_ptr<const CublasLt> CublasLt::load(const std::string& library) {
  const SharedLibrary loaded(library);
  if (!loaded.reason().empty()) {
    throw Error(ErrorKind::device, {"cannot load cuBLASLt", library, loaded.reason(),
                                    "install cuBLAS 12 or 13, or go on without it"});
  }
  auto calls = std::make_unique<CublasLt>();
  const auto find = [&](auto& call, const char* symbol) {
    if (loaded.find(call, symbol)) return;
    throw Error(ErrorKind::device, {"cannot use cuBLASLt", library, std::string("it lacks ") + symbol,
                                    "install cuBLAS 12 or 13, or go on without it"});
  };
#define TERRACE_CUBLAS_LT_FIND(member, symbol, result, parameters) find(calls->member, #symbol);
  TERRACE_CUBLAS_LT_CALLS(TERRACE_CUBLAS_LT_FIND)
#undef TERRACE_CUBLAS_LT_FIND
  return calls;
}

CublasLtFound CublasLt::find_installed(int driver_version) {
  CublasLtFound found;
  for (const Library& library : kLibraries) {
    std::string reason =
        std::string(library.name) + " needs a driver for CUDA " + std::to_string(library.cuda) + " or later";
    try {
      if (driver_version >= library.cuda * 1000) return {load(library.name), ""};
    } catch (const Error& error) {
      reason = std::string(library.name) + ": " + error.parts().reason;
    }
    found.reason += (found.reason.empty() ? "" : "; ") + reason;
  }
  return found;
}

std::string CublasLt::version_text() const {
  const size_t number = version();  // 120405 is 12.4.5
  return std::to_string(number / 10000) + "." + std::to_string(number / 100 % 100) + "." +
         std::to_string(number % 100);
}

std::string CublasLt::reason(cublas_lt::Status status, std::string_view call) const {
  const char* const text = status_text(status);
  return std::string(call) + ": " + (text != nullptr ? text : "no description") + " (status " +
         std::to_string(status) + ")";
}

void CublasLt::check(cublas_lt::Status status, std::string_view call, const std::string& subject) const {
  if (status == cublas_lt::kSuccess) return;
  throw Error(ErrorKind::device,
              {"a call of cuBLASLt failed for", subject, reason(status, call),
               "dmesg may say more (lines with NVRM or Xid); start the run again, it resumes from its last "
               "commit or checkpoint"});
}

}  // namespace terrace
