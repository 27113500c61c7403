// ComputeDevice: the place where a model computes. A Device and the operations on its memory are made
// together, in one place; the code that trains or infers takes them as they are.
//
//   SimulatedCompute   the simulated device, whose memory the host's operations reach
//   CUDA               CudaDevice and CudaOps on its stream (compute/cuda/cuda_compute.h)
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include <terrace/base/workers.h>
#include <terrace/memory/device/device.h>
#include <terrace/offload/device/device_arithmetic.h>
#include <terrace/reference/model/compute/ops.h>

namespace terrace {

// The facts of a compute device that a plan needs.
struct ComputeFacts {
  std::string name = "the processor";  // and, on a GPU, the library of products; ranks compute on the same
  uint64_t granularity_bytes = 1;  // of the device's memory; 1: the host's pages, which every plan keeps to
  // The default budget and its origin. Nothing: the device's memory is the host's.
  struct OwnMemory {
    uint64_t budget_bytes = 0;
    std::string origin;
  };
  std::optional<OwnMemory> own_memory = std::nullopt;
};

// A device in use. It ends after everything that computes and copies with it.
class Computing {
 public:
  virtual ~Computing() = default;
  virtual Device& device() = 0;
  virtual const Ops& ops() const = 0;
  // Waits for every queued operation, so that they can be timed; a step never waits so. Throws Error(device).
  virtual void wait() = 0;
  // Returns the value for OffloadHooks::device_arithmetic.
  virtual DeviceArithmetic* arithmetic() = 0;
};

// A ComputeDevice is thread-safe and outlives the objects that it makes.
class ComputeDevice {
 public:
  virtual ~ComputeDevice() = default;
  virtual ComputeFacts facts() const = 0;
  // Makes the operations of a dry run, which only take their memory from the arena.
  virtual std::unique_ptr<Ops> make_dry_ops(Workers& workers) const = 0;
  // `workers` outlive it. Throws Error(device).
  virtual std::unique_ptr<Computing> begin(uint64_t budget_bytes, bool strict, Workers& workers) const = 0;
  // Says why the device cannot itself read files in one of these folders; empty when it can. It may make a
  // file in each folder for a moment.
  virtual std::string why_no_file_reads(std::span<const std::filesystem::path> folders) const;
};

class SimulatedCompute final : public ComputeDevice {
 public:
  explicit SimulatedCompute(ProductType products = ProductType::fp32) : products_(products) {}
  ComputeFacts facts() const override { return {}; }
  std::unique_ptr<Ops> make_dry_ops(Workers& workers) const override;
  std::unique_ptr<Computing> begin(uint64_t budget_bytes, bool strict, Workers& workers) const override;

 private:
  const ProductType products_;
};

// True if this processor has the instruction for products of the type; else it emulates them, with the same
// bits. fp32 needs none.
bool has_instruction_for(ProductType products);

// These functions take a device that may be null, which stands for the simulated one.
ComputeFacts facts_of(const ComputeDevice* device);
std::unique_ptr<Ops> make_dry_ops(const ComputeDevice* device, Workers& workers);
std::unique_ptr<Computing> begin_computing(const ComputeDevice* device, uint64_t budget_bytes, bool strict,
                                           Workers& workers, ProductType processor_products);

}  // namespace terrace
