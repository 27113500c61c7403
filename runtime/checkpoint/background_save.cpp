#include <terrace/runtime/checkpoint/background_save.h>

#include <terrace/base/error.h>
#include <terrace/runtime/checkpoint/internal/save_steps.h>

namespace terrace {
namespace {

// Ends a save between two runs of bytes.
class Cancellable final : public StateSource {
 public:
  Cancellable(StateSource& source, const std::atomic<bool>& cancelled)
      : source_(source), cancelled_(cancelled) {}

  const FlatSpace& space() const override { return source_.space(); }
  RecordLayout layout() const override { return source_.layout(); }
  uint64_t states_bytes() const override { return source_.states_bytes(); }
  uint64_t frozen_bytes() const override { return source_.frozen_bytes(); }
  void read_states(Sink sink) override {
    source_.read_states([&](std::span<const std::byte> bytes) { pass(bytes, sink); });
  }
  void read_frozen(Sink sink) override {
    source_.read_frozen([&](std::span<const std::byte> bytes) { pass(bytes, sink); });
  }
  bool clone_states(int fd) override { return source_.clone_states(fd); }
  bool clone_frozen(int fd) override { return source_.clone_frozen(fd); }

 private:
  void pass(std::span<const std::byte> bytes, Sink sink) const {
    if (cancelled_) {
      throw Error(ErrorKind::cancelled,
                  {"the checkpoint was given up", "", "the run ended before it was saved",
                   "earlier checkpoints are as they were"});
    }
    sink(bytes);
  }

  StateSource& source_;
  const std::atomic<bool>& cancelled_;
};

}  // namespace

BackgroundSave::BackgroundSave(const CheckpointFolder& folder, CheckpointInfo info,
                               std::unique_ptr<StateSource> source, Log& log)
    : folder_(folder), info_(std::move(info)), source_(std::move(source)), log_(log), thread_([this] {
        save();
      }) {}

BackgroundSave::~BackgroundSave() {
  cancelled_ = true;
  if (thread_.joinable()) thread_.join();
}

void BackgroundSave::save() {
  try {
    Cancellable source(*source_, cancelled_);
    saved_ = checkpoint::save_checkpoint(folder_, info_, source, log_, {true, [](checkpoint::SaveMoment) {}});
  } catch (...) {
    failure_ = std::current_exception();
  }
  done_ = true;
}

std::filesystem::path BackgroundSave::finish() {
  thread_.join();
  source_.reset();
  if (failure_) std::rethrow_exception(failure_);
  return saved_;
}

}  // namespace terrace
