#include <terrace/runtime/checkpoint/ranks_save.h>

#include <exception>
#include <string_view>

#include <terrace/base/error.h>
#include <terrace/runtime/checkpoint/internal/save_steps.h>

namespace terrace {
namespace {

enum class Wanted : uint8_t { states, frozen, values, nothing, failed };

constexpr std::string_view kNextPart = "the next part of what is saved";

// Hands bytes on until the sink fails, and keeps the failure: the ranks that bring them do not stop halfway.
class PatientSink {
 public:
  template <typename... Bytes>
  void operator()(const auto& sink, const Bytes&... bytes) {
    if (failure_ != nullptr) return;
    try {
      sink(bytes...);
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
  void throw_failure() const {
    if (failure_ != nullptr) std::rethrow_exception(failure_);
  }

 private:
  std::exception_ptr failure_;
};

// Which tensors the first rank wants, by TensorId.
std::vector<uint8_t> wanted_by_first(std::vector<uint8_t> mine, const WatchedVotes& ranks) {
  const size_t count = mine.size();
  mine = ranks.of_all(kNextPart, std::span<const uint8_t>(mine));
  mine.resize(count);
  return mine;
}

}  // namespace

void RanksSource::read_states(Sink sink) {
  ranks_.of_first(kNextPart, Wanted::states);
  PatientSink patient;
  own_.read_states([&](std::span<const std::byte> bytes) { patient(sink, bytes); });
  patient.throw_failure();
}

void RanksSource::read_frozen(Sink sink) {
  ranks_.of_first(kNextPart, Wanted::frozen);
  PatientSink patient;
  own_.read_frozen([&](std::span<const std::byte> bytes) { patient(sink, bytes); });
  patient.throw_failure();
}

void RanksSource::read_values(TrainingState::Wanted wanted, TrainingState::ValueSink sink) {
  ranks_.of_first(kNextPart, Wanted::values);
  std::vector<uint8_t> tensors(space_.tensor_count());
  for (uint32_t t = 0; t < tensors.size(); ++t) tensors[t] = wanted(TensorId{t}) ? 1 : 0;
  wanted_by_first(tensors, ranks_);
  PatientSink patient;
  offloader_.state().export_values(wanted,
                                   [&](TensorId tensor, uint64_t first, std::span<const float> values) {
                                     patient(sink, tensor, first, values);
                                   });
  patient.throw_failure();
}

void RanksSource::end(bool well) const {
  ranks_.of_first(kNextPart, well ? Wanted::nothing : Wanted::failed);
}

std::filesystem::path save_of_ranks(const CheckpointFolder& folder, const CheckpointInfo& info,
                                    const FlatSpace& space, Offloader& offloader, const WatchedVotes& ranks,
                                    Log& log) {
  RanksSource source(offloader, space, ranks);
  return source.read_by([&] {
    return checkpoint::save_checkpoint(folder, info, source, log, {true, [](checkpoint::SaveMoment) {}});
  });
}

void follow_save(Offloader& offloader, const FlatSpace& space, const WatchedVotes& ranks) {
  const auto drop = [](std::span<const std::byte>) {};
  OffloaderSource own(offloader, space);
  for (;;) {
    switch (ranks.of_first(kNextPart, Wanted::nothing)) {
      case Wanted::states:
        own.read_states(drop);
        break;
      case Wanted::frozen:
        own.read_frozen(drop);
        break;
      case Wanted::values: {
        const std::vector<uint8_t> tensors =
            wanted_by_first(std::vector<uint8_t>(space.tensor_count()), ranks);
        offloader.state().export_values([&](TensorId tensor) { return tensors[index_of(tensor)] != 0; },
                                        [](TensorId, uint64_t, std::span<const float>) {});
        break;
      }
      case Wanted::nothing:
        return;
      case Wanted::failed:
        throw Error(ErrorKind::peer, {"nothing was saved", "of this step",
                                      "the first rank could not write it", "see what that rank says"});
    }
  }
}

}  // namespace terrace
