#include <terrace/runtime/train/checkpoint/ranks_save.h>

#include <exception>

#include <terrace/base/error.h>
#include <terrace/runtime/train/checkpoint/internal/save_steps.h>

namespace terrace {
namespace {

enum class Wanted : uint8_t { states, frozen, nothing, failed };

// Hands bytes on until the sink fails, and keeps the failure: the ranks that bring them do not stop halfway.
class PatientSink {
 public:
  explicit PatientSink(StateSource::Sink sink) : sink_(sink) {}
  void operator()(std::span<const std::byte> bytes) {
    if (failure_ != nullptr) return;
    try {
      sink_(bytes);
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
  void throw_failure() const {
    if (failure_ != nullptr) std::rethrow_exception(failure_);
  }

 private:
  StateSource::Sink sink_;
  std::exception_ptr failure_;
};

}  // namespace

void RanksSource::read_states(Sink sink) {
  ranks_.of_first(Wanted::states);
  PatientSink patient(sink);
  own_.read_states([&](std::span<const std::byte> bytes) { patient(bytes); });
  patient.throw_failure();
}

void RanksSource::read_frozen(Sink sink) {
  ranks_.of_first(Wanted::frozen);
  PatientSink patient(sink);
  own_.read_frozen([&](std::span<const std::byte> bytes) { patient(bytes); });
  patient.throw_failure();
}

void RanksSource::end(bool well) const {
  ranks_.of_first(well ? Wanted::nothing : Wanted::failed);
}

std::filesystem::path save_of_ranks(const CheckpointFolder& folder, const CheckpointInfo& info,
                                    const FlatSpace& space, Offloader& offloader, const RankVotes& ranks,
                                    Log& log) {
  CheckpointInfo whole = info;
  whole.tensor_hash = hash_of_tensors(space);
  RanksSource source(offloader, ranks);
  std::filesystem::path saved;
  try {
    saved = checkpoint::save_checkpoint(folder, whole, source, log, {true, [](checkpoint::SaveMoment) {}});
  } catch (const Error& failure) {
    if (failure.kind() != ErrorKind::peer) source.end(false);
    throw;
  }
  source.end(true);
  return saved;
}

void follow_save(Offloader& offloader, const RankVotes& ranks) {
  const auto drop = [](std::span<const std::byte>) {};
  OffloaderSource own(offloader);
  for (;;) {
    switch (ranks.of_first(Wanted::nothing)) {
      case Wanted::states:
        own.read_states(drop);
        break;
      case Wanted::frozen:
        own.read_frozen(drop);
        break;
      case Wanted::nothing:
        return;
      case Wanted::failed:
        throw Error(ErrorKind::peer, {"no checkpoint was saved", "of this step",
                                      "the first rank could not write it", "see what that rank says"});
    }
  }
}

}  // namespace terrace
