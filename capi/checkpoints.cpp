// terrace_run.h: the states of a store in a checkpoint.
#include <terrace_run.h>

#include <optional>
#include <span>
#include <string>

#include <terrace/base/text/json_writer.h>
#include <terrace/capi/limits.h>
#include <terrace/capi/ranks.h>
#include <terrace/capi/saved_states.h>
#include <terrace/capi/structs.h>
#include <terrace/optimizer_cpu/optimizer_table.h>
#include <terrace/runtime/checkpoint/checkpoint_streams.h>
#include <terrace/runtime/checkpoint/ranks_save.h>
#include <terrace/runtime/config/loss_scaler.h>

namespace terrace::c {
namespace {

// The name in CheckpointInfo::position that `terrace train` reads.
constexpr const char* kSamples = "consumed_samples";

CheckpointInfo info_of(const terrace_checkpoint& given, const terrace_store& store) {
  require_enum(given.precision, 3, kSaveState, "terrace_checkpoint.precision");
  require_enum(given.optimizer, kOptimizers.size(), kSaveState, "terrace_checkpoint.optimizer");
  require_zero(given.reserved, kSaveState, "terrace_checkpoint.reserved");
  if (given.run == 0)
    refuse(ErrorKind::config, kSaveState, "terrace_checkpoint.run", "it is 0", "draw a number");
  CheckpointInfo info;
  info.run_id = given.run;
  info.step = given.step;
  info.model = given.model != nullptr ? given.model : "a model";
  if (given.architecture != nullptr) info.architecture = given.architecture;
  info.type = static_cast<DataType>(given.precision);
  if (given.samples != 0 || given.step == 0) info.position[kSamples] = given.samples;
  info.settings[kOptimizerSetting] = json_quoted(kOptimizers[given.optimizer].key);
  if (given.loss_scale != nullptr) {
    const terrace_loss_scale_state now = taken(given.loss_scale, kSaveState, "terrace_checkpoint.loss_scale");
    Fp16Config unbounded;
    unbounded.hysteresis = now.hysteresis;
    LossScaler scaler(unbounded);
    scaler.restore({now.scale, now.hysteresis, now.good_steps, now.skipped_steps, now.skipped_in_a_row},
                   "terrace_checkpoint.loss_scale");
    info.loss_scaler = scaler.state();
  }
  const std::span<const uint64_t> steps = store.offloader->state().tensor_steps();
  info.tensor_steps.assign(steps.begin(), steps.end());
  return info;
}

CheckpointValues& values_of(terrace_state_reader& reader) {
  if (!reader.values) {
    reader.values.emplace(reader.path);
    if (reader.values->facts() != reader.reader.facts()) {
      reader.values.reset();
      refuse(ErrorKind::io, kLoadState, reader.path, "it was replaced by another one meanwhile",
             "load it again");
    }
  }
  return *reader.values;
}

// The first rank writes what all have, and the others bring it their part. Where that fails on the first one,
// for whatever reason, none of them waits.
void save_together(terrace_state_writer* writer, terrace_store& store, const terrace_checkpoint* checkpoint,
                   const Subject& action) {
  require_values(store, action);
  store.offloader->finish_update();
  const WatchedVotes votes(RankVotes(store.ranks->ranks.communicator()), store.offloader->watch());
  if (votes.rank() > 0) {
    if (writer != nullptr)
      misuse(kSaveState, "writer", "only the first rank writes a checkpoint", "give NULL on the others");
    return follow_save(*store.offloader, store.space, votes);
  }
  RanksSource source(*store.offloader, store.space, votes);
  source.read_by([&] {
    use_writer(writer, [&](terrace_state_writer& w) {
      const terrace_checkpoint given = taken(checkpoint, kSaveState, "checkpoint");
      w.facts = write_checkpoint_streams(w.writer, info_of(given, store), source);
    });
    return true;
  });
}

}  // namespace
}  // namespace terrace::c

using namespace terrace;  // NOLINT: the functions of C are in no namespace

terrace_error* terrace_state_checkpoint(terrace_state_writer* writer, terrace_store* store,
                                        const terrace_checkpoint* checkpoint) {
  constexpr Names kCall = TERRACE_CALL_AS(state_checkpoint, "engine.save_checkpoint");
  const auto save = [&](terrace_store& s) {
    if (s.ranks != nullptr) return c::save_together(writer, s, checkpoint, kCall);
    c::use_writer(writer, [&](terrace_state_writer& w) {
      const terrace_checkpoint given = c::taken(checkpoint, c::kSaveState, "checkpoint");
      c::require_values(s, kCall);
      OffloaderSource source(*s.offloader, s.space);
      w.facts = write_checkpoint_streams(w.writer, c::info_of(given, s), source);
    });
  };
  return c::in_store(store, kCall, save, c::Harmless::all);
}

terrace_error* terrace_state_values(terrace_state_reader* reader, uint32_t tensor, uint32_t what,
                                    uint64_t first, uint64_t count, float* values) {
  return c::answer([&] {
    c::require_pointer(reader, c::kLoadState, "reader");
    c::require_list(values, count, c::kLoadState, "values");
    c::require_enum(what, 4, c::kLoadState, "what");
    c::values_of(*reader).read(TensorId{tensor}, static_cast<ValueKind>(what), first,
                               {values, static_cast<size_t>(count)});
  });
}
