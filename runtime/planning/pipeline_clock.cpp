#include <terrace/runtime/planning/pipeline_clock.h>

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/runtime/planning/rank_costs.h>

namespace terrace {
namespace {

// The last of so many steps is like all that follow.
constexpr uint32_t kSteps = 3;
// Gloo sends the head of a message, learns that its body is waited for, and sends that.
constexpr double kDelays = 3;

// Messages of one kind from one stage to another. They go one after the other, and the receiver takes one
// ahead of the one that it asks for (python/terrace/pipe/transfer.py).
struct Channel {
  uint32_t from = 0, to = 0;
  double bytes = 0;
  uint32_t posted = 0, begun = 0, arrived = 0, taken = 0;
};

// Where a stage is in its step.
struct Position {
  uint32_t instruction = 0;  // of the schedule
  bool computes = false;
  bool has_ended = false;  // and waits until all have
  uint32_t step = 0;
  double worked = 0;  // seconds of this step
};

class Simulation {
 public:
  explicit Simulation(const PipelineQuestion& question)
      : q_(question),
        count_(static_cast<uint32_t>(question.stages.size())),
        micro_batches_(static_cast<uint32_t>(question.stages.front().forward.size())),
        positions_(count_),
        until_(count_) {
    uint32_t hosts = 0;
    for (const StagePasses& stage : q_.stages) {
      TERRACE_ASSERT(stage.forward.size() == micro_batches_ && stage.backward.size() == micro_batches_,
                     "stages have different numbers of micro-batches");
      hosts = std::max(hosts, stage.host + 1);
    }
    for (std::vector<Line>* lines : {&out_, &in_}) lines->resize(hosts);
    within_.resize(count_);
    for (uint32_t s = 0; s + 1 < count_; ++s) {
      activations_.push_back({s, s + 1, q_.activation_bytes});
      gradients_.push_back({s + 1, s, q_.activation_bytes});
    }
    tied_gradients_ = {count_ - 1, 0, q_.tied_bytes};
    tied_values_ = {0, count_ - 1, q_.tied_bytes};
  }

  PipelineTime run() {
    for (uint32_t s = 0; s < count_; ++s) at(0, Event::stage, s);
    while (!events_.empty()) {
      const auto [time, number, event, index] = events_.top();
      events_.pop();
      now_ = time;
      event == Event::stage ? go_on(index) : arrive(*on_the_way_[index]);
    }
    return time_;
  }

 private:
  enum class Event : uint8_t { stage, arrival };
  struct Line {
    double free_at = 0;
    double busy = 0;  // since the last step ended
  };
  struct Instruction {
    bool is_forward = true;
    uint32_t micro_batch = 0;
  };

  void at(double time, Event event, uint32_t index) { events_.emplace(time, numbers_++, event, index); }
  bool is_tied() const { return q_.tied_bytes > 0 && count_ > 1; }

  // As TrainSchedule has them.
  Instruction instruction_of(uint32_t stage, uint32_t index) const {
    const uint32_t ahead = std::min(count_ - stage, micro_batches_) - 1;
    if (index < ahead) return {true, index};
    const uint32_t behind = index - ahead, last = 2 * (micro_batches_ - ahead);
    if (behind >= last) return {false, micro_batches_ - ahead + behind - last};
    return behind % 2 == 0 ? Instruction{true, ahead + behind / 2} : Instruction{false, behind / 2};
  }

  // --- Messages ---

  void post(Channel& channel) {
    ++channel.posted;
    try_to_begin(channel);
  }
  void try_to_begin(Channel& channel) {
    if (channel.begun == channel.posted || channel.begun > channel.taken) return;
    ++channel.begun;
    const uint32_t from = q_.stages[channel.from].host, to = q_.stages[channel.to].host;
    const StageLink& link = from == to ? q_.host_link : q_.network;
    Line& out = from == to ? within_[channel.from] : out_[from];
    Line& in = from == to ? within_[channel.from] : in_[to];
    const double seconds = link.message_seconds + quotient(channel.bytes, link.bytes);
    const double end = std::max({now_, out.free_at, in.free_at}) + seconds;
    out.free_at = in.free_at = end;
    out.busy += seconds;
    if (&in != &out) in.busy += seconds;
    on_the_way_.push_back(&channel);
    at(end + kDelays * link.delay, Event::arrival, static_cast<uint32_t>(on_the_way_.size() - 1));
  }
  void arrive(Channel& channel) {
    ++channel.arrived;
    go_on(channel.to);
  }
  static bool has(const Channel& channel) { return channel.arrived > channel.taken; }
  void take(Channel& channel) {
    ++channel.taken;
    try_to_begin(channel);
  }

  // --- Stages ---

  void go_on(uint32_t stage) {
    Position& own = positions_[stage];
    if (own.has_ended || (own.computes && now_ < until_[stage])) return;  // a message has come meanwhile
    if (own.computes) finish(stage);
    if (own.step == kSteps) return;
    if (own.instruction == 2 * micro_batches_) return reach_end(stage);
    const Instruction next = instruction_of(stage, own.instruction);
    if (!takes_what_it_needs(stage, next)) return;
    const StagePasses& passes = q_.stages[stage];
    compute(stage, (next.is_forward ? passes.forward : passes.backward)[next.micro_batch]);
  }
  void compute(uint32_t stage, double seconds) {
    until_[stage] = now_ + seconds;
    positions_[stage].computes = true;
    positions_[stage].worked += seconds;
    at(until_[stage], Event::stage, stage);
  }
  bool takes_what_it_needs(uint32_t stage, const Instruction& next) {
    std::vector<Channel*> needed;
    if (next.is_forward && stage > 0) needed.push_back(&activations_[stage - 1]);
    if (!next.is_forward && stage + 1 < count_) needed.push_back(&gradients_[stage]);
    if (!next.is_forward && stage == 0 && is_tied()) needed.push_back(&tied_gradients_);
    const bool is_first = positions_[stage].instruction == 0 && positions_[stage].step > 0;
    if (is_first && stage + 1 == count_ && is_tied()) needed.push_back(&tied_values_);
    if (!std::ranges::all_of(needed, [](const Channel* channel) { return has(*channel); })) return false;
    for (Channel* channel : needed) take(*channel);
    return true;
  }
  void finish(uint32_t stage) {
    Position& own = positions_[stage];
    own.computes = false;
    if (own.instruction == 2 * micro_batches_) return finish_update(stage);
    const Instruction done = instruction_of(stage, own.instruction++);
    if (done.is_forward && stage + 1 < count_) post(activations_[stage]);
    if (!done.is_forward && stage + 1 == count_ && is_tied()) post(tied_gradients_);
    if (!done.is_forward && stage > 0) post(gradients_[stage - 1]);
  }

  // All stages tell each other their losses and norms, and then each updates.
  void reach_end(uint32_t stage) {
    positions_[stage].has_ended = true;
    if (++at_end_ < count_) return;
    at_end_ = 0;
    end_step();
    for (uint32_t s = 0; s < count_; ++s) {
      positions_[s].has_ended = false;
      compute(s, q_.stages[s].update);
    }
  }
  void finish_update(uint32_t stage) {
    Position& own = positions_[stage];
    own.instruction = 0;
    ++own.step;
    if (stage == 0 && is_tied()) post(tied_values_);
  }
  // A step is from one such moment to the next, with the update in between.
  void end_step() {
    time_.step_seconds = now_ - ended_at_;
    ended_at_ = now_;
    time_.idle_seconds.assign(count_, 0);
    for (uint32_t s = 0; s < count_; ++s)
      time_.idle_seconds[s] = time_.step_seconds - std::exchange(positions_[s].worked, 0);
    time_.line_seconds = 0;
    for (std::vector<Line>* lines : {&out_, &in_}) {
      for (Line& line : *lines)
        time_.line_seconds = std::max(time_.line_seconds, std::exchange(line.busy, 0));
    }
  }

  const PipelineQuestion& q_;
  const uint32_t count_;
  const uint32_t micro_batches_;
  std::vector<Position> positions_;
  std::vector<double> until_;   // by stage: when what it computes is over
  std::vector<Line> out_, in_;  // by host
  std::vector<Line> within_;    // by the stage that sends
  std::vector<Channel> activations_, gradients_;
  Channel tied_gradients_, tied_values_;
  std::vector<Channel*> on_the_way_;  // by the number of an arrival
  std::priority_queue<std::tuple<double, uint64_t, Event, uint32_t>,
                      std::vector<std::tuple<double, uint64_t, Event, uint32_t>>, std::greater<>>
      events_;
  uint64_t numbers_ = 0;
  double now_ = 0;
  double ended_at_ = 0;
  uint32_t at_end_ = 0;
  PipelineTime time_;
};

}  // namespace

double bubble_part(uint32_t stages, uint32_t micro_batches) {
  return (stages - 1.0) / (micro_batches + stages - 1.0);
}

PipelineClock::PipelineClock(const PipelineQuestion& question) : question_(question) {
  TERRACE_ASSERT(!question.stages.empty() && !question.stages.front().forward.empty(),
                 "a pipeline has a stage and a micro-batch");
}

PipelineTime PipelineClock::run() const {
  return Simulation(question_).run();
}

}  // namespace terrace
