#include <terrace/reference/model/compute/compute_device.h>

#include <terrace/memory/device/simulated_device.h>
#include <terrace/reference/model/compute/host_ops.h>

namespace terrace {
namespace {

class SimulatedComputing final : public Computing {
 public:
  SimulatedComputing(uint64_t budget_bytes, bool strict, Workers& workers, ProductType products)
      : device_({budget_bytes, strict, 0, 0}), ops_(workers, best_instruction_set(), products) {}
  Device& device() override { return device_; }
  const Ops& ops() const override { return ops_; }
  void wait() override {}  // each is over when its call returns
  DeviceArithmetic* arithmetic() override { return nullptr; }

 private:
  SimulatedDevice device_;
  HostOps ops_;
};

}  // namespace

std::string ComputeDevice::why_no_file_reads(std::span<const std::filesystem::path>) const {
  return "only a GPU reads files by itself, and this device is none";
}

std::unique_ptr<Ops> SimulatedCompute::make_dry_ops(Workers& workers) const {
  return std::make_unique<HostOps>(workers, best_instruction_set(), products_, true);
}

std::unique_ptr<Computing> SimulatedCompute::begin(uint64_t budget_bytes, bool strict,
                                                   Workers& workers) const {
  return std::make_unique<SimulatedComputing>(budget_bytes, strict, workers, products_);
}

bool has_instruction_for(ProductType products) {
  return has_instruction(best_instruction_set(), products);
}

ComputeFacts facts_of(const ComputeDevice* device) {
  return device != nullptr ? device->facts() : SimulatedCompute().facts();
}

std::unique_ptr<Ops> make_dry_ops(const ComputeDevice* device, Workers& workers) {
  return device != nullptr ? device->make_dry_ops(workers) : SimulatedCompute().make_dry_ops(workers);
}

std::unique_ptr<Computing> begin_computing(const ComputeDevice* device, uint64_t budget_bytes, bool strict,
                                           Workers& workers, ProductType processor_products) {
  return device != nullptr ? device->begin(budget_bytes, strict, workers)
                           : SimulatedCompute(processor_products).begin(budget_bytes, strict, workers);
}

}  // namespace terrace
