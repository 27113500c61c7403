#include <terrace/memory/cu_file.h>

#include <terrace/base/shared_library.h>

namespace terrace {
namespace {

// CUfileError_t of cufile.h, and its one call that is used.
struct CuFileError {
  int file_error;  // 0: none
  int driver_error;
};
using GetVersion = CuFileError (*)(int*);

}  // namespace

CuFileFacts probe_cu_file(const std::string& library) {
  const SharedLibrary loaded(library);
  if (!loaded.reason().empty()) return {.version = {}, .reason = loaded.reason()};
  GetVersion get_version = nullptr;
  if (!loaded.find(get_version, "cuFileGetVersion"))
    return {.version = {}, .reason = library + " is older than 1.7: it lacks cuFileGetVersion"};
  int version = 0;  // 1000 for a major version, 10 for a minor one
  if (const CuFileError error = get_version(&version); error.file_error != 0)
    return {.version = {},
            .reason = "cuFileGetVersion of " + library + " failed: " + std::to_string(error.file_error)};
  return {.version = std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10),
          .reason = {}};
}

}  // namespace terrace
