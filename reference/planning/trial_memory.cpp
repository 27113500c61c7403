#include <terrace/reference/planning/trial_memory.h>

#include <algorithm>
#include <span>

#include <terrace/base/event.h>
#include <terrace/base/units.h>
#include <terrace/memory/host/pages.h>
#include <terrace/optimizer_cpu/gradient.h>
#include <terrace/reference/model/compute/host_ops.h>

namespace terrace {
namespace {

constexpr uint64_t kTrialAlignment = 256;  // of a tensor; what any back end wants of one
constexpr uint64_t kFillElements = 65536;
constexpr uint64_t kHostBytes =
    kGiB;  // of one layer, unless its largest tensor takes more: far beyond caches
constexpr const char* kPurpose = "measuring operations";

uint64_t bytes_of_tensor(const TensorSpec& tensor) {
  return round_up(tensor.element_count() * bytes_of(tensor.type), kTrialAlignment);
}

// Of tensors, or of the gradients of those that are trained.
struct Needs {
  uint64_t all_bytes = 0;      // each has memory of its own
  uint64_t largest_bytes = 0;  // all share the memory of the largest
};

Needs needs_of(const std::vector<TensorSpec>& tensors, bool gradients) {
  Needs needs;
  for (const TensorSpec& tensor : tensors) {
    if (gradients && !tensor.trainable) continue;
    needs.all_bytes += bytes_of_tensor(tensor);
    needs.largest_bytes = std::max(needs.largest_bytes, bytes_of_tensor(tensor));
  }
  return needs;
}

// One after the other, and where the memory ends from its beginning again: no two bytes of one tensor share
// memory.
std::vector<uint64_t> lay_out(const std::vector<TensorSpec>& tensors, bool gradients, uint64_t memory_bytes) {
  std::vector<uint64_t> offsets;
  uint64_t at = 0;
  for (const TensorSpec& tensor : tensors) {
    const uint64_t bytes = gradients && !tensor.trainable ? 0 : bytes_of_tensor(tensor);
    if (at + bytes > memory_bytes) at = 0;
    offsets.push_back(at);
    at += bytes;
  }
  return offsets;
}

// The first values of a tensor, as it has them. Small numbers: what is not normal takes a processor longer.
std::vector<std::byte> first_values(const Model& model, TensorId tensor, const TensorSpec& spec) {
  std::vector<float> values(std::min(kFillElements, spec.element_count()));
  model.initial_values(tensor, 0, values);
  std::vector<std::byte> bytes(values.size() * bytes_of(spec.type));
  convert_from_float(best_instruction_set(), values.data(), bytes.data(), spec.type, values.size());
  return bytes;
}

class HostTrial final : public TrialMemory {
 public:
  HostTrial(const Model& model, const std::vector<TensorSpec>& tensors, uint64_t work_bytes,
            ProductType products, Workers& workers)
      : ops_(workers, best_instruction_set(), products) {
    const Shares shares = shares_of(tensors, work_bytes, kHostBytes);
    memory_ = PageMapping::populated(round_up(shares.all_bytes(), page_bytes()), true, kPurpose);
    use(memory_.memory(), tensors, shares);
    for (uint32_t t = 0; t < tensors.size(); ++t) {
      const std::vector<std::byte> values = first_values(model, TensorId{t}, tensors[t]);
      const uint64_t bytes = tensors[t].element_count() * bytes_of(tensors[t].type);
      std::byte* const to = memory_of(TensorId{t});
      for (uint64_t at = 0; at < bytes; at += values.size())
        std::copy_n(values.data(), std::min<uint64_t>(values.size(), bytes - at), to + at);
    }
  }
  const Ops& ops() const override { return ops_; }
  void wait() override {}

 private:
  PageMapping memory_;
  const HostOps ops_;
};

class DeviceTrial final : public TrialMemory {
 public:
  DeviceTrial(const Model& model, const std::vector<TensorSpec>& tensors, uint64_t work_bytes,
              const TrialPlace& place, Workers& workers) {
    const uint64_t granularity = place.compute->facts().granularity_bytes;
    const Shares shares = shares_of(tensors, work_bytes, place.device_bytes / granularity * granularity);
    const uint64_t bytes = round_up(shares.all_bytes(), granularity);
    computing_ = place.compute->begin(bytes, false, workers);
    use(computing_->device().allocate_work_memory(bytes), tensors, shares);
    for (uint32_t t = 0; t < tensors.size(); ++t) fill(TensorId{t}, tensors[t], model);
  }
  const Ops& ops() const override { return computing_->ops(); }
  void wait() override { computing_->wait(); }

 private:
  void fill(TensorId tensor, const TensorSpec& spec, const Model& model) {
    const std::vector<std::byte> values = first_values(model, tensor, spec);
    const uint64_t bytes = spec.element_count() * bytes_of(spec.type);
    std::byte* const to = memory_of(tensor);
    Event done;
    done.begin(static_cast<uint32_t>(divide_up(bytes, values.size())));
    for (uint64_t at = 0; at < bytes; at += values.size())
      computing_->device().copy_to_work(to + at, values.data(), std::min<uint64_t>(values.size(), bytes - at),
                                        nullptr, done);
    done.wait();
  }

  std::unique_ptr<Computing> computing_;
};

}  // namespace

TrialMemory::Shares TrialMemory::shares_of(const std::vector<TensorSpec>& tensors, uint64_t work_bytes,
                                           uint64_t room_bytes) {
  const Needs parameters = needs_of(tensors, false), gradients = needs_of(tensors, true);
  Shares shares;
  shares.work_bytes = round_up(work_bytes, kTrialAlignment);
  const auto room = [&] {
    const uint64_t left = room_bytes - std::min(room_bytes, shares.all_bytes());
    return left / kTrialAlignment * kTrialAlignment;
  };
  shares.gradient_bytes = gradients.largest_bytes;
  shares.parameter_bytes = std::clamp(room(), parameters.largest_bytes, parameters.all_bytes);
  shares.gradient_bytes += std::min(room(), gradients.all_bytes - gradients.largest_bytes);
  return shares;
}

void TrialMemory::use(std::span<std::byte> memory, const std::vector<TensorSpec>& tensors,
                      const Shares& shares) {
  arena_ = std::make_unique<StackArena>(memory.first(shares.work_bytes));
  parameters_ = memory.data() + shares.work_bytes;
  gradients_ = parameters_ + shares.parameter_bytes;
  offsets_ = lay_out(tensors, false, shares.parameter_bytes);
  gradient_offsets_ = lay_out(tensors, true, shares.gradient_bytes);
}

uint64_t least_trial_bytes(const std::vector<TensorSpec>& tensors, uint64_t work_bytes) {
  return TrialMemory::shares_of(tensors, work_bytes, 0).all_bytes();
}

std::unique_ptr<TrialMemory> make_trial_memory(const Model& model, const std::vector<TensorSpec>& tensors,
                                               uint64_t work_bytes, const TrialPlace& place,
                                               Workers& workers) {
  if (place.compute == nullptr)
    return std::make_unique<HostTrial>(model, tensors, work_bytes, place.products, workers);
  return std::make_unique<DeviceTrial>(model, tensors, work_bytes, place, workers);
}

}  // namespace terrace
