// Calls of a program that knows nothing of their order, drawn from a seed.
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>
#include <vector>

#include "capi/capi_rig.h"
#include "support/scratch_folder.h"

namespace terrace::any_order_test {
namespace {

using capi::Case;
using capi::Training;

// A program that knows nothing of the order of calls. Every failure ends a store or is harmless; none ends
// the process.
class Wanderer {
 public:
  Wanderer(const Case& c, uint32_t seed) : case_(c), random_(seed) {}

  void wander(terrace_store* store) {
    store_ = store;
    for (int call = 0; call < 150; ++call) {
      terrace_error* const error = next();
      const uint32_t kind = terrace_error_kind_of(error);
      EXPECT_NE(kind, static_cast<uint32_t>(TERRACE_INTERNAL)) << terrace_error_text(error);
      terrace_error_free(error);
    }
  }

 private:
  uint32_t below(uint32_t count) { return random_() % count; }

  terrace_error* lease() {
    std::vector<uint32_t> tensors;
    for (uint32_t t = 0; t < capi::specs().size(); ++t) {
      if (below(2) == 0) tensors.push_back(t);
    }
    constexpr std::array kKinds = {TERRACE_FORWARD, TERRACE_BACKWARD, TERRACE_BACKWARD, TERRACE_INFERENCE};
    uint64_t number = 0;
    const std::string key = "op" + std::to_string(below(3));
    terrace_error* const error =
        terrace_lease(store_, key.c_str(), kKinds[below(kKinds.size())], tensors.data(),
                      static_cast<uint32_t>(tensors.size()), &number);
    if (error == nullptr) leases_.push_back(number);
    return error;
  }
  terrace_error* release() {
    if (leases_.empty()) return terrace_release(store_, below(9));
    const auto lease = leases_.begin() + below(static_cast<uint32_t>(leases_.size()));
    const uint64_t number = *lease;
    leases_.erase(lease);
    return terrace_release(store_, number);
  }
  terrace_error* hand_over() {
    const uint32_t tensor = below(static_cast<uint32_t>(capi::specs().size()));
    const TensorSpec& spec = capi::specs()[tensor];
    const std::vector<std::byte> gradient(spec.element_count() * bytes_of(spec.type));
    return terrace_hand_over(store_, tensor, gradient.data(), static_cast<uint32_t>(spec.type), 0);
  }
  terrace_error* update(bool announces) {
    const std::vector<terrace_optimizer> groups(2, TERRACE_INIT(terrace_optimizer));
    terrace_update_settings settings = TERRACE_INIT(terrace_update_settings);
    settings.groups = groups.data();
    settings.group_count = 2;
    settings.step = 1;
    if (below(3) == 0) settings.clip_norm = 1;
    return announces ? terrace_announce_update(store_, &settings)
                     : terrace_update(store_, &settings, &result_);
  }
  terrace_error* evaluation() {
    return below(2) == 0 ? terrace_begin_evaluation(store_) : terrace_end_evaluation(store_);
  }
  terrace_error* commit() {
    return below(2) == 0 ? terrace_begin_commit(store_, "", 0) : terrace_finish_commit(store_, &number_);
  }
  terrace_error* look() {
    switch (below(5)) {
      case 0:
        return terrace_finish_update(store_);
      case 1:
        return terrace_set_update_when(store_, below(3));
      case 2:
        return terrace_read_values(store_, below(4), TERRACE_MASTER, 0, 16, values_);
      case 3:
        return terrace_gradient(store_, below(4), &view_);
      default:
        return terrace_abandon_step(store_);
    }
  }
  // Leases, their ends and the calls around them are the most frequent ones.
  terrace_error* next() {
    switch (below(20)) {
      case 0:
      case 1:
      case 2:
        return terrace_begin_step(store_);
      case 3:
      case 4:
      case 5:
      case 6:
        return lease();
      case 7:
      case 8:
      case 9:
      case 10:
        return release();
      case 11:
      case 12:
        return terrace_select_micro_batch(store_, below(case_.accumulation + 1));
      case 13:
      case 14:
        return hand_over();
      case 15:
        return terrace_end_micro_batch(store_);
      case 16:
        return update(false);
      case 17:
        return update(true);
      case 18:
        return below(2) == 0 ? evaluation() : commit();
      default:
        return look();
    }
  }

  const Case case_;
  std::mt19937 random_;
  terrace_store* store_ = nullptr;
  std::vector<uint64_t> leases_;
  // What calls write to.
  float values_[16] = {};
  uint64_t number_ = 0;
  terrace_gradient_view view_ = TERRACE_INIT(terrace_gradient_view);
  terrace_update_result result_ = TERRACE_INIT(terrace_update_result);
};

std::vector<Case> cases_to_wander() {
  std::vector<Case> list;
  for (const bool layer_major : {true, false}) {
    for (const uint32_t gradients : {uint32_t{TERRACE_LEASED}, uint32_t{TERRACE_HANDED_OVER}}) {
      for (const uint32_t place : {uint32_t{TERRACE_CPU}, uint32_t{TERRACE_NVME}, uint32_t{TERRACE_DEVICE}}) {
        Case c = {.parameters = place, .states = place, .gradients = gradients, .accumulation = 2};
        c.layer_major = layer_major;
        c.durable = place == TERRACE_NVME ? 1 : 0;
        c.announced = gradients == TERRACE_HANDED_OVER;
        c.least_host = layer_major && place == TERRACE_NVME;
        if (place != TERRACE_DEVICE) c.update_when = TERRACE_DURING_BACKWARD;
        list.push_back(c);
      }
    }
  }
  return list;
}

TEST(CAnyOrder, OfCallsEndsNoProcess) {
  constexpr uint32_t kSeeds = 12;
  for (const Case& c : cases_to_wander()) {
    for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", layer_major " << c.layer_major
                                        << ", gradients " << c.gradients << ", on " << c.parameters);
      const ScratchFolder folder;
      Training training(c, folder.path());
      Wanderer(c, seed).wander(training.get());
    }
  }
}

}  // namespace
}  // namespace terrace::any_order_test
