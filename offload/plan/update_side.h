// The side that updates a chunk whose optimizer states live below the device: the processor, or the device,
// to which the states come and go. The side follows from the options alone, so every run with the same
// options has the same sides; no bit depends on it.
#pragma once

#include <vector>

#include <terrace/memory/space/space_layout.h>
#include <terrace/offload/options/offload_options.h>

namespace terrace {

// By chunk: true if it is trained and updated on the device. All are false where states live on the device.
//
// With OffloadOptions::update_rates each chunk in turn goes to the side that would finish it first, given the
// chunks that the side has already; a tie goes to the processor. The processor computes at its rate. On the
// device a chunk takes as long as the slower direction of the link needs for its record, its gradient and its
// parameters; arithmetic there is assumed to be faster. A record on nvme comes on either side only after the
// drives have read it and written those before: drives that are slower than the processor leave the device
// nothing to gain, and it gets no chunk. The rule assumes that no record is resident.
//
// Without rates the processor gets OffloadOptions::processor_share of the elements, to within half a chunk,
// and nearly the same share of every prefix of the chunks, so both sides always have work in the order of the
// forward pass.
std::vector<bool> updated_on_device(const SpaceLayout& space, const OffloadOptions& options);

// The processor's share of the trained elements; 1 where there are none.
double share_of_processor(const SpaceLayout& space, const std::vector<bool>& on_device);

}  // namespace terrace
