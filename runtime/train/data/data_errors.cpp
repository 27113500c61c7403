#include <terrace/base/error.h>
#include <terrace/runtime/train/data/internal/data_errors.h>

namespace terrace::data {

void cannot_read(const std::filesystem::path& path, const Reason& reason, const std::string& advice) {
  throw Error(ErrorKind::io, {"cannot read the training data", path.string(), reason, advice});
}

void cannot_use(const std::filesystem::path& path, const Reason& reason, const std::string& advice) {
  throw Error(ErrorKind::config, {"cannot train on", path.string(), reason, advice});
}

}  // namespace terrace::data
