// Steps of a Trainer that end badly, whenever its updates run: what is left of the state, what is kept of it,
// and that the last epoch and checkpoint lead on.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include <terrace/base/error.h>

#include "runtime/trainer_rig.h"
#include "support/expect_error.h"

namespace terrace {
namespace {

using namespace trainer_tests;
using testing::expect_error;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What is to go wrong in one micro-batch; counted from 1.
struct Poison {
  uint64_t micro_batch = 0;
  std::string tensor;  // a part of the name of the one whose gradient becomes infinite
  bool loss = false;   // instead: it is no number, and every gradient is
};

// Puts an infinity into the gradient of one tensor.
class PoisonedAccess final : public ParameterAccess {
 public:
  PoisonedAccess(ParameterAccess& access, TensorId tensor, DataType type)
      : access_(access), tensor_(tensor), type_(type) {}
  void begin_use(std::string_view operation, std::span<const TensorId> tensors, UseKind kind) override {
    access_.begin_use(operation, tensors, kind);
    has_gradient_ = kind == UseKind::backward && std::ranges::find(tensors, tensor_) != tensors.end();
  }
  void end_use() override {
    if (has_gradient_) toy::store(access_.gradient(tensor_).data, 0, type_, kInfinity);
    access_.end_use();
  }
  const std::byte* parameter(TensorId tensor) const override { return access_.parameter(tensor); }
  GradientView gradient(TensorId tensor) override { return access_.gradient(tensor); }

 private:
  ParameterAccess& access_;
  const TensorId tensor_;
  const DataType type_;
  bool has_gradient_ = false;
};

class PoisonedModel final : public Model {
 public:
  PoisonedModel(std::unique_ptr<Model> model, Poison poison)
      : model_(std::move(model)), poison_(std::move(poison)) {}

  const ModelConfig& config() const override { return model_->config(); }
  const ModelOptions& options() const override { return model_->options(); }
  std::vector<TensorSpec> tensors() const override { return model_->tensors(); }
  std::vector<WeightSpec> weights() const override { return model_->weights(); }
  std::vector<AdapterSpec> adapters() const override { return model_->adapters(); }
  void initial_values(TensorId tensor, uint64_t first, std::span<float> out) const override {
    model_->initial_values(tensor, first, out);
  }
  float train_micro_batch(const Ops& ops, ParameterAccess& access, StackArena& arena, const MicroBatch& batch,
                          float loss_scale, std::string_view prefix, ActivationStore* store) const override {
    if (++micro_batches_ != poison_.micro_batch)
      return model_->train_micro_batch(ops, access, arena, batch, loss_scale, prefix, store);
    if (poison_.loss) {
      model_->train_micro_batch(ops, access, arena, batch, loss_scale, prefix, store);
      return std::numeric_limits<float>::quiet_NaN();
    }
    const std::vector<TensorSpec> all = tensors();
    const auto found = std::ranges::find_if(
        all, [&](const TensorSpec& spec) { return spec.name.find(poison_.tensor) != std::string::npos; });
    PoisonedAccess poisoned(access, TensorId{static_cast<uint32_t>(found - all.begin())}, found->type);
    return model_->train_micro_batch(ops, poisoned, arena, batch, loss_scale, prefix, store);
  }
  void train_layer_major(const Ops& ops, ParameterAccess& access, StackArena& arena,
                         std::span<MicroBatchRun> runs, float loss_scale,
                         ActivationStore* store) const override {
    model_->train_layer_major(ops, access, arena, runs, loss_scale, store);
  }
  float evaluate(const Ops& ops, ParameterAccess& access, StackArena& arena, const MicroBatch& batch,
                 std::string_view prefix) const override {
    return model_->evaluate(ops, access, arena, batch, prefix);
  }
  void next_token_logits(const Ops& ops, ParameterAccess& access, StackArena& arena, const MicroBatch& batch,
                         std::span<float> logits, std::string_view prefix) const override {
    model_->next_token_logits(ops, access, arena, batch, logits, prefix);
  }

 private:
  const std::unique_ptr<Model> model_;
  const Poison poison_;
  mutable uint64_t micro_batches_ = 0;
};

auto poisoned(const Poison& poison) {
  return [poison](std::unique_ptr<Model> model) {
    return std::make_unique<PoisonedModel>(std::move(model), poison);
  };
}

// Complete when the whole backward pass is over, and when it has just begun.
constexpr const char* kLastTensor = "wpe";
constexpr const char* kFirstTensor = "ln_f";

RunOptions on_nvme(const toy::ScratchFolder& nvme, const std::string& update, bool compact) {
  RunOptions options;
  options.nvme = nvme.path();
  options.parameters = "cpu";
  options.precision = "true";
  options.update = update;
  options.compact = compact ? "true" : "false";
  options.clipping = "0";  // or nothing is applied before the last gradient
  return options;
}

// Of a run that nothing happens to, after each step from 0 on.
std::vector<std::vector<std::byte>> whole_run(uint64_t steps) {
  RunOptions options;
  options.precision = "true";
  options.clipping = "0";
  TrainerRun run(options);
  std::vector<std::vector<std::byte>> states = {run.state()};
  for (uint64_t step = 1; step <= steps; ++step) {
    run.train(1);
    states.push_back(run.state());
  }
  return states;
}

TEST(TrainerUpdate, AppliedInPartEndsTheRunAndTheLastEpochAndCheckpointLeadOn) {
  const auto expected = whole_run(5);
  for (const bool compact : {false, true}) {
    for (const bool loss : {false, true}) {
      SCOPED_TRACE(std::string(compact ? "compact" : "plain") + (loss ? ", loss" : ", gradient"));
      const toy::ScratchFolder nvme, saved;
      RunOptions options = on_nvme(nvme, "during_backward", compact);
      options.model = poisoned({.micro_batch = 4, .tensor = kLastTensor, .loss = loss});
      options.commit_every_steps = "1";
      {
        TrainerRun run(options);
        run.train(2);
        run.trainer->begin_save(saved.path());
        run.trainer->finish_save();
        run.train(1);
        run.trainer->look_after_state();
        run.trainer->finish_commit();
        const uint64_t commits = run.trainer->offloader().counters().commit_count;
        expect_error(
            ErrorKind::corrupt,
            {"step 4 was applied in part", "during_backward", "the epoch on nvme, step 3", "terrace.update"},
            [&] { run.trainer->step(); });
        EXPECT_EQ(run.trainer->completed_steps(), 3u);
        // What a program may still try: nothing of these weights is committed, saved or exported.
        if (!loss) {
          EXPECT_THROW(run.trainer->offloader().begin_commit("no step's"), Error);
          EXPECT_THROW(run.state(), Error);
        }
        run.trainer->finish_commit();
        run.trainer->finish_save();
        EXPECT_EQ(run.trainer->offloader().counters().commit_count, commits);
        EXPECT_EQ(run.trainer->durable_step(), 3u);
      }
      options.model = nullptr;
      options.start = TierStart::resume;
      {
        TrainerRun run(options);
        EXPECT_EQ(run.trainer->completed_steps(), 3u);
        EXPECT_TRUE(run.state() == expected[3]);
        run.train(2);
        EXPECT_TRUE(run.state() == expected[5]);
        run.trainer->offloader().keep_tier(false);
      }
      options.start = TierStart::fresh;
      options.discard = true;
      TrainerRun run(options);
      run.trainer->resume(saved.path());
      EXPECT_EQ(run.trainer->completed_steps(), 2u);
      run.train(3);
      EXPECT_TRUE(run.state() == expected[5]);
    }
  }
}

// Where no chunk was updated before it was found, the step has changed nothing and the run may go on.
TEST(TrainerUpdate, ThatIsNotAppliedLeavesTheStateOfTheStepBefore) {
  const auto expected = whole_run(4);
  struct Ending {
    const char* update;
    Poison poison;
  };
  const Ending endings[] = {
      {"during_backward", {.micro_batch = 3, .tensor = kFirstTensor}},
      {"next_forward", {.micro_batch = 3, .tensor = kLastTensor}},
      {"next_forward", {.micro_batch = 3, .tensor = "", .loss = true}},
      {"after_backward", {.micro_batch = 3, .tensor = kFirstTensor}},
      {"after_backward", {.micro_batch = 3, .tensor = "", .loss = true}},
  };
  for (const Ending& ending : endings) {
    for (const bool compact : {false, true}) {
      SCOPED_TRACE(std::string(ending.update) + (compact ? ", compact, " : ", plain, ") +
                   ending.poison.tensor);
      const toy::ScratchFolder nvme;
      RunOptions options = on_nvme(nvme, ending.update, compact);
      options.model = poisoned(ending.poison);
      TrainerRun run(options);
      run.train(2);
      expect_error(ErrorKind::cancelled, {"step 3 was not applied", "not a finite number"},
                   [&] { run.trainer->step(); });
      EXPECT_TRUE(run.state() == expected[2]);
      run.trainer->begin_commit();
      EXPECT_EQ(run.trainer->finish_commit().epoch_step, 2u);
      run.train(2);
      EXPECT_TRUE(run.state() == expected[4]);
    }
  }
}

}  // namespace
}  // namespace terrace
