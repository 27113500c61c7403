#include "fake_cuda_file.h"

#include <unistd.h>

#include <cerrno>
#include <map>
#include <set>

#include "fake_cuda_state.h"

namespace terrace::testing {

struct FakeCuFile::State {
  std::mutex mutex;
  std::map<std::string, Failure> failures;
  std::set<int> files;
  uint64_t most_bytes = UINT64_MAX;
  std::function<void()> on_read;
  uint64_t reads = 0;
  uint64_t read_bytes = 0;
  bool is_open = false;
};

namespace {

FakeCuFile::State* fake = nullptr;

// The error that this call shall end with, or 0; the caller has the lock.
int take_failure(const char* call) {
  const auto found = fake->failures.find(call);
  if (found == fake->failures.end() || --found->second.left > 0) return 0;
  const int error = static_cast<int>(found->second.result);
  fake->failures.erase(found);
  return error;
}

cu_file::Status version(int* number) {
  *number = 1130;
  return {0, 0};
}

cu_file::Status driver_open() {
  const Lock lock(fake->mutex);
  const int error = take_failure("cuFileDriverOpen");
  fake->is_open = error == 0;
  return {error, 0};
}

cu_file::Status driver_close() {
  const Lock lock(fake->mutex);
  fake->is_open = false;
  return {0, 0};
}

// A handle is the descriptor, one above: null is none.
cu_file::Status handle_register(cu_file::Handle* handle, cu_file::Descriptor* descriptor) {
  const Lock lock(fake->mutex);
  if (const int error = take_failure("cuFileHandleRegister"); error != 0) return {error, 0};
  if (!fake->is_open || descriptor->type != cu_file::kFileDescriptor) return {5022, 0};
  if (!fake->files.insert(descriptor->file.fd).second) return {5028, 0};
  *handle = pointer(static_cast<uint64_t>(descriptor->file.fd) + 1);
  return {0, 0};
}

void handle_deregister(cu_file::Handle handle) {
  const Lock lock(fake->mutex);
  fake->files.erase(static_cast<int>(reinterpret_cast<uint64_t>(handle) - 1));
}

ssize_t fail_with(int error) {
  if (error > 5000) return -error;
  errno = error;
  return -1;
}

ssize_t read(cu_file::Handle handle, void* memory, size_t bytes, off_t file_offset, off_t memory_offset) {
  const int file = static_cast<int>(reinterpret_cast<uint64_t>(handle) - 1);
  const uint64_t address = reinterpret_cast<uint64_t>(memory) + static_cast<uint64_t>(memory_offset);
  std::function<void()> action;
  {
    const Lock lock(fake->mutex);
    ++fake->reads;
    action = fake->on_read;
    bytes = std::min<uint64_t>(bytes, fake->most_bytes);
    if (const int error = take_failure("cuFileRead"); error != 0) return fail_with(error);
    if (!fake->files.contains(file)) return fail_with(5027);
  }
  if (pushed_contexts == 0) return fail_with(5015);
  {
    const Lock lock(current->mutex);
    if (!current->is_accessible(address, bytes)) return fail_with(5012);
  }
  if (action) action();
  const ssize_t moved = pread(file, pointer(address), bytes, file_offset);
  const Lock lock(fake->mutex);
  if (moved > 0) fake->read_bytes += static_cast<uint64_t>(moved);
  return moved;
}

}  // namespace

FakeCuFile::FakeCuFile() : state_(std::make_unique<State>()) {
  fake = state_.get();
}
FakeCuFile::~FakeCuFile() {
  fake = nullptr;
}

std::unique_ptr<const CuFileCalls> FakeCuFile::table() {
  auto calls = std::make_unique<CuFileCalls>();
#define TERRACE_FAKE_FILE(member, symbol, result, parameters) calls->member = &member;
  TERRACE_CU_FILE_CALLS(TERRACE_FAKE_FILE)
#undef TERRACE_FAKE_FILE
  return calls;
}

void FakeCuFile::fail(const std::string& call, uint64_t nth, int error) {
  const Lock lock(state_->mutex);
  state_->failures[call] = {nth, static_cast<CUresult>(error)};
}

void FakeCuFile::read_at_most(uint64_t bytes) {
  const Lock lock(state_->mutex);
  state_->most_bytes = bytes;
}

void FakeCuFile::on_read(std::function<void()> action) {
  const Lock lock(state_->mutex);
  state_->on_read = std::move(action);
}

uint64_t FakeCuFile::reads() const {
  const Lock lock(state_->mutex);
  return state_->reads;
}

uint64_t FakeCuFile::read_bytes() const {
  const Lock lock(state_->mutex);
  return state_->read_bytes;
}

std::string FakeCuFile::leftovers() const {
  const Lock lock(state_->mutex);
  std::string text = state_->is_open ? "driver open" : "";
  if (!state_->files.empty()) text += ", " + std::to_string(state_->files.size()) + " files";
  return text;
}

}  // namespace terrace::testing
