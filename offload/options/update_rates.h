// UpdateRates: the measured speed of the two sides of an update on this machine.
#pragma once

namespace terrace {

// Every rate is per second. The first two are above 0.
struct UpdateRates {
  double processor_elements = 0;  // elements that the processor updates
  double link_bytes = 0;          // in each direction of the device's link while both are busy
  double nvme_bytes = 0;          // reads and writes together on the drives of the states; 0: not known

  bool operator==(const UpdateRates&) const = default;
};

}  // namespace terrace
