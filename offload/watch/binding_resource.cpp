#include <terrace/offload/watch/binding_resource.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace terrace {

uint64_t disk_read_bytes(const OffloadCounters& counted) {
  return counted.param_read_bytes + counted.record_read_bytes + counted.cache_read_bytes +
         counted.gradient_read_bytes + counted.activation_read_bytes + counted.restore_read_bytes;
}

uint64_t disk_write_bytes(const OffloadCounters& counted) {
  return counted.param_write_bytes + counted.record_write_bytes + counted.cache_write_bytes +
         counted.gradient_write_bytes + counted.activation_write_bytes + counted.commit_write_bytes;
}

namespace {

Resource disk_direction(const OffloadCounters& counted) {
  const uint64_t reads = counted.time[TimeCause::read];
  const uint64_t writes = counted.time[TimeCause::write];
  const bool more_reads =
      reads != writes ? reads > writes : disk_read_bytes(counted) >= disk_write_bytes(counted);
  return more_reads ? Resource::disk_reads : Resource::disk_writes;
}

double percent(uint64_t part, uint64_t whole) {
  return whole > 0 ? 100 * static_cast<double>(part) / static_cast<double>(whole) : 0;
}

}  // namespace

std::string_view name_of(Resource resource) {
  switch (resource) {
    case Resource::processor:
      return "the processor";
    case Resource::host_to_device:
      return "copies to the device";
    case Resource::device_to_host:
      return "copies from the device";
    case Resource::disk_reads:
      return "disk reads";
    case Resource::disk_writes:
      return "disk writes";
    case Resource::device_compute:
      return "operations of the device";
  }
  return "";
}

std::string_view key_of(Resource resource) {
  switch (resource) {
    case Resource::processor:
      return "processor";
    case Resource::host_to_device:
      return "h2d";
    case Resource::device_to_host:
      return "d2h";
    case Resource::disk_reads:
      return "disk_reads";
    case Resource::disk_writes:
      return "disk_writes";
    case Resource::device_compute:
      return "device_compute";
  }
  return "";
}

ResourceUse resource_use(const OffloadCounters& counted) {
  const TimeParts& time = counted.time;
  return resource_use(counted,
                      {0, time[TimeCause::compute] + time[TimeCause::update] + time[TimeCause::overhead]});
}

ResourceUse resource_use(const OffloadCounters& counted, const ComputeUse& compute) {
  const TimeParts& time = counted.time;
  ResourceUse use;
  use.total_ns = time.total_ns();
  use.processor_ns = compute.processor_ns;
  use.h2d_ns = counted.h2d_busy_ns;
  use.d2h_ns = counted.d2h_busy_ns;
  use.disk_ns = std::max(counted.disk_busy_ns, time[TimeCause::read] + time[TimeCause::write]);
  use.device_ns = compute.device_ns;
  const std::array<std::pair<Resource, uint64_t>, 5> busy = {{{Resource::processor, use.processor_ns},
                                                              {Resource::device_compute, use.device_ns},
                                                              {Resource::host_to_device, use.h2d_ns},
                                                              {Resource::device_to_host, use.d2h_ns},
                                                              {disk_direction(counted), use.disk_ns}}};
  uint64_t most = 0;
  for (const auto& [resource, ns] : busy) {
    if (ns <= most) continue;
    most = ns;
    use.binding = resource;
  }
  return use;
}

std::string resource_text(const ResourceUse& use) {
  const std::string device =
      use.device_ns > 0 ? fmt::format("device {:.1f} %, ", percent(use.device_ns, use.total_ns)) : "";
  return fmt::format("bound by {}; busy: {}processor {:.1f} %, disk {:.1f} %, h2d {:.1f} %, d2h {:.1f} %",
                     name_of(use.binding), device, percent(use.processor_ns, use.total_ns),
                     percent(use.disk_ns, use.total_ns), percent(use.h2d_ns, use.total_ns),
                     percent(use.d2h_ns, use.total_ns));
}

}  // namespace terrace
