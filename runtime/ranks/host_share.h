// What a rank has of the host that it shares with others: its processors and its nvme paths.
#pragma once

#include <cstdint>
#include <span>

#include <terrace/comm/operations/communicator.h>
#include <terrace/runtime/config/tier_paths.h>
#include <terrace/runtime/config/train_config.h>

namespace terrace {

// Makes the configuration that of one of several ranks of a host, which share its memory and its processors.
void share_host(TrainConfig& config, uint32_t ranks_on_host);

// Gives this rank the processors that are its own among those of its host, where the configuration leaves
// that open. Every rank calls it, and nothing of the control lane is under way.
void take_processors_of_rank(Communicator& ranks, TerraceConfig& config);

// Where a rank is among those at these places; of one rank there are none.
RankSeat seat_of(uint32_t rank, std::span<const RankPlace> places);

}  // namespace terrace
