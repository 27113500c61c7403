// ComputeDevice: where a model computes. A Device and the operations on its memory belong together and are
// made together, in one place; who trains or infers takes them as they are.
//
//   SimulatedCompute   the simulated device, whose memory the host's operations reach
//   CUDA               CudaDevice and CudaOps on its stream (compute/cuda/internal/cuda_compute.h)
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include <terrace/base/workers.h>
#include <terrace/memory/device/device.h>
#include <terrace/offload/homes/device_arithmetic.h>
#include <terrace/runtime/model/compute/ops.h>

namespace terrace {

// What a plan has to know of it.
struct ComputeFacts {
  uint64_t granularity_bytes = 1;  // of its memory; 1: pages of the host, which every plan keeps to
  // The budget where none is asked for, and where it comes from. Nothing: its memory is the host's.
  struct OwnMemory {
    uint64_t budget_bytes = 0;
    std::string origin;
  };
  std::optional<OwnMemory> own_memory = std::nullopt;
};

// A device in use. It ends after whatever computes and copies with it.
class Computing {
 public:
  virtual ~Computing() = default;
  virtual Device& device() = 0;
  virtual const Ops& ops() const = 0;
  // Until every operation that was asked for is over: for who takes their time; a step never waits so. Throws
  // Error(device).
  virtual void wait() = 0;
  // As OffloadHooks::device_arithmetic.
  virtual DeviceArithmetic* arithmetic() = 0;
};

// Thread-safe; outlives what it has made.
class ComputeDevice {
 public:
  virtual ~ComputeDevice() = default;
  virtual ComputeFacts facts() const = 0;
  // Of a dry run: what operations there take of the arena.
  virtual std::unique_ptr<Ops> make_dry_ops(Workers& workers) const = 0;
  // `workers` outlive it. Throws Error(device).
  virtual std::unique_ptr<Computing> begin(uint64_t budget_bytes, bool strict, Workers& workers) const = 0;
  // Why it cannot read files in one of these folders by itself; empty when it can. May make a file in each
  // for a moment.
  virtual std::string why_no_file_reads(std::span<const std::filesystem::path> folders) const;
};

class SimulatedCompute final : public ComputeDevice {
 public:
  ComputeFacts facts() const override { return {}; }
  std::unique_ptr<Ops> make_dry_ops(Workers& workers) const override;
  std::unique_ptr<Computing> begin(uint64_t budget_bytes, bool strict, Workers& workers) const override;
};

// The same for a device that may be null, which is the simulated one.
ComputeFacts facts_of(const ComputeDevice* device);
std::unique_ptr<Ops> make_dry_ops(const ComputeDevice* device, Workers& workers);
std::unique_ptr<Computing> begin_computing(const ComputeDevice* device, uint64_t budget_bytes, bool strict,
                                           Workers& workers);

}  // namespace terrace
