// The pulling of parameters and gradients as a model: ranks that run programs of their own, their
// communication sides, and owners of chunks. explore() goes through every interleaving of a scenario and says
// what is wrong in the first state in which something is.
//
// Each chunk belongs to one rank, since the shares of a chunk know nothing of each other. A message from one
// rank to another may be as late as it likes and keeps its place among those between the two. What is wrong:
// a read of another version than the reader's, a write while somebody reads, a gradient that is added out of
// the order of micro-batches, twice, or of a slot that holds another one, an update without a gradient that
// was handed over, and a state from which nothing moves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace terrace::pull_model {

inline constexpr uint32_t kChunks = 2;
inline constexpr uint32_t kMostRanks = 3;

enum class ActionKind : uint8_t {
  read,      // a use: waits for the chunk at the version of the step
  prefetch,  // the same, ahead of a use that may never come: nobody waits for it but the update
  give,      // hands the gradient of a micro-batch over: waits for room in the staging
  end,       // of a micro-batch: what it did not give is absent
  barrier,   // of the program itself: all ranks come
  update,    // adds are over, all ranks have come, the own chunks are written
};

struct Action {
  ActionKind kind = ActionKind::read;
  uint32_t chunk = 0;
  uint32_t micro_batch = 0;
};

struct Scenario {
  uint32_t ranks = 2;
  uint32_t micro_batches = 2;  // of a step; rank r computes those that are r modulo the ranks
  uint32_t staging = 1;        // gradients that a rank may have handed over and that nobody has taken
  std::vector<std::vector<Action>> programs;  // by rank
};

// The protocol, and what of it can be left out on purpose.
enum class Break : uint8_t {
  nothing,
  adds_on_step_thread,       // an owner adds in its own calls alone, and not while its step thread waits
  overwrites_when_done,      // an owner writes when it has come to the update itself
  reads_any_version,         // nobody looks whether the owner's update is over
  leaves_reads_open,         // a rank comes to the update with a prefetch under way
  adds_as_they_come,         // and not in the order of micro-batches
  declares_absent_early,     // at the begin of a micro-batch
  declares_all_absent,       // the end of one micro-batch is taken for that of all of the rank's
  frees_slot_when_told,      // and not when the gradient has been taken
  updates_before_all_added,  // when all ranks have come
  adds_before_own_update,    // gradients of the next step, while the owner's update reads its own
  loses_order_of_messages,   // the word that a micro-batch has ended overtakes gradients of it
};

struct Exploration {
  uint64_t states = 0;
  std::string wrong;  // empty: nothing is
};
// Goes through all interleavings, or until something is wrong.
Exploration explore(const Scenario& scenario, Break broken = Break::nothing);

// All orders in which a rank can hand over gradients of some of the chunks: 5.
std::vector<std::vector<uint32_t>> orders();

}  // namespace terrace::pull_model
