// ExchangeOnDevices: the exchange of gradients from device to device, by a communicator that has a way there
// (exchange_on_devices() of the options). The parts of other ranks leave from the device slot in which leases
// have written them, or to which what was handed over was copied, and theirs come to work memory; the host
// sees none of the former. An owner adds the parts of all ranks as they are (rank_parts.h): where its
// accumulators are on the host, its own part and what has come are copied there first; where they are on the
// device, the own part is copied beside the others' there, since the slot is taken again before they are
// added.
//
// The slot is free, for whoever takes it next, when the exchange is over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <terrace/memory/device/device.h>
#include <terrace/offload/landing/rank_parts.h>
#include <terrace/offload/landing/rank_sum.h>

namespace terrace {

class ExchangeOnDevices final : public RankSum {
 public:
  // Where the parts of a landing are before they are added, each in a place of so many bytes.
  struct Memory {
    Device& device;
    std::span<std::byte> on_device;  // work memory: places of the other ranks, for every slot; and of the own
                                     // one behind them, where parts are added there
    std::vector<std::byte*> on_host;  // by slot: places of the other ranks; none where parts are added on the
                                      // device. The own one is StagedLanding::memory
    uint64_t place_bytes = 0;         // of the gradient of the largest share: MemoryPlan::share_bytes
    size_t slots = 0;
  };
  // `most_runs` is the largest number of runs in a landing.
  ExchangeOnDevices(const ExchangeRanks& ranks, const Memory& memory, size_t most_runs);
  // Waits for what is under way.
  ~ExchangeOnDevices() override;

  bool has_others() const override { return true; }
  bool takes_from_device() const override { return true; }
  void send(const StagedLanding& staged) override;
  bool has_arrived(const StagedLanding& staged) override;
  void add(const StagedLanding& staged, Add add) override;
  GradientLanding own_part(const GradientLanding& landing) override { return own_.of(landing); }
  RankBytes moved() const override { return moved_; }
  uint64_t d2h_bytes() const override { return d2h_bytes_; }

 private:
  struct Parts {
    std::byte* on_device = nullptr;
    std::byte* on_host = nullptr;    // null where parts are added on the device
    DeviceCopy left;                 // the own part is out of the slot, and operations are over that wrote it
    DeviceCopy exchanged;            // with all ranks
    DeviceCopy arrived;              // on the host
    std::vector<CommPart> to, from;  // by rank; none in a dry run, where one part stands for all
  };

  bool adds_on_device() const { return memory_.on_host.empty(); }
  // Of a rank among the places of a slot.
  uint64_t place_of(uint32_t rank) const {
    const uint32_t mine = ranks_.rank();
    return (rank == mine ? ranks_.size() - 1 : rank < mine ? rank : rank - 1) * memory_.place_bytes;
  }
  void take_own_part(const StagedLanding& staged);
  void exchange(const StagedLanding& staged);
  void bring_to_host(const StagedLanding& staged);

  const ExchangeRanks ranks_;
  const Memory memory_;
  OwnParts own_;
  std::vector<Parts> parts_;  // by slot
  uint64_t sent_ = 0;
  uint64_t d2h_bytes_ = 0;
  RankBytes moved_;
};

}  // namespace terrace
