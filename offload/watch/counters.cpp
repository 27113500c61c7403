#include <terrace/offload/watch/counters.h>

#include <terrace/offload/watch/counter_table.h>

namespace terrace {

OffloadCounters operator-(const OffloadCounters& later, const OffloadCounters& earlier) {
  OffloadCounters difference = later;
  for (const CounterEntry& counter : kCounters) difference.*counter.value -= earlier.*counter.value;
  difference.time = later.time - earlier.time;
  return difference;
}

OffloadCounters operator+(const OffloadCounters& one, const OffloadCounters& other) {
  OffloadCounters sum = one;
  for (const CounterEntry& counter : kCounters) sum.*counter.value += other.*counter.value;
  sum.time = one.time + other.time;
  return sum;
}

}  // namespace terrace
