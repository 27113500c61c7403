// Who updates a chunk whose optimizer states are below the device: the processor, where they are, or the
// device, to which they come and go. It follows from the options alone, so that every run with them has the
// same sides; no bit depends on it.
#pragma once

#include <vector>

#include <terrace/memory/flat_space.h>
#include <terrace/offload/offload_options.h>

namespace terrace {

// By chunk: whether it is trained and updated on the device. The processor has
// OffloadOptions::processor_share of the elements, to within half a chunk, and as nearly so of every row of
// chunks from the first one on: in the order of the forward pass both sides have something to do all the
// time. Of states that live on the device: none.
std::vector<bool> updated_on_device(const FlatSpace& space, const OffloadOptions& options);

}  // namespace terrace
