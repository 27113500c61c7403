#include <terrace/memory/cuda/cuda_file_reads.h>

#include <unistd.h>

#include <system_error>

#include <terrace/aio/file.h>
#include <terrace/base/error.h>
#include <terrace/memory/cuda/cu_file.h>
#include <terrace/memory/cuda/internal/cuda_file_calls.h>

namespace terrace {
namespace {

// Registers a file with cuFile that is opened as the files of a tier are. Returns why that fails, else
// nothing.
std::string why_not_in(const CudaGpu& gpu, const std::filesystem::path& folder) {
  const std::filesystem::path name = folder / (".terrace-gds-" + std::to_string(getpid()));
  const io::File file =
      io::File::open(name, {.access = io::FileAccess::read_write, .create = true, .direct = true});
  std::error_code ignored;
  std::filesystem::remove(name, ignored);  // the open file outlives its name
  if (!file.direct()) return "files in " + folder.string() + " have no direct I/O: " + file.direct_refusal();
  const CudaFills none;
  CudaFileCalls calls(gpu, gpu.cu_file(), none);
  if (calls.register_file(file.fd())) return "";
  return "files in " + folder.string() +
         " cannot be read by cuFile: " + std::string(calls.registration_refusal());
}

}  // namespace

std::string why_no_file_reads(const CudaGpu& gpu, std::span<const std::filesystem::path> folders) {
  try {
    gpu.cu_file();
    for (const std::filesystem::path& folder : folders) {
      if (std::string reason = why_not_in(gpu, folder); !reason.empty()) return reason;
    }
    return "";
  } catch (const Error& error) {
    return error.without_advice();
  }
}

}  // namespace terrace
