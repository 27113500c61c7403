// A small training that goes through terrace.h, and the same through the Offloader: no bit may differ.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/memory/space/tensor.h>
#include <terrace_run.h>

namespace terrace::capi {

struct Case {
  uint32_t parameters = TERRACE_CPU;  // terrace_placement
  uint32_t states = TERRACE_CPU;
  uint32_t gradients = TERRACE_LEASED;
  uint32_t accumulation = 1;
  uint32_t update_when = TERRACE_AFTER_BACKWARD;
  uint32_t unused = TERRACE_UNUSED_ZERO;
  uint64_t chunk_elements = 4096;
  uint32_t durable = 0, resume = 0, retained = 0;
  bool announced = false;
  bool strict = true;
  bool least_host = false;  // host memory keeps nothing that can be on nvme
  bool callers = false;     // what is trained lies in memory of the program
  bool layer_major = false;
  bool divided = false;            // parameters on the device, too
  terrace_ranks* ranks = nullptr;  // of which this is `rank`, of `rank_count`; the accumulation is of each
  uint32_t rank = 0, rank_count = 1;
  uint32_t rank_exchange = TERRACE_SYMMETRIC;
  int gpu = -1;                     // of the played driver; -1: the device is simulated
  uint32_t saved = TERRACE_DEVICE;  // where activations are saved
  bool leaves_out = false;          // each micro-batch some operations, others than the one before
};
inline constexpr Case kOnNvme = {.parameters = TERRACE_NVME, .states = TERRACE_NVME};

// Two types, one frozen, two groups.
const std::vector<TensorSpec>& specs();
inline constexpr uint32_t kFrozen = 2;
float initial_value(uint32_t tensor, uint64_t element);

// Fails the test with the error's text, and frees it. Returns whether the call went well.
bool is_well(terrace_error* error);
// What the error is; frees it. 0: it was null.
uint32_t kind_of(terrace_error* error);
// The error must be of this kind and have its parts; frees it.
void expect_kind(uint32_t kind, terrace_error* error);
// There is none, or one of a kind that changes nothing; frees it.
void expect_harmless(terrace_error* error, const std::string& what);

// Overwrites all that a store has in its files.
void damage_files(const std::filesystem::path& folder);

// The arguments of terrace_create, with the memory that they point to.
class Arguments {
 public:
  Arguments(const Case& c, const std::filesystem::path& folder);
  ~Arguments();
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  terrace_error* plan(terrace_plan_result* result) const;
  terrace_error* create(terrace_store** store) const;

  terrace_device* device = nullptr;
  std::vector<std::vector<std::byte>> memory;  // of the tensors that lie in the program
  std::vector<terrace_tensor> tensors;
  std::vector<terrace_use> uses;
  terrace_options options = TERRACE_INIT(terrace_options);

 private:
  const std::string folder_;
  const char* path_;
  std::vector<std::string> keys_;
  std::vector<std::vector<uint32_t>> used_;
};

// A store that is trained step by step.
class Training {
 public:
  Training(const Case& c, const std::filesystem::path& folder, bool filled = true);
  ~Training();
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  terrace_store* get() const { return store_; }
  void fill();
  // Calls `between` before each call of a step but the first, with the name of the place.
  using Between = std::function<void(const char* place)>;
  void step(uint64_t number, const Between& between = {});
  void end_step(uint64_t number);
  void micro_batch(uint64_t number, uint32_t micro_batch, const Between& between = {});
  // All micro-batches of a step, which are open together.
  void micro_batches_together(uint64_t number, const Between& between = {});
  terrace_update_settings settings(uint64_t number);
  // Masters and moments of what is trained, the parameters of all, and the norms of the steps.
  std::vector<float> state();
  // Moves the tensors of the program elsewhere.
  void move_tensors();
  // Gives the store up, so that it is destroyed and the training is over.
  void end();

 private:
  void use(uint64_t number, uint32_t micro_batch, uint32_t kind, const std::vector<uint32_t>& tensors,
           const std::string& key, const Between& between);
  const void* parameters(uint32_t tensor);
  void hand_over(uint32_t tensor, std::vector<std::byte> gradient);
  void* compute_stream();
  void wait_for_gpu();
  const Case case_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::vector<std::byte>> on_their_way_;  // to the GPU
  terrace_store* store_ = nullptr;
  std::vector<terrace_optimizer> groups_;
  std::vector<float> norms_;
};

// The state after `steps` steps through the Offloader.
std::vector<float> train_through_offloader(const Case& c, const std::filesystem::path& folder,
                                           uint64_t steps);

}  // namespace terrace::capi
