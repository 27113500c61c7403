// UpdateRates: how fast the two sides of an update are on this machine, as somebody has measured them.
#pragma once

namespace terrace {

// In a second. The first two are above 0.
struct UpdateRates {
  double processor_elements = 0;  // that the processor updates
  double link_bytes = 0;          // to the device and from it, each way while both go
  double nvme_bytes = 0;          // of the drives of the states, both ways together; 0: not known

  bool operator==(const UpdateRates&) const = default;
};

}  // namespace terrace
