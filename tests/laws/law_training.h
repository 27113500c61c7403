// One training of the laws: a small model under a combination of factors, through an Offloader, a step at a
// time. On a fresh tier or taken up from a commit; with engines and files that a law may stand between; its
// calls from one thread or each from another.
#pragma once

#include <bit>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <terrace/base/log.h>
#include <terrace/base/workers.h>
#include <terrace/memory/device/simulated_device.h>
#include <terrace/offload/offloader.h>
#include <terrace/reference/model/compute/host_ops.h>
#include <terrace/reference/model/transformer/model.h>

#include "laws/factors.h"
#include "laws/other_part.h"
#include "laws/plain_training.h"
#include "laws/saved_inputs.h"
#include "support/changing_threads.h"
#include "support/lease_adapters.h"

namespace terrace::laws {

using DecorateEngine = std::function<std::unique_ptr<io::Engine>(std::unique_ptr<io::Engine>)>;

struct LawSurroundings {
  // Each path is a folder below it. Of several ranks each has its folder_of_rank().
  std::filesystem::path folder;
  TierStart start = TierStart::fresh;
  DecorateEngine decorate = nullptr;
  StepEvents* step_events = nullptr;
  Communicator* ranks = nullptr;  // this training's among as many ranks as the combination says
};

// What a combination says about the numbers, and nothing else of it.
Training training_of(const Combination& combination);
std::unique_ptr<Model> make_law_model(const Combination& combination);
// The folders of its tier below `folder`, made where they are missing.
std::vector<std::filesystem::path> tier_folders(const Combination& combination,
                                                const std::filesystem::path& folder);
// The folder of a rank's paths below `folder`; of one rank, that itself.
std::filesystem::path folder_of_rank(const Combination& combination, const std::filesystem::path& folder,
                                     uint32_t rank);
StepRounds rounds_of(const Combination& combination);
bool is_layer_major(const Combination& combination);

class LawTraining {
 public:
  // Started fresh, it is initialised; over a commit, that is of the first step of the same training. Throws
  // what the product throws.
  LawTraining(const Combination& combination, const LawSurroundings& surroundings);
  ~LawTraining();  // waits for a copy in progress

  // The update mode of the combination for the step that follows, where it is possible there.
  void choose_mode();
  // The next step. Appends the losses of its own micro-batches. `poisoned`: its gradients are not finite.
  UpdateResult step(std::vector<uint32_t>* losses = nullptr, bool poisoned = false);
  uint64_t completed_steps() const { return completed_; }

  // Where there are commits and this step is to be one.
  bool commits_now() const;
  void begin_commit();
  // The change of the host budget that is due after this step.
  void change_budget();
  // Copies the last commit in a thread of its own from now on, where that is wanted and possible, on the
  // first of several ranks the commit of all; whoever calls next waits for the copy of before and throws what
  // that failed with.
  void begin_save();
  void finish_save();
  // That copy: the step it is of, and records as state() has them; empty: none was made.
  const std::optional<std::pair<uint64_t, std::vector<std::byte>>>& saved() const { return saved_; }

  float evaluate();
  std::vector<std::byte> parameters();  // all tensors in order
  std::vector<std::byte> records();     // all tiles in flat order, on the first rank
  // Both.
  std::vector<std::byte> state();

  Offloader& offloader() { return *offloader_; }
  const Offloader& offloader() const { return *offloader_; }
  const OffloadOptions& options() const { return options_; }
  const SimulatedDevice& device() const { return *device_; }
  const FlatSpace& space() const { return space_; }
  // Null where the combination saves none.
  const SavedInputs* saved_inputs() const { return saved_inputs_ ? &*saved_inputs_ : nullptr; }
  // Since the first step: those that changed the weights.
  uint64_t updates() const { return updates_; }

 private:
  void end_micro_batch();
  void make_access();
  ActivationStore* activations();
  void load_initial_values(const std::filesystem::path& folder);
  void write_initial_values();
  void run_step(const UpdateSettings& update, float scale, FunctionRef<void(float)> note);

  const Combination c_;
  const Training training_;
  const std::filesystem::path folder_;
  const testing::Caller call_;
  std::unique_ptr<Model> model_;
  std::vector<std::vector<std::byte>> caller_memory_;  // by tensor
  FlatSpace space_;
  Workers workers_;
  MemoryLog log_;
  OffloadOptions options_;
  std::optional<OtherPart> other_part_;
  std::unique_ptr<SimulatedDevice> device_;
  std::unique_ptr<Offloader> offloader_;
  // The ways to the offloader, the last one that of the model.
  std::optional<testing::AccessByCaller> caller_;
  testing::Held held_;
  std::optional<testing::NestingAccess> nesting_;
  std::optional<testing::CallerAccess> owning_;
  std::optional<testing::HandingAccess> handing_;
  ParameterAccess* access_ = nullptr;
  std::optional<SavedInputs> saved_inputs_;
  HostOps ops_;
  std::optional<StackArena> arena_;
  uint64_t completed_ = 0;
  uint64_t updates_ = 0;
  struct Save;
  std::unique_ptr<Save> save_;
  std::optional<std::pair<uint64_t, std::vector<std::byte>>> saved_;
};

}  // namespace terrace::laws
