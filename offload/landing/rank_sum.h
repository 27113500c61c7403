// RankSum: how a gradient is summed over ranks. A landing waits in host memory (GradientStaging) until this
// rank has sent it and has what the others sent. Then the parts that belong to this rank are handed on, in
// the order of their micro-batches.
//
//   OwnSum           there is one rank: a landing is its only part
//   ExchangeWithAll  every part goes from the rank that made it to its owner (exchange_with_all.h)
//   ExchangeOnDevices  the same from device to device (exchange_on_devices.h)
//   ExchangeByHosts  the ranks of a host sum groups first, and their sums cross (exchange_by_hosts.h)
//
// A sum knows neither where its parts are added up (GradientPlace) nor where a landing came from.
//
// The step thread uses it.
#pragma once

#include <cstddef>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/landing/gradient_runs.h>
#include <terrace/offload/plan/rank_bytes.h>
#include <terrace/offload/transfer/device_copy.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

// StagedLanding: a landing in host memory, in a slot of GradientStaging.
struct StagedLanding {
  size_t slot = 0;
  std::byte* memory = nullptr;  // of the chunk's gradient; the runs of it are there
  GradientLanding landing;      // with `runs`
  std::vector<GradientRun> runs;
  const DeviceCopy* copied = nullptr;  // the copies out of the device; over where there are none
  CacheSlot* source = nullptr;         // the device slot that it leaves, where the sum takes it from there
};

class RankSum {
 public:
  virtual ~RankSum() = default;

  // Takes one addition of a landing: `own` is its part in the own tiles, with runs counted from the first of
  // them, whose address is `gradient`. There are no runs where nothing of the landing is in the own tiles.
  // `is_last`: it is the landing's last addition.
  using Add = FunctionRef<void(const GradientLanding& own, const std::byte* gradient, bool is_last)>;

  // True if other ranks have a part in the sum: a landing is then read beside the step thread.
  virtual bool has_others() const = 0;
  // True if send() takes a landing from the device slot that it leaves, and copies nothing of it before.
  virtual bool takes_from_device() const { return false; }
  // Sends the landing behind its copies. It stays as it is until add().
  virtual void send(const StagedLanding& staged) = 0;
  // Asks for all exchanges of what was sent that have not been asked for yet. Other ranks may wait for them
  // before they ask for what this one is about to wait for.
  virtual void ask() {}
  // True if add() would not wait.
  virtual bool has_arrived(const StagedLanding& staged) = 0;
  // Waits for all parts of the landing, and adds them.
  virtual void add(const StagedLanding& staged, Add add) = 0;
  // The part of a landing of zeros that lies in the own tiles, as that of the last micro-batch of its round;
  // valid until the next call.
  virtual GradientLanding own_part(const GradientLanding& landing) = 0;
  // Bytes from other ranks and to them, counted at the request.
  virtual RankBytes moved() const = 0;
  // Bytes that it has copied out of the device itself, counted at the request.
  virtual uint64_t d2h_bytes() const { return 0; }
};

class OwnSum final : public RankSum {
 public:
  // `watch` outlives this.
  explicit OwnSum(StepWatch& watch) : watch_(watch) {}

  bool has_others() const override { return false; }
  void send(const StagedLanding&) override {}
  bool has_arrived(const StagedLanding& staged) override { return staged.copied->done(); }
  void add(const StagedLanding& staged, Add add) override {
    staged.copied->wait(watch_);
    add(staged.landing, staged.memory, true);
  }
  GradientLanding own_part(const GradientLanding& landing) override { return landing; }
  RankBytes moved() const override { return {}; }

 private:
  StepWatch& watch_;
};

}  // namespace terrace
