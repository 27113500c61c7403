// Who updates a chunk whose optimizer states are below the device: the processor, where they are, or the
// device, to which they come and go. It follows from the options alone, so that every run with them has the
// same sides; no bit depends on it.
#pragma once

#include <vector>

#include <terrace/memory/space/space_layout.h>
#include <terrace/offload/options/offload_options.h>

namespace terrace {

// By chunk: whether it is trained and updated on the device. Of states that live on the device: none.
//
// With OffloadOptions::update_rates every chunk, one after the other, goes to the side that is done with it
// first, given what that side has already; to the processor where both would be. The processor computes at
// its rate; on the device a chunk takes the slower way of the link, whose bytes are those of its record, its
// gradient and its parameters, and arithmetic there is taken to be faster. From nvme a record comes no sooner
// than the drives have read it and written those before, whoever updates it: drives that are slower than the
// processor leave the device nothing to gain, and it has no chunk. As if none were kept in host memory.
//
// Without rates the processor has OffloadOptions::processor_share of the elements, to within half a chunk,
// and as nearly so of every row of chunks from the first one on: in the order of the forward pass both sides
// have something to do all the time.
std::vector<bool> updated_on_device(const SpaceLayout& space, const OffloadOptions& options);

// Of the trained elements: what the processor updates; 1 where there are none.
double share_of_processor(const SpaceLayout& space, const std::vector<bool>& on_device);

}  // namespace terrace
