#include <terrace/memory/cuda/internal/cuda_file_calls.h>

#include <algorithm>
#include <cerrno>
#include <exception>

#include <terrace/base/assert.h>

namespace terrace {

void CudaFills::set(const CudaFill& fill) {
  const MutexLock lock(mutex_);
  const auto place = std::ranges::lower_bound(fills_, fill.home, {}, &CudaFill::home);
  if (place != fills_.end() && place->home == fill.home) {
    *place = fill;
  } else {
    fills_.insert(place, fill);
  }
}

CudaFill CudaFills::at(const std::byte* address) const {
  const MutexLock lock(mutex_);
  const auto next = std::ranges::upper_bound(fills_, address, {}, &CudaFill::home);
  TERRACE_ASSERT(next != fills_.begin() && address < std::prev(next)->home + std::prev(next)->bytes,
                 "a file is read to where no slot is");
  return *std::prev(next);
}

CudaFileCalls::~CudaFileCalls() {
  const MutexLock lock(mutex_);
  for (const File& file : files_) cu_file_.calls().handle_deregister(file.handle);
}

bool CudaFileCalls::register_file(int fd) {
  cu_file::Descriptor descriptor = {};
  descriptor.type = cu_file::kFileDescriptor;
  descriptor.file.fd = fd;
  cu_file::Handle handle = nullptr;
  const CudaContext context(gpu_);
  const cu_file::Status status = cu_file_.calls().handle_register(&handle, &descriptor);
  if (status.file_error != 0) {
    refusal_ = cu_file_reason(status, "cuFileHandleRegister");
    return false;
  }
  const MutexLock lock(mutex_);
  files_.push_back({fd, handle});
  return true;
}

void CudaFileCalls::unregister_file(int fd) {
  const MutexLock lock(mutex_);
  const auto file = std::ranges::find(files_, fd, &File::fd);
  TERRACE_ASSERT(file != files_.end(), "a file is unregistered that was not registered");
  cu_file_.calls().handle_deregister(file->handle);
  files_.erase(file);
}

cu_file::Handle CudaFileCalls::handle_of(int fd) const {
  const MutexLock lock(mutex_);
  const auto file = std::ranges::find(files_, fd, &File::fd);
  TERRACE_ASSERT(file != files_.end(), "a file is read that was not registered");
  return file->handle;
}

int64_t CudaFileCalls::move(const io::Piece& piece) noexcept {
  TERRACE_ASSERT(piece.kind == io::OpKind::read, "files are written through the host");
  const CudaFill fill = fills_.at(piece.data);
  if (fill.after != nullptr) {
    fill.after->wait_done();
    if (fill.after->failed()) return -ECANCELED;
  }
  try {
    return read(piece, fill);
  } catch (const std::exception& failure) {
    try {
      gpu_.log().warning_once(failure.what());  // the transfer itself can only report a number
    } catch (const std::exception&) {
      // Without memory for a line the failure cannot be told to anybody.
    }
    return -ENODEV;
  }
}

int64_t CudaFileCalls::read(const io::Piece& piece, const CudaFill& fill) {
  const CudaContext context(gpu_);
  gpu_.driver().check(gpu_.driver().event_synchronize(fill.order->event.get()),
                      "cuEventSynchronize before a file is read", fill.order->subject);
  errno = 0;
  const ssize_t moved = cu_file_.calls().read(handle_of(piece.fd), fill.home, piece.bytes,
                                              static_cast<off_t>(piece.offset), piece.data - fill.home);
  if (moved != -1) return moved;  // cuFile's own errors are negated numbers above those of the system
  return errno != 0 ? -static_cast<int64_t>(errno) : -EIO;
}

}  // namespace terrace
