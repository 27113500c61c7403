#include <terrace/base/error.h>
#include <terrace/reference/data/internal/data_errors.h>

namespace terrace::data {

void cannot_read(const std::filesystem::path& path, const Reason& reason, const Wording& advice) {
  throw Error(ErrorKind::io, {"cannot read the training data", path.string(), reason, advice});
}

void cannot_use(const std::filesystem::path& path, const Reason& reason, const Wording& advice) {
  throw Error(ErrorKind::config, {"cannot train on", path.string(), reason, advice});
}

void cannot_use_special(const std::filesystem::path& path, const std::filesystem::file_status& status,
                        const std::string& advice) {
  if (std::filesystem::is_fifo(status))
    cannot_use(path, "it is a pipe, and training data are read more than once, from any place",
               "write what comes out of it to a file, and name that");
  cannot_use(path, "it is neither a regular file nor a folder", advice);
}

}  // namespace terrace::data
