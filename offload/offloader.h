// Offloader: the memory manager as an embedding program sees it. It owns the tiers, answers leases, moves
// parameters ahead of the computation and gradients behind it, and runs the update. It knows no model and no
// configuration file.
//
//   FlatSpace space(tensors, chunk_elements);
//   Offloader offloader(space, options, trace, workers, log);
//   offloader.state().initialise(values);
//   for every step:
//     offloader.begin_step();
//     for every micro-batch: { ...operations open Leases on `offloader`...; offloader.end_micro_batch(); }
//     offloader.update(settings);
//
// With options.layer_major all micro-batches of a step are open together: select_micro_batch() names the one
// that the following uses belong to, and end_micro_batch() ends them all.
//
// An Offloader is used by one thread at a time, which the headers of its parts call the step thread:
// whichever thread calls. The program orders the calls of different threads (a join, a lock), and a thread
// may end when its call has returned. After an Error has_whole_state() says whether the state in memory is
// still that of a step boundary. A failed step or update leaves no whole state: from then on commits,
// exports, evaluations and steps throw Error(cancelled) until a whole state is loaded anew. A failed commit,
// export or change of the host budget leaves the state as it was. A call out of order throws Error(misuse),
// which says what is open, and changes nothing (offload/state/call_order.h).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/base/log.h>
#include <terrace/base/workers.h>
#include <terrace/memory/device/device.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/lease/activation_store.h>
#include <terrace/offload/lease/parameter_access.h>
#include <terrace/offload/offload_report.h>
#include <terrace/offload/options/offload_options.h>
#include <terrace/offload/plan/memory_plan.h>
#include <terrace/offload/plan/update_mode.h>
#include <terrace/offload/state/commits.h>
#include <terrace/offload/state/host_budget.h>
#include <terrace/offload/state/training_state.h>
#include <terrace/offload/update/update_settings.h>
#include <terrace/offload/watch/time_account.h>
#include <terrace/optimizer_cpu/exact_sum.h>
#include <terrace/optimizer_cpu/instruction_set.h>

namespace terrace {

struct OpenUse;

class Offloader final : public ParameterAccess {
 public:
  // The constructor allocates every budget at once. `trace` holds the uses of one training step (all its
  // micro-batches); if it is empty, the first step is recorded. `device` has a budget of
  // options.device_budget_bytes. All references outlive the offloader. Throws Error(capacity) when the plan
  // does not fit and Error(io) when a tier folder cannot be used.
  Offloader(const FlatSpace& space, const OffloadOptions& options, std::span<const TensorUse> trace,
            Device& device, Workers& workers, Log& log,
            InstructionSet instruction_set = best_instruction_set());
  ~Offloader() override;
  // No step and no evaluation is open. An update that failed may have ended its step, or not.
  bool nothing_is_open() const;
  // The first act of the destructor, for who looks at its watch meanwhile: gives up what is open, and waits
  // for the ranks that still read what this one has. Nothing follows but the destructor.
  void end_with_ranks() noexcept;
  Offloader(const Offloader&) = delete;
  Offloader& operator=(const Offloader&) = delete;

  const MemoryPlan& plan() const;
  // Device memory for activations and workspaces: options.work_bytes, 2 MiB aligned.
  std::span<std::byte> work_memory();
  // The store of options.activation_entries; null when there are none.
  ActivationStore* activations();
  // Where the program saves activations that it makes itself; null without options.saved_activations, and in
  // a dry run. It may be used within steps and uses, and none of its failures concerns the training state.
  SavedActivations* saved_activations();
  // The door through which state is loaded and exported: initial values, checkpoints, weights.
  TrainingState& state();
  const TrainingState& state() const;
  // Committed states on nvme.
  Commits& commits();
  const Commits& commits() const;
  // The host budget, which may change between steps.
  HostBudget& budget();
  const HostBudget& budget() const;

  // Says that a tensor of TensorHome::caller lies elsewhere from now on, with the same values. Call it
  // between steps; it finishes a pending update.
  void move_caller_tensor(TensorId tensor, std::byte* address);

  // --- Training ---
  void begin_step();
  // Call this with options.layer_major only, between uses. In backward the micro-batches of a tensor follow
  // each other in their order, and a tensor's backward uses in one micro-batch end before those in another
  // begin.
  void select_micro_batch(uint32_t micro_batch) override;
  void end_micro_batch();
  // With OffloadOptions::compare_ranks_every_steps, every rank calls this behind the last micro-batch of each
  // step and before its end. Where parameters came to a rank other than their owner has them, every rank
  // throws Error(corrupt) that names the rank, the chunk and `step`, the program's own number of it.
  void compare_ranks(uint64_t step);
  UpdateResult update(const UpdateSettings& settings);
  // The sum of the squares of the step's gradients, of which update() takes the root. Call it behind the last
  // micro-batch; it changes nothing.
  ExactSum gradient_squares() const;
  // Ends a step before its update, in any micro-batch and between leases. The step's gradients are dropped
  // and the weights are those of the step before.
  void abandon_step();
  // Waits, between two steps, for the copies to and from the device that a step began ahead of their use. The
  // failure of a copy is thrown where its bytes are used.
  void wait_for_copies() const noexcept;
  // True when the state in memory is that of a step boundary: no step is open, no update is pending, and the
  // last change of the state ended well (offload/commits/whole_state.h).
  bool has_whole_state() const;

  // Sets when updates run, from the next one on. Call it between steps; it finishes a pending update. Throws
  // Error(config) for another mode than after_backward where states are on the device.
  void set_update_mode(UpdateMode mode);
  UpdateMode update_mode() const;
  // Why a mode is not possible here, in words for the log; empty when it is.
  std::string why_not(UpdateMode mode) const;
  // Announces the settings that update() will be given at the end of this step. Call it in during_backward
  // only, before the last micro-batch goes backward. Without clipping and with a loss scale of 1 chunks are
  // updated as their gradients become complete. Otherwise, and in a step without this call, states are read
  // ahead and updated in update().
  void announce_update(const UpdateSettings& settings);
  // Waits until no update is pending and throws its failure. Every other call that needs the state between
  // two steps (evaluation, export, import, commits) finishes the update itself.
  void finish_update();
  bool update_pending() const;

  // Between begin_evaluation and end_evaluation only inference uses happen; no training step is open.
  void begin_evaluation();
  void end_evaluation();

  // --- Uses ---
  void begin_use(std::string_view operation, std::span<const TensorId> tensors, UseKind kind) override;
  void end_use() override;
  const std::byte* parameter(TensorId tensor) const override;
  GradientView gradient(TensorId tensor) override;
  // The same for leases that end in another order than they begin in: begin_lease() returns the number of a
  // use that end_lease() ends.
  uint64_t begin_lease(std::string_view operation, std::span<const TensorId> tensors, UseKind kind);
  void end_lease(uint64_t number);
  // The addresses that parameter() and gradient() give within uses; known at any time. Outside of uses
  // nothing may be read or written there.
  std::byte* parameter_address(TensorId tensor) const;
  std::byte* gradient_address(TensorId tensor) const;

  // With GradientOrigin::handed_over only: takes the tensor's gradient of the open micro-batch, complete and
  // in the tensor's own type, from memory of the program, which may change after the call. The gradient of a
  // tensor that a micro-batch does not hand over is zero. Uses of the tensor may be open, and follow until
  // its update begins. Throws Error(misuse) for a second gradient in a micro-batch.
  void hand_over_gradient(TensorId tensor, std::span<const std::byte> gradient);

  // --- Reports ---
  const OffloadReport& report() const;
  // The account of the step thread's time, for a program that names causes the offloader cannot know, such as
  // computing outside of leases.
  TimeAccount& time();
  // For waits beside the offloader, of the thread that trains.
  StepWatch& watch();

 private:
  void begin_change();
  void begin_early_update();
  void finish_micro_batch();
  UpdateResult run_update(const UpdateSettings& settings);
  void fetch_for_use(OpenUse& use);
  void require_origin(std::string_view action, TensorId tensor, bool is_leased) const;
  void end_use(OpenUse& use);
  std::unique_ptr<OffloaderRooms> rooms_;
};

}  // namespace terrace
