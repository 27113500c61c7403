// ParameterHomes: where parameters live below the device, for the ways there and back.
#pragma once

#include <cstddef>
#include <span>

#include <terrace/aio/io_thread.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/memory/tier/block_store.h>
#include <terrace/offload/parameters/device_shares.h>

namespace terrace {

// ParameterStores: the stores of parameters in the tier. All are null where no parameters are on nvme.
struct ParameterStores {
  BlockStore* all = nullptr;       // all parameters, or the trained ones
  BlockStore* frozen = nullptr;    // null: frozen ones are in `all`
  io::IoThread* reader = nullptr;  // reads both

  BlockStore& of(const FlatSpace& space, ChunkId chunk) const {
    return frozen != nullptr && !space.section_of(chunk).trainable ? *frozen : *all;
  }
};

// It owns nothing.
struct ParameterHomes {
  ParameterStores stores;
  std::span<std::byte* const> host_slots;  // by chunk, or null
  DeviceShares* device_shares = nullptr;   // null unless parameters are divided on the device
};

}  // namespace terrace
