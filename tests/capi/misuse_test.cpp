// Every function in every phase of a store, with good and with bad arguments: none ends the process, what is
// refused is of kind misuse or config, and the training afterwards is one that was left alone, bit for bit.
#include <gtest/gtest.h>

#include <terrace_run.h>

#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "capi/capi_rig.h"
#include "support/scratch_folder.h"

namespace terrace::misuse_test {
namespace {

using capi::Case;
using capi::expect_harmless;
using capi::is_well;
using capi::Training;

constexpr uint64_t kSteps = 2;
constexpr uint32_t kUnknown = 1000;

struct Call {
  std::string name;
  std::function<terrace_error*(terrace_store*)> run;
  bool changes = false;  // where it goes well, the training is another one
};

// Memory that calls may write to.
struct Scratch {
  float values[16] = {};
  uint64_t numbers[64] = {};
  double sum = 0;
  uint32_t flag = 0;
  const void* constant = nullptr;
  void* address = nullptr;
  const char* text = nullptr;
  uint32_t tensors[4] = {0, 1, 2, 3};
  uint32_t twice[2] = {1, 1};
  uint32_t unknown[1] = {kUnknown};
  DLManagedTensor* managed = nullptr;
  terrace_plan_result plan = TERRACE_INIT(terrace_plan_result);
  terrace_gradient_view view = TERRACE_INIT(terrace_gradient_view);
  terrace_update_result result = TERRACE_INIT(terrace_update_result);
  terrace_saved_use use = TERRACE_INIT(terrace_saved_use);
  terrace_gradient_view no_size{};
  terrace_update_result no_size_either{};
};
Scratch scratch;

int stop(void*, uint32_t, uint64_t, uint64_t, float*) {
  return 1;
}
int fill_ones(void*, uint32_t, uint64_t, uint64_t count, float* values) {
  for (uint64_t i = 0; i < count; ++i) values[i] = 1;
  return 0;
}

terrace_update_settings settings_of(const terrace_optimizer* groups, uint32_t count, uint64_t step = 1) {
  terrace_update_settings settings = TERRACE_INIT(terrace_update_settings);
  settings.groups = groups;
  settings.group_count = count;
  settings.step = step;
  return settings;
}

// Settings that no update takes.
// `tensors_count_steps`: the number of the step may be 0.
std::vector<terrace_update_settings> bad_settings(bool tensors_count_steps) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  static std::vector<std::vector<terrace_optimizer>> groups;
  groups.clear();
  const auto bad = [](void (*change)(terrace_optimizer&)) {
    groups.emplace_back(2, TERRACE_INIT(terrace_optimizer));
    change(groups.back()[1]);
  };
  bad([](terrace_optimizer& g) { g.beta1 = kNan; });
  bad([](terrace_optimizer& g) { g.beta2 = 1; });
  bad([](terrace_optimizer& g) { g.eps = -1; });
  bad([](terrace_optimizer& g) { g.lr = kNan; });
  bad([](terrace_optimizer& g) { g.weight_decay = std::numeric_limits<double>::infinity(); });
  bad([](terrace_optimizer& g) { g.momentum = -1; });
  bad([](terrace_optimizer& g) { g.nesterov = 1; });
  bad([](terrace_optimizer& g) { g.kind = 77; });
  bad([](terrace_optimizer& g) { g.kind = TERRACE_LION; });
  bad([](terrace_optimizer& g) { g.kind = TERRACE_SGD; });
  bad([](terrace_optimizer& g) { g.size = 0; });
  bad([](terrace_optimizer& g) { g.reserved = 1; });
  std::vector<terrace_update_settings> all;
  for (const auto& list : groups) all.push_back(settings_of(list.data(), 2));
  groups.emplace_back(2, TERRACE_INIT(terrace_optimizer));
  const terrace_optimizer* const good = groups.back().data();
  all.push_back(settings_of(nullptr, 2));
  all.push_back(settings_of(good, 0));
  all.push_back(settings_of(good, 1));
  if (!tensors_count_steps) all.push_back(settings_of(good, 2, 0));
  for (const double number : {kNan, -1.0, std::numeric_limits<double>::infinity()}) {
    all.push_back(settings_of(good, 2));
    all.back().loss_scale = number;
  }
  for (const double number : {kNan, -1.0}) {
    all.push_back(settings_of(good, 2));
    all.back().clip_norm = number;
  }
  all.push_back(settings_of(good, 2));
  all.back().size = 3;
  return all;
}

// Calls that are wrong whenever they are made.
std::vector<Call> bad_calls(bool tensors_count_steps = false) {
  Scratch& s = scratch;
  std::vector<Call> calls;
  const auto add = [&calls](const char* name, auto run) { calls.push_back({name, run}); };
  using Store = terrace_store*;
  add("plan_of", [](Store t) { return terrace_plan_of(t, nullptr); });
  add("fill_arrays", [](Store t) { return terrace_fill_arrays(t, nullptr, 4); });
  add("fill_arrays, none", [](Store t) { return terrace_fill_arrays(t, nullptr, 0); });
  add("fill_arrays, size", [](Store t) {
    const terrace_array forgotten{};
    return terrace_fill_arrays(t, &forgotten, 1);
  });
  add("fill_arrays, type", [](Store t) {
    terrace_array array = TERRACE_INIT(terrace_array);
    array.type = 9;
    return terrace_fill_arrays(t, &array, 1);
  });
  add("fill_arrays, no data", [](Store t) {
    std::vector<terrace_array> arrays(4, TERRACE_INIT(terrace_array));
    for (uint32_t i = 0; i < 4; ++i) arrays[i].tensor = i;
    return terrace_fill_arrays(t, arrays.data(), 4);
  });
  add("fill_files", [](Store t) { return terrace_fill_files(t, nullptr, 4); });
  add("fill_files, no path", [](Store t) {
    const terrace_file_part part = TERRACE_INIT(terrace_file_part);
    return terrace_fill_files(t, &part, 1);
  });
  add("fill_with", [](Store t) { return terrace_fill_with(t, nullptr, nullptr); });
  for (const uint32_t what : {0u, 1u, 2u, 3u, 4u, 0xffffffffu}) {
    add("read_values, NULL", [what](Store t) { return terrace_read_values(t, 0, what, 0, 1, nullptr); });
    add("write_values, NULL", [what](Store t) { return terrace_write_values(t, 0, what, 0, 1, nullptr); });
    add("read_values, tensor",
        [&s, what](Store t) { return terrace_read_values(t, kUnknown, what, 0, 1, s.values); });
    add("write_values, elements",
        [&s, what](Store t) { return terrace_write_values(t, 0, what, uint64_t{0} - 1, 2, s.values); });
  }
  add("write_values, kind", [&s](Store t) { return terrace_write_values(t, 0, 9, 0, 1, s.values); });
  add("tensor_steps", [](Store t) { return terrace_tensor_steps(t, nullptr, 4); });
  add("tensor_steps, count", [&s](Store t) { return terrace_tensor_steps(t, s.numbers, 5); });
  add("set_tensor_steps", [](Store t) { return terrace_set_tensor_steps(t, nullptr, 4); });
  add("set_tensor_steps, count", [&s](Store t) { return terrace_set_tensor_steps(t, s.numbers, 5); });
  add("gradient_squares", [&s](Store t) { return terrace_gradient_squares(t, nullptr, 21, &s.sum); });
  add("gradient_squares, sum", [&s](Store t) { return terrace_gradient_squares(t, s.numbers, 21, nullptr); });
  add("gradient_squares, count",
      [&s](Store t) { return terrace_gradient_squares(t, s.numbers, 20, &s.sum); });
  add("start_save", [&s](Store t) { return terrace_start_save(t, nullptr, 16, s.numbers); });
  add("start_save, number", [&s](Store t) { return terrace_start_save(t, s.values, 16, nullptr); });
  add("start_save, bytes", [&s](Store t) { return terrace_start_save(t, s.values, 0, s.numbers); });
  add("finish_save, number", [](Store t) { return terrace_finish_save(t, kUnknown); });
  add("start_load", [](Store t) { return terrace_start_load(t, 1, nullptr, nullptr); });
  add("start_load, number", [&s](Store t) { return terrace_start_load(t, kUnknown, s.values, &s.flag); });
  add("finish_load, number", [](Store t) { return terrace_finish_load(t, 0); });
  add("drop_saved", [](Store t) { return terrace_drop_saved(t, nullptr, 1); });
  add("saved_use_of", [](Store t) { return terrace_saved_use_of(t, nullptr); });
  add("has_whole_state", [](Store t) { return terrace_has_whole_state(t, nullptr); });
  add("parameter_address", [](Store t) { return terrace_parameter_address(t, 0, nullptr); });
  add("parameter_address, tensor",
      [&s](Store t) { return terrace_parameter_address(t, kUnknown, &s.address); });
  add("gradient_address", [](Store t) { return terrace_gradient_address(t, 0, nullptr); });
  add("gradient_address, tensor",
      [&s](Store t) { return terrace_gradient_address(t, kUnknown, &s.address); });
  add("work_memory", [&s](Store t) { return terrace_work_memory(t, nullptr, s.numbers); });
  add("work_memory, bytes", [&s](Store t) { return terrace_work_memory(t, &s.address, nullptr); });
  add("use_stream", [](Store t) { return terrace_use_stream(t, nullptr); });
  add("compute_stream", [](Store t) { return terrace_compute_stream(t, nullptr); });
  add("dlpack", [](Store t) { return terrace_dlpack(t, 0, 0, nullptr); });
  add("dlpack, tensor", [&s](Store t) { return terrace_dlpack(t, kUnknown, 0, &s.managed); });
  add("dlpack, frozen", [&s](Store t) { return terrace_dlpack(t, capi::kFrozen, 1, &s.managed); });
  add("select_micro_batch", [](Store t) { return terrace_select_micro_batch(t, kUnknown); });
  for (const uint32_t kind : {0u, 1u, 2u, 3u, 99u}) {
    add("lease, key",
        [&s, kind](Store t) { return terrace_lease(t, nullptr, kind, s.tensors, 1, s.numbers); });
    add("lease, tensors", [&s, kind](Store t) { return terrace_lease(t, "k", kind, nullptr, 1, s.numbers); });
    add("lease, number", [&s, kind](Store t) { return terrace_lease(t, "k", kind, s.tensors, 1, nullptr); });
    add("lease, tensor",
        [&s, kind](Store t) { return terrace_lease(t, "k", kind, s.unknown, 1, s.numbers); });
    add("lease, twice", [&s, kind](Store t) { return terrace_lease(t, "k", kind, s.twice, 2, s.numbers); });
  }
  add("lease, kind", [&s](Store t) { return terrace_lease(t, "k", TERRACE_UNIT, s.tensors, 1, s.numbers); });
  add("release", [](Store t) { return terrace_release(t, 0); });
  add("release, number", [](Store t) { return terrace_release(t, uint64_t{0} - 1); });
  add("parameter", [](Store t) { return terrace_parameter(t, 0, nullptr); });
  add("parameter, tensor", [&s](Store t) { return terrace_parameter(t, kUnknown, &s.constant); });
  add("gradient", [](Store t) { return terrace_gradient(t, 0, nullptr); });
  add("gradient, tensor", [&s](Store t) { return terrace_gradient(t, kUnknown, &s.view); });
  add("gradient, frozen", [&s](Store t) { return terrace_gradient(t, capi::kFrozen, &s.view); });
  add("gradient, size", [&s](Store t) { return terrace_gradient(t, 0, &s.no_size); });
  add("hand_over", [](Store t) { return terrace_hand_over(t, 0, nullptr, TERRACE_FP32, 0); });
  add("hand_over, tensor",
      [&s](Store t) { return terrace_hand_over(t, kUnknown, s.values, TERRACE_FP32, 0); });
  add("hand_over, type", [&s](Store t) { return terrace_hand_over(t, 0, s.values, 77, 0); });
  add("hand_over, other type", [&s](Store t) { return terrace_hand_over(t, 0, s.values, TERRACE_BF16, 0); });
  add("hand_over, flags", [&s](Store t) { return terrace_hand_over(t, 0, s.values, TERRACE_FP32, 1); });
  add("hand_over, frozen",
      [&s](Store t) { return terrace_hand_over(t, capi::kFrozen, s.values, TERRACE_FP32, 0); });
  add("move_tensor", [](Store t) { return terrace_move_tensor(t, 0, nullptr); });
  add("move_tensor, tensor", [&s](Store t) { return terrace_move_tensor(t, kUnknown, s.values); });
  add("move_tensor, of the store", [&s](Store t) { return terrace_move_tensor(t, 1, s.values); });
  add("update", [&s](Store t) { return terrace_update(t, nullptr, &s.result); });
  add("announce_update", [](Store t) { return terrace_announce_update(t, nullptr); });
  for (const terrace_update_settings& settings : bad_settings(tensors_count_steps))
    add("update, settings", [settings, &s](Store t) { return terrace_update(t, &settings, &s.result); });
  add("update, result", [&s](Store t) {
    const std::vector<terrace_optimizer> groups(2, TERRACE_INIT(terrace_optimizer));
    const terrace_update_settings settings = settings_of(groups.data(), 2);
    return terrace_update(t, &settings, &s.no_size_either);
  });
  add("update_pending", [](Store t) { return terrace_update_pending(t, nullptr); });
  add("set_update_when", [](Store t) { return terrace_set_update_when(t, 3); });
  add("get_update_when", [](Store t) { return terrace_get_update_when(t, nullptr); });
  add("begin_commit", [](Store t) { return terrace_begin_commit(t, nullptr, 0); });
  add("begin_commit, retain", [](Store t) { return terrace_begin_commit(t, "x", 1); });
  add("begin_commit, long",
      [](Store t) { return terrace_begin_commit(t, std::string(2 << 20, 'x').c_str(), 0); });
  add("commit_in_progress", [](Store t) { return terrace_commit_in_progress(t, nullptr); });
  add("last_commit", [](Store t) { return terrace_last_commit(t, nullptr); });
  add("taken_up_text", [](Store t) { return terrace_taken_up_text(t, nullptr); });
  add("why_no_commits", [](Store t) { return terrace_why_no_commits(t, nullptr); });
  add("host_budget", [](Store t) { return terrace_host_budget(t, nullptr, nullptr); });
  add("counters", [](Store t) { return terrace_counters(t, nullptr, 1); });
  add("counters, count", [&s](Store t) { return terrace_counters(t, s.numbers, 1000); });
  add("step_counters", [](Store t) { return terrace_step_counters(t, nullptr, 1); });
  return calls;
}

// Calls that are right in some phase.
std::vector<Call> good_calls() {
  Scratch& s = scratch;
  std::vector<Call> calls;
  const auto look = [&calls](const char* name, auto run) { calls.push_back({name, run, false}); };
  const auto change = [&calls](const char* name, auto run) { calls.push_back({name, run, true}); };
  using Store = terrace_store*;
  look("plan_of", [&s](Store t) { return terrace_plan_of(t, &s.plan); });
  look("read_values", [&s](Store t) { return terrace_read_values(t, 0, TERRACE_MASTER, 0, 16, s.values); });
  look("read_values, none", [](Store t) { return terrace_read_values(t, 0, TERRACE_MASTER, 0, 0, nullptr); });
  look("write_values, none",
       [](Store t) { return terrace_write_values(t, 0, TERRACE_MASTER, 0, 0, nullptr); });
  look("tensor_steps", [&s](Store t) { return terrace_tensor_steps(t, s.numbers, 4); });
  look("gradient_squares",
       [&s](Store t) { return terrace_gradient_squares(t, s.numbers, TERRACE_SQUARES_LIMBS, &s.sum); });
  look("has_whole_state", [&s](Store t) { return terrace_has_whole_state(t, &s.flag); });
  look("parameter_address", [&s](Store t) { return terrace_parameter_address(t, 3, &s.address); });
  look("gradient_address", [&s](Store t) { return terrace_gradient_address(t, 2, &s.address); });
  look("work_memory", [&s](Store t) { return terrace_work_memory(t, &s.address, s.numbers); });
  look("compute_stream", [&s](Store t) { return terrace_compute_stream(t, &s.address); });
  look("select_micro_batch", [](Store t) { return terrace_select_micro_batch(t, 0); });
  look("parameter", [&s](Store t) { return terrace_parameter(t, 0, &s.constant); });
  look("gradient", [&s](Store t) { return terrace_gradient(t, 0, &s.view); });
  look("finish_update", [](Store t) { return terrace_finish_update(t); });
  look("update_pending", [&s](Store t) { return terrace_update_pending(t, &s.flag); });
  look("set_update_when", [](Store t) { return terrace_set_update_when(t, TERRACE_NEXT_FORWARD); });
  look("get_update_when", [&s](Store t) { return terrace_get_update_when(t, &s.flag); });
  look("begin_commit", [](Store t) { return terrace_begin_commit(t, "text", 0); });
  look("finish_commit", [&s](Store t) { return terrace_finish_commit(t, s.numbers); });
  look("commit_in_progress", [&s](Store t) { return terrace_commit_in_progress(t, &s.flag); });
  look("last_commit", [&s](Store t) { return terrace_last_commit(t, s.numbers); });
  look("taken_up_text", [&s](Store t) { return terrace_taken_up_text(t, &s.text); });
  look("why_no_commits", [&s](Store t) { return terrace_why_no_commits(t, &s.text); });
  look("keep_tier", [](Store t) { return terrace_keep_tier(t, 0); });
  look("host_budget", [&s](Store t) { return terrace_host_budget(t, s.numbers, s.numbers + 1); });
  look("set_host_budget", [](Store t) { return terrace_set_host_budget(t, uint64_t{1} << 40); });
  look("counters", [&s](Store t) { return terrace_counters(t, s.numbers, terrace_counter_count()); });
  look("step_counters", [&s](Store t) { return terrace_step_counters(t, s.numbers, 3); });
  look("lease and release", [&s](Store t) {
    uint64_t lease = 0;
    terrace_error* error = terrace_lease(t, "extra", TERRACE_FORWARD, s.tensors, 1, &lease);
    return error != nullptr ? error : terrace_release(t, lease);
  });
  look("lease of nothing", [](Store t) {
    uint64_t lease = 0;
    terrace_error* error = terrace_lease(t, "nothing", TERRACE_FORWARD, nullptr, 0, &lease);
    return error != nullptr ? error : terrace_release(t, lease);
  });
  look("save and load", [&s](Store t) {
    uint64_t saved = 0;
    terrace_error* error = terrace_start_save(t, s.values, sizeof(s.values), &saved);
    if (error == nullptr) error = terrace_finish_save(t, saved);
    if (error == nullptr) error = terrace_start_load(t, saved, s.numbers, nullptr);
    if (error == nullptr) error = terrace_finish_load(t, saved);
    return error != nullptr ? error : terrace_drop_saved(t, &saved, 1);
  });
  look("saved_use_of", [&s](Store t) { return terrace_saved_use_of(t, &s.use); });
  look("evaluation", [&s](Store t) {
    uint64_t lease = 0;
    terrace_error* error = terrace_begin_evaluation(t);
    if (error == nullptr) error = terrace_lease(t, "eval", TERRACE_INFERENCE, s.tensors, 2, &lease);
    if (error == nullptr) error = terrace_release(t, lease);
    return error != nullptr ? error : terrace_end_evaluation(t);
  });
  change("fill_with", [](Store t) { return terrace_fill_with(t, fill_ones, nullptr); });
  change("write_values", [&s](Store t) {
    s.values[0] = 3;
    return terrace_write_values(t, 0, TERRACE_MASTER, 0, 16, s.values);
  });
  change("begin_step", [](Store t) { return terrace_begin_step(t); });
  change("end_micro_batch", [](Store t) { return terrace_end_micro_batch(t); });
  change("abandon_step", [](Store t) { return terrace_abandon_step(t); });
  change("begin_evaluation", [](Store t) { return terrace_begin_evaluation(t); });
  change("end_evaluation", [](Store t) { return terrace_end_evaluation(t); });
  change("lease",
         [&s](Store t) { return terrace_lease(t, "stays", TERRACE_BACKWARD, s.tensors, 4, s.numbers); });
  change("lease, inference",
         [&s](Store t) { return terrace_lease(t, "stays", TERRACE_INFERENCE, s.tensors, 1, s.numbers); });
  change("hand_over", [](Store t) {
    static const std::vector<float> gradient(capi::specs()[0].element_count(), 1.0f);
    return terrace_hand_over(t, 0, gradient.data(), TERRACE_FP32, 0);
  });
  change("announce_update", [](Store t) {
    const std::vector<terrace_optimizer> groups(2, TERRACE_INIT(terrace_optimizer));
    const terrace_update_settings settings = settings_of(groups.data(), 2);
    return terrace_announce_update(t, &settings);
  });
  change("update", [](Store t) {
    const std::vector<terrace_optimizer> groups(2, TERRACE_INIT(terrace_optimizer));
    const terrace_update_settings settings = settings_of(groups.data(), 2);
    return terrace_update(t, &settings, nullptr);
  });
  return calls;
}

// Trains, and calls `at` at every place of a training, with its name.
void train(Training& training, const std::function<void(const char*)>& at) {
  at("before the fill");
  training.fill();
  for (uint64_t step = 1; step <= kSteps; ++step) {
    at("idle");
    training.step(step, at);
    is_well(terrace_begin_evaluation(training.get()));
    at("in an evaluation");
    is_well(terrace_end_evaluation(training.get()));
  }
}

std::vector<Case> cases() {
  Case durable = capi::kOnNvme;
  durable.durable = 1;
  durable.accumulation = 2;
  Case handed_over = {.gradients = TERRACE_HANDED_OVER, .unused = TERRACE_UNUSED_SKIP, .saved = TERRACE_CPU};
  Case together = {.accumulation = 2, .layer_major = true};
  Case together_on_nvme = capi::kOnNvme;
  together_on_nvme.accumulation = 2;
  together_on_nvme.layer_major = true;
  together_on_nvme.gradients = TERRACE_HANDED_OVER;
  return {durable,
          handed_over,
          {.parameters = TERRACE_DEVICE, .states = TERRACE_DEVICE},
          together,
          together_on_nvme};
}

std::vector<float> left_alone(const Case& c) {
  const ScratchFolder folder;
  Training training(c, folder.path(), false);
  train(training, [](const char*) {});
  return training.state();
}

TEST(CMisuse, OfAnyFunctionAnywhereChangesNothing) {
  for (const Case& c : cases()) {
    const ScratchFolder folder;
    Training training(c, folder.path(), false);
    train(training, [&](const char* place) {
      for (const Call& call : bad_calls(c.unused == TERRACE_UNUSED_SKIP)) {
        terrace_error* error = call.run(training.get());
        EXPECT_NE(error, nullptr) << call.name << " " << place;
        expect_harmless(error, call.name + " " + place);
      }
    });
    EXPECT_EQ(training.state(), left_alone(c));
  }
}

TEST(CMisuse, OfNoStoreIsRefused) {
  for (const auto& calls : {bad_calls(), good_calls()}) {
    for (const Call& call : calls) {
      terrace_error* error = call.run(nullptr);
      EXPECT_EQ(capi::kind_of(error), static_cast<uint32_t>(TERRACE_MISUSE)) << call.name;
    }
  }
}

// All calls are made at all places. What goes well and changes the training is found out one by one, and left
// out from then on.
TEST(CMisuse, OfAGoodCallInTheWrongPlaceChangesNothing) {
  for (const Case& c : cases()) {
    const std::vector<float> expected = left_alone(c);
    const std::vector<Call> calls = good_calls();
    std::set<std::string> changing;
    struct Changed {};
    for (bool is_left_alone = false; !is_left_alone;) {
      const ScratchFolder folder;
      Training training(c, folder.path(), false);
      try {
        train(training, [&](const char* place) {
          for (const Call& call : calls) {
            const std::string name = call.name + ", " + place;
            if (changing.contains(name)) continue;
            terrace_error* error = call.run(training.get());
            if (error == nullptr && call.changes) {
              changing.insert(name);
              throw Changed();
            }
            expect_harmless(error, name);
          }
        });
        EXPECT_EQ(training.state(), expected);
        is_left_alone = true;
      } catch (const Changed&) {
        // The store is destroyed wherever it is.
      }
    }
    EXPECT_GE(changing.size(), 8u);
  }
}

// A program that forgets to select the micro-batch goes backward twice in one.
TEST(CMisuse, OfATensorTwiceBackwardInAMicroBatchIsRefused) {
  for (const bool layer_major : {true, false}) {
    const ScratchFolder folder;
    Training training({.accumulation = 2, .layer_major = layer_major}, folder.path());
    terrace_store* const store = training.get();
    is_well(terrace_begin_step(store));
    const uint32_t tensor = 0;
    uint64_t lease = 0;
    const auto go = [&](uint32_t kind) {
      if (terrace_error* error = terrace_lease(store, "key", kind, &tensor, 1, &lease)) return error;
      return terrace_release(store, lease);
    };
    is_well(go(TERRACE_FORWARD));
    is_well(go(TERRACE_BACKWARD));
    terrace_error* const error = go(TERRACE_BACKWARD);
    ASSERT_NE(error, nullptr);
    const std::string text = terrace_error_text(error);
    EXPECT_NE(text.find("its gradient is complete in this micro-batch"), std::string::npos) << text;
    EXPECT_EQ(text.find("select the micro-batch") != std::string::npos, layer_major) << text;
    capi::expect_kind(TERRACE_MISUSE, error);
    // The program may go on with the right call.
    if (layer_major) is_well(terrace_select_micro_batch(store, 1));
    if (!layer_major) is_well(terrace_end_micro_batch(store));
    is_well(go(TERRACE_BACKWARD));
    is_well(terrace_end_micro_batch(store));
    training.end_step(1);
  }
}

TEST(CMisuse, OfAStoreThatFailedGetsItsFailure) {
  const ScratchFolder folder;
  Case c = capi::kOnNvme;
  c.least_host = true;
  Training training(c, folder.path());
  capi::damage_files(folder.path());
  float value = 0;
  terrace_error* error = terrace_read_values(training.get(), 0, TERRACE_MASTER, 0, 1, &value);
  ASSERT_NE(error, nullptr);
  const std::string text = terrace_error_text(error);
  capi::expect_kind(TERRACE_CORRUPT, error);
  for (const auto& calls : {bad_calls(), good_calls()}) {
    for (const Call& call : calls) {
      error = call.run(training.get());
      const bool answers = call.name.find("counters") != std::string::npos ||
                           call.name.find("saved_use_of") != std::string::npos ||
                           call.name.find("drop_saved") != std::string::npos;
      if (answers) {
        expect_harmless(error, call.name);
      } else {
        EXPECT_STREQ(terrace_error_text(error), text.c_str()) << call.name;
        terrace_error_free(error);
      }
    }
  }
}

TEST(CMisuse, OfAFillThatStopsIsHealedByAnother) {
  const ScratchFolder folder;
  Training training(capi::kOnNvme, folder.path());
  EXPECT_EQ(capi::kind_of(terrace_fill_with(training.get(), stop, nullptr)),
            static_cast<uint32_t>(TERRACE_CANCELLED));
  EXPECT_EQ(capi::kind_of(terrace_begin_step(training.get())), static_cast<uint32_t>(TERRACE_MISUSE));
  training.fill();
  training.step(1);
}

}  // namespace
}  // namespace terrace::misuse_test
