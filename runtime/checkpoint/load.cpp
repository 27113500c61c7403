#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include <terrace/aio/file.h>
#include <terrace/base/assert.h>
#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/base/progress.h>
#include <terrace/base/units.h>
#include <terrace/runtime/checkpoint/checkpoint.h>
#include <terrace/runtime/checkpoint/internal/folders.h>
#include <terrace/runtime/checkpoint/internal/manifest.h>
#include <terrace/runtime/checkpoint/internal/tensor_list.h>
#include <terrace/runtime/checkpoint/inventory.h>
#include <terrace/runtime/checkpoint/load_steps.h>
#include <terrace/runtime/checkpoint/moments_as.h>
#include <terrace/runtime/saved/block_file.h>

namespace terrace {

void require_tensors(const std::filesystem::path& where, const CheckpointInfo& saved, std::string_view model,
                     const FlatSpace& space) {
  if (saved.tensor_hash == hash_of_tensors(space)) return;
  throw Error(
      ErrorKind::config,
      {"cannot resume from the checkpoint", where.string(),
       fmt::format("it was saved of \"{}\" with {} parameters, and this run trains \"{}\": names, shapes, "
                   "data types, "
                   "order or trainability of their tensors differ, or which of them Muon trains",
                   saved.model, name_of(saved.type), model),
       "start with the model and the data type of the checkpoint, or save this run into another folder"});
}

namespace checkpoint {

Manifest read_manifest_of(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kManifestName;
  std::string text;
  try {
    text = io::read_whole_text(path, kMaxManifestBytes);
  } catch (const Error& failure) {
    throw Error(failure.kind(), {"cannot read the manifest", path.string(), failure.parts().why(),
                                 "resume from another checkpoint"});
  }
  Manifest manifest = parse_manifest(text, path);
  const std::string name = folder.filename().empty() ? folder.parent_path().filename() : folder.filename();
  const std::string replaced = saved::state_of_aside(state_kind(), name, saved::kReplacedSuffix);
  const std::optional<uint64_t> step = step_of(replaced.empty() ? name : replaced);
  if (!step || *step == manifest.info.step) return manifest;
  throw Error(ErrorKind::corrupt,
              {"cannot use the manifest", path.string(),
               fmt::format("it is of step {} and its folder is of another", manifest.info.step),
               "it was moved here: resume from another checkpoint"});
}

void require_same_moments(const std::filesystem::path& where, const RecordLayout& saved,
                          const RecordLayout& mine) {
  if (saved.moment_count == mine.moment_count) return;
  throw Error(ErrorKind::config,
              {"cannot resume from the checkpoint", where.string(),
               fmt::format("its optimizer states are {}, and those of this run's optimizer are {}",
                           text_of(saved), text_of(mine)),
               "resume with the optimizer of the run that saved it, or begin anew from its weights (`terrace "
               "export`, "
               "then " +
                   Option::weights + ")"});
}

void import_records(const RecordLayout& saved, FunctionRef<void(std::span<std::byte>)> read,
                    FunctionRef<void(uint64_t)> skip, Offloader& offloader) {
  MomentsAs records(saved, offloader.plan().record_layout.canonical());
  offloader.state().import_records([&](std::span<std::byte> tiles) { records.read(tiles, read); },
                                   [&](uint64_t bytes) { skip(records.saved_bytes(bytes)); });
}

void require_lengths(const std::filesystem::path& folder, const Manifest& manifest, uint64_t states_bytes,
                     uint64_t frozen_bytes) {
  if (manifest.states.bytes == states_bytes && manifest.frozen.bytes == frozen_bytes) return;
  throw Error(
      ErrorKind::corrupt,
      {"cannot resume from the checkpoint", folder.string(),
       fmt::format("it holds {} bytes of states and {} of frozen parameters, and its tensors make {} and {}",
                   manifest.states.bytes, manifest.frozen.bytes, states_bytes, frozen_bytes),
       "Terrace saves no such checkpoint: resume from another"});
}

}  // namespace checkpoint

using checkpoint::Manifest;
using saved::BlockReader;

CheckpointInfo read_checkpoint_info(const std::filesystem::path& path) {
  return checkpoint::read_manifest_of(checkpoint::find_checkpoint(path)).info;
}

namespace {

// Whether the data files have the bytes of this space, in its order.
bool lies_alike(const Manifest& manifest, const FlatSpace& space) {
  if (manifest.info.tensor_hash != hash_of_tensors(space)) return false;
  for (uint32_t t = 0; t < manifest.tensors.size(); ++t) {
    if (manifest.tensors[t].home != space.tensor(TensorId{t}).home) return false;
  }
  return true;
}

// Before the first byte of any state changes.
Manifest require_loadable(const std::filesystem::path& folder, std::string_view model, const FlatSpace& space,
                          const RecordLayout& layout) {
  Manifest manifest = checkpoint::read_manifest_of(folder);
  const std::vector<TensorSpec> mine = checkpoint::listed_tensors(space);
  const checkpoint::TensorMap tensor_map(manifest.tensors, mine);
  if (!tensor_map.difference().empty()) require_tensors(folder, manifest.info, model, space);
  if (const std::string& name = tensor_map.updated_otherwise(); !name.empty())
    throw Error(
        ErrorKind::config,
        {"cannot resume from the checkpoint", folder.string(),
         fmt::format("Muon trains \"{}\" in one of both, the run that saved it and this one, and AdamW "
                     "in the other: the moments of one mean nothing to the other",
                     name),
         "let the same tensors be matrices of Muon, or begin anew from the weights"});
  checkpoint::require_same_moments(folder, manifest.layout, layout);
  const SpaceLayout tensors = checkpoint::placed(manifest.tensors.empty() ? mine : manifest.tensors, folder);
  const auto [states_bytes, frozen_bytes] = checkpoint::data_bytes(tensors, manifest.layout);
  checkpoint::require_lengths(folder, manifest, states_bytes, frozen_bytes);
  return manifest;
}

// A data file from its first byte to its last, of which several ranks read what is theirs.
class OwnParts {
 public:
  OwnParts(const std::filesystem::path& path, const checkpoint::DataFile& file)
      : reader_(path, file), bytes_(file.bytes) {}

  void read(std::span<std::byte> destination) {
    if (std::exchange(is_behind_, false)) reader_.seek(at_);
    reader_.read(destination);
    at_ += destination.size();
  }
  void skip(uint64_t bytes) {
    at_ += bytes;
    is_behind_ = true;
  }
  bool at_end() const { return at_ == bytes_; }

 private:
  BlockReader reader_;
  const uint64_t bytes_;
  uint64_t at_ = 0;
  bool is_behind_ = false;  // the reader stands where bytes were skipped
};

// Every byte of the data files as it lies there, but for moments of another type.
void load_streams(const std::filesystem::path& folder, const Manifest& manifest, Offloader& offloader,
                  Log& log) {
  // Both are there and of the right size before the first byte of the state changes.
  OwnParts states(folder / checkpoint::kStatesName, manifest.states);
  std::optional<OwnParts> frozen;
  if (manifest.frozen.bytes > 0) frozen.emplace(folder / checkpoint::kFrozenName, manifest.frozen);

  ProgressReport progress(log, fmt::format("loading {}", folder.string()),
                          manifest.states.bytes + manifest.frozen.bytes);
  const auto from = [&](OwnParts& file) {
    return [&](std::span<std::byte> bytes) {
      file.read(bytes);
      progress.add(bytes.size());
    };
  };
  const auto over = [&](OwnParts& file) {
    return [&](uint64_t bytes) {
      file.skip(bytes);
      progress.add(bytes);
    };
  };
  checkpoint::import_records(manifest.layout, from(states), over(states), offloader);
  TERRACE_ASSERT(states.at_end(), "the offloader took fewer records than it has");
  if (frozen) {
    offloader.state().import_frozen(from(*frozen), over(*frozen));
    TERRACE_ASSERT(frozen->at_end(), "the offloader took fewer frozen parameters than it has");
  }
}

// Of tensors that count their own steps; others must have those of the run.
std::vector<uint64_t> tensor_steps(const std::filesystem::path& folder, const Manifest& manifest,
                                   const FlatSpace& space, bool count_their_own) {
  const CheckpointInfo& info = manifest.info;
  const auto skipped = info.loss_scaler.find("skipped_steps");
  const uint64_t updates = info.step - (skipped == info.loss_scaler.end() ? 0 : skipped->second);
  std::vector<uint64_t> steps(space.tensor_count(), updates);
  if (!info.tensor_steps.empty()) {
    const std::vector<TensorSpec> mine = checkpoint::listed_tensors(space);
    const checkpoint::TensorMap tensors(manifest.tensors, mine);
    for (uint32_t t = 0; t < steps.size(); ++t) {
      if (tensors.is_padding(TensorId{t})) continue;
      tensors.for_each_piece(TensorId{t}, 0, 1, [&](TensorId from, uint64_t, uint64_t, uint64_t) {
        steps[t] = info.tensor_steps[index_of(from)];
      });
    }
  }
  for (uint32_t t = 0; t < steps.size() && !count_their_own; ++t) {
    if (!space.tensor(TensorId{t}).trainable || steps[t] == updates) continue;
    throw Error(ErrorKind::config,
                {"cannot resume from the checkpoint", folder.string(),
                 fmt::format("{} had {} of {} updates, and this run updates every tensor in every step",
                             space.tensor(TensorId{t}).name, steps[t], updates),
                 "go on where it was saved, or begin anew from its weights"});
  }
  return steps;
}

}  // namespace

void require_loadable_checkpoint(const std::filesystem::path& path, std::string_view model,
                                 const FlatSpace& space, const RecordLayout& layout) {
  const std::filesystem::path folder = checkpoint::find_checkpoint(path);
  require_loadable(folder, model, space, layout.canonical());
  verify_checkpoint(folder, [](const BadBlock& bad) {
    throw Error(bad.reason.error_number != 0 ? ErrorKind::io : ErrorKind::corrupt,
                {"cannot resume from the checkpoint", bad.file.string(),
                 fmt::format("{} at offset {}: ", bad.place, bad.offset) + bad.reason,
                 "resume from another checkpoint"});
  });
}

CheckpointInfo load_checkpoint(const std::filesystem::path& path, std::string_view model,
                               const FlatSpace& space, Offloader& offloader, Log& log) {
  const SteadyClock clock;
  const uint64_t begun_ns = clock.now_ns();
  const std::filesystem::path folder = checkpoint::find_checkpoint(path);
  const Manifest manifest =
      require_loadable(folder, model, space, offloader.plan().record_layout.canonical());

  if (manifest.layout != offloader.plan().record_layout.canonical())
    log.info(text_of_conversion(manifest.layout, offloader.plan().record_layout));
  const bool count_their_own = !offloader.state().tensor_steps().empty();
  const std::vector<uint64_t> steps = tensor_steps(folder, manifest, space, count_their_own);
  if (lies_alike(manifest, space)) {
    load_streams(folder, manifest, offloader, log);
  } else {
    checkpoint::load_by_name(folder, manifest, space, offloader);
  }
  if (count_their_own) offloader.state().set_tensor_steps(steps);
  log.info(fmt::format("resumed at step {} from {} ({} in {})", manifest.info.step, folder.string(),
                       format_bytes(manifest.states.bytes + manifest.frozen.bytes),
                       format_duration(clock.now_ns() - begun_ns)));
  return manifest.info;
}

}  // namespace terrace
