#include "laws/placement_law.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>

#include <terrace/memory/device/simulated_device.h>

#include "laws/law_training.h"
#include "laws/law_world.h"
#include "laws/plain_training.h"
#include "offload/watch/recorded_steps.h"
#include "support/offloaders.h"
#include "support/rank_threads.h"

namespace terrace::laws {
namespace {

// Law 2 at every budget that a combination has, to the byte.
void require_within_budgets(const OffloadOptions& options, const Offloader& offloader,
                            const SimulatedDevice& device) {
  uint64_t host_bytes = 0;
  for (const TierUse& use : offloader.budget().ledger()) host_bytes += use.bytes;
  if (host_bytes > options.host_budget_bytes || offloader.plan().host_bytes > options.host_budget_bytes ||
      device.peak_bytes() > options.device_budget_bytes) {
    throw std::runtime_error(fmt::format("beyond a budget: host {} of {}, device {} of {}", host_bytes,
                                         options.host_budget_bytes, device.peak_bytes(),
                                         options.device_budget_bytes));
  }
}

// Whether the run was to spill gradients, which it has done then, and else has not. A rank may own nothing of
// the chunks that spill.
bool require_spilled(const OffloadOptions& options, const Offloader& offloader) {
  const bool spills = offloader.plan().spilled_chunks > 0;
  const OffloadCounters moved = offloader.report().counters();
  if (spills && options.ranks > 1) return true;
  if (spills == (moved.gradient_write_bytes > 0) && spills == (moved.gradient_read_bytes > 0)) return spills;
  throw std::runtime_error(fmt::format("{} chunks have spilled {} bytes of gradients, and read {}",
                                       offloader.plan().spilled_chunks, moved.gradient_write_bytes,
                                       moved.gradient_read_bytes));
}

// What is saved has moved once each way, is on nvme only where host memory had no room for it, and is gone.
// What does not come back in the reverse of its order may be read ahead in vain.
void require_saved(const LawTraining& training, const Combination& c) {
  const SavedInputs* const inputs = training.saved_inputs();
  if (inputs == nullptr) return;
  const SavedUse use = inputs->use();
  const OffloadCounters moved = training.offloader().report().counters();
  const bool is_full = use.host_peak_bytes + use.nvme_peak_bytes > use.host_most_bytes ||
                       level_of(c, kBudgetChange) != "none";  // it was less before
  const bool may_write = training.options().saved_activations == Placement::nvme && is_full;
  const bool has_moved =
      moved.activation_d2h_bytes == inputs->put_bytes() && moved.activation_h2d_bytes == inputs->put_bytes();
  const bool is_read_once = is_layer_major(c) || moved.activation_read_bytes <= moved.activation_write_bytes;
  const bool is_gone = use.count + use.host_bytes + use.nvme_bytes == 0;
  if (has_moved && is_read_once && is_gone && (may_write || moved.activation_write_bytes == 0)) return;
  throw std::runtime_error(fmt::format(
      "of {} bytes of inputs {} were saved, {} came back, {} were written and {} read; {} are left",
      inputs->put_bytes(), moved.activation_d2h_bytes, moved.activation_h2d_bytes,
      moved.activation_write_bytes, moved.activation_read_bytes, use.count));
}

void require_recorded(const OffloadOptions& options, RecordedSteps& recorded) {
  if (options.hooks.step_events == nullptr) return;
  recorded.take();
  const std::string found = recorded.difference();
  if (!found.empty()) throw std::runtime_error("what was recorded is not what was counted: " + found);
}

// The outcome of a run whose ranks had these: with the losses in the order of micro-batches, and the records
// of all. Everything else is the same on every rank.
Outcome joined(std::vector<Outcome> ranks, const StepRounds& rounds) {
  Outcome whole = ranks.front();
  whole.losses.assign(kSteps * rounds.micro_batches, 0);
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    Outcome& one = ranks[rank];
    size_t next = 0;
    for (uint64_t step = 0; step < kSteps; ++step) {
      for (uint32_t round = 0; round < rounds.count(); ++round) {
        if (rounds.has(round, rank))
          whole.losses[step * rounds.micro_batches + rounds.number(round, rank)] = one.losses.at(next++);
      }
    }
    if (next + 1 != one.losses.size() || one.losses.back() != ranks.front().losses.back())
      throw std::runtime_error(fmt::format("rank {} has other losses", rank));
    if (one.gradient_norms != whole.gradient_norms || one.parameters != whole.parameters)
      throw std::runtime_error(fmt::format("rank {} has other norms or parameters than rank 0", rank));
  }
  whole.losses.push_back(ranks.front().losses.back());
  return whole;
}

}  // namespace

std::string difference(const Outcome& expected, const Outcome& found) {
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    if (i < found.losses.size() && expected.losses[i] == found.losses[i]) continue;
    return fmt::format("loss {}: {} instead of {}", i,
                       i < found.losses.size() ? std::bit_cast<float>(found.losses[i]) : NAN,
                       std::bit_cast<float>(expected.losses[i]));
  }
  for (size_t i = 0; i < expected.gradient_norms.size(); ++i) {
    if (i < found.gradient_norms.size() && expected.gradient_norms[i] == found.gradient_norms[i]) continue;
    return fmt::format("gradient norm {} differs", i);
  }
  if (expected.parameters != found.parameters) return "the parameters differ";
  if (expected.records != found.records) return "the optimizer states differ";
  return expected == found ? "" : "the outcomes differ in size";
}

Outcome PlacementLaw::train(const Combination& c) {
  const StepRounds rounds = rounds_of(c);
  if (rounds.ranks == 1) return train_rank(c, nullptr);
  const std::unique_ptr<testing::RankWorld> world = make_law_world(c);
  std::vector<Outcome> outcomes(rounds.ranks);
  const std::vector<std::string> failures = testing::on_every_rank(
      *world, [&](Communicator& rank) { outcomes[rank.rank()] = train_rank(c, &rank); });
  for (uint32_t r = 0; r < rounds.ranks; ++r) {
    if (!failures[r].empty()) throw std::runtime_error(fmt::format("rank {}: {}", r, failures[r]));
  }
  return joined(std::move(outcomes), rounds);
}

Outcome PlacementLaw::train_rank(const Combination& c, Communicator* ranks) {
  RecordedSteps recorded;
  const std::filesystem::path folder = folder_of_rank(c, folder_, ranks == nullptr ? 0 : ranks->rank());
  LawTraining training(
      c, {.folder = folder, .step_events = records_steps_ ? &recorded.events : nullptr, .ranks = ranks});
  Offloader& offloader = training.offloader();
  Outcome outcome;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    training.choose_mode();
    recorded.begin(step, offloader);
    const UpdateResult result = training.step(&outcome.losses);
    recorded.end(offloader);
    outcome.gradient_norms.push_back(result.applied ? std::bit_cast<uint64_t>(result.gradient_norm) : 0);
    if (training.commits_now()) training.begin_commit();
    training.change_budget();
    if (step == 2) training.begin_save();
  }
  training.finish_save();
  require_within_budgets(training.options(), offloader, training.device());
  const bool spilled = require_spilled(training.options(), offloader);
  require_saved(training, c);
  const MemoryPlan& plan = offloader.plan();
  if (level_of(c, kHost) == "spilling" && spilled != (plan.host_minimum_bytes < plan.host_holding_bytes))
    throw std::runtime_error("a budget below what holds all gradients spills none");
  if (training.options().rank == 0) {
    spilling_runs_ += spilled ? 1 : 0;
    keeping_runs_ += plan.kept_gathers > 0 ? 1 : 0;
    const SavedInputs* const inputs = training.saved_inputs();
    writing_runs_ += inputs != nullptr && inputs->use().nvme_peak_bytes > 0 ? 1 : 0;
  }
  outcome.losses.push_back(std::bit_cast<uint32_t>(training.evaluate()));
  require_recorded(training.options(), recorded);
  outcome.parameters = training.parameters();
  outcome.records = training.records();
  return outcome;
}

const Outcome& PlacementLaw::reference(const Combination& c) {
  const Training training = training_of(c);
  const ReferenceKey key = {c[kPrecision], c[kAccumulation],
                            c[kGroup],     c[kAccumulationType],
                            c[kClipping],  c[kModel],
                            c[kOptimizer], c[kMoments],
                            c[kGradients], c[kUnused],
                            c[kCompute],   c[kRounding],
                            c[kPart],      static_cast<uint8_t>(training.callers)};
  const auto found = references_.find(key);
  if (found != references_.end()) return found->second;
  return references_.emplace(key, train_plainly(*make_law_model(c), training)).first->second;
}

}  // namespace terrace::laws
