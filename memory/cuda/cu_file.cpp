#include <terrace/memory/cuda/cu_file.h>

#include <algorithm>
#include <iterator>

#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/base/shared_library.h>
#include <terrace/memory/cuda/internal/cu_file_calls.h>

namespace terrace {
namespace {

struct KnownError {
  int error;
  const char* words;
};

// These are the errors that a run is likely to meet; cuFile's own log (cufile.log) has more.
constexpr KnownError kKnownErrors[] = {
    {5001, "its kernel module nvidia-fs is not loaded, and cufile.json forbids going without it"},
    {5004, "its kernel module nvidia-fs is of another version"},
    {5007, "this machine is not supported"},
    {5008, "the file system of this file is not supported"},
    {5009, "this GPU is not supported"},
    {5010, "its kernel module nvidia-fs failed"},
    {cu_file::kDriverError, "a call of the CUDA driver failed"},
    {5013, "this kind of GPU memory is not supported"},
    {5018, "this kind of file is not supported"},
    {5020, "the file was not opened with O_DIRECT"},
    {5025, "access to the file or the driver is not permitted"},
    {5027, "the file is not registered"},
    {5028, "the file is registered already"},
    {5034, "cufile.json forbids it for this file"},
    {5036, "no GPU memory could be pinned"},
    {5044, "the transfer failed"},
};

}  // namespace

std::string cu_file_reason(int error, std::string_view call) {
  const auto* const known = std::ranges::find(kKnownErrors, error, &KnownError::error);
  return std::string(call) + ": " + (known != std::end(kKnownErrors) ? known->words : "cuFile failed") +
         " (" + std::to_string(error) + ")";
}

std::string cu_file_reason(const cu_file::Status& status, std::string_view call) {
  std::string reason = cu_file_reason(status.file_error, call);
  if (status.file_error == cu_file::kDriverError)
    reason += ", CUDA error " + std::to_string(status.driver_error);
  return reason;
}

std::unique_ptr<const CuFileCalls> CuFileCalls::load(const std::string& library) {
  const Wording kAdvice =
      "install GPUDirect Storage (cuFile 1.7 or later), or set " + Option::reads_past_host + " to false";
  const SharedLibrary loaded(library);
  if (!loaded.reason().empty())
    throw Error(ErrorKind::device, {"cannot load cuFile", library, loaded.reason(), kAdvice});
  auto calls = std::make_unique<CuFileCalls>();
  const auto find = [&](auto& call, const char* symbol) {
    if (loaded.find(call, symbol)) return;
    throw Error(ErrorKind::device,
                {"cannot use cuFile", library, std::string("it lacks ") + symbol, kAdvice});
  };
#define TERRACE_CU_FILE_FIND(member, symbol, result, parameters) find(calls->member, #symbol);
  TERRACE_CU_FILE_CALLS(TERRACE_CU_FILE_FIND)
#undef TERRACE_CU_FILE_FIND
  return calls;
}

CuFile::CuFile(const CuFileCalls& calls) : calls_(calls) {
  const cu_file::Status status = calls_.driver_open();
  closes_ = status.file_error == 0;
  if (closes_ || status.file_error == cu_file::kAlreadyOpen) return;  // the program may have opened it
  throw Error(
      ErrorKind::device,
      {"cannot open the driver of", "cuFile", cu_file_reason(status, "cuFileDriverOpen"),
       "cufile.log says more, and so does gdscheck; or set " + Option::reads_past_host + " to false"});
}

// A driver that cannot be closed is closed by the end of the process.
CuFile::~CuFile() {
  if (closes_) calls_.driver_close();
}

CuFileFacts probe_cu_file(const std::string& library) {
  const SharedLibrary loaded(library);
  if (!loaded.reason().empty()) return {.version = {}, .reason = library + ": " + loaded.reason()};
  decltype(CuFileCalls::version) get_version = nullptr;
  if (!loaded.find(get_version, "cuFileGetVersion"))
    return {.version = {}, .reason = library + " is older than 1.7: it lacks cuFileGetVersion"};
  int version = 0;  // 1000 per major version, 10 per minor one
  if (const cu_file::Status status = get_version(&version); status.file_error != 0)
    return {.version = {},
            .reason = "cuFileGetVersion of " + library + " failed: " + std::to_string(status.file_error)};
  return {.version = std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10),
          .reason = {}};
}

}  // namespace terrace
