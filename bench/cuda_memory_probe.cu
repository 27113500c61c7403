// Measures on a GPU what the device tier is designed around: what the driver's virtual memory calls cost,
// whether they wait for running work or hold it up, and how fast memory is copied over the link. Tables, then
// one line of JSON; --json prints the JSON alone. Where there is no driver or no GPU it says so in one line
// and exits with 3.
//
// It must not use managed memory, change a setting of the device, or take more of its memory than three of
// the largest buffers it measures.
#include "cuda_support.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <exception>
#include <iterator>
#include <thread>
#include <vector>

namespace terrace::bench {
namespace {

constexpr size_t kMiB = 1024 * 1024;
constexpr int kExitNoDevice = 3;
constexpr int kIdleRepeats = 25;
constexpr int kBusyRepeats = 7;
// How long a kernel holds the device when nothing stops it: far longer than any driver call should take, so a
// call that returns later than this has waited for the kernel.
constexpr long long kLongestSpin_ms = 20;
// The stream in the stall test: kernels enough to outlast some calls, few enough for the launch queue.
constexpr int kStreamKernelCount = 400;
constexpr long long kStreamKernel_us = 100;

double now_us() {
  using namespace std::chrono;
  return duration<double, std::micro>(steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// ---- Kernels that keep the device busy

// Says that it runs, then holds one multiprocessor until the host says stop or the time is up.
__global__ void spin_until_stopped(volatile int* started, const volatile int* stop,
                                   long long longest_cycles) {
  const long long start = clock64();
  *started = 1;
  __threadfence_system();
  while (*stop == 0 && clock64() - start < longest_cycles) {
  }
}

__global__ void spin_for(long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
}

long long cycles_per_us() {
  int clock_khz = 0;
  check(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, 0), "cudaDeviceGetAttribute(clock rate)");
  return std::max(1, clock_khz / 1000);
}

// A kernel running from construction to destruction, or until its time is up.
class BusyDevice {
 public:
  BusyDevice() : flags_(2 * sizeof(int), true), host_(static_cast<volatile int*>(flags_.data())) {
    host_[0] = 0;
    host_[1] = 0;
    void* device = nullptr;
    check(cudaHostGetDevicePointer(&device, flags_.data(), 0), "cudaHostGetDevicePointer");
    auto* flags = static_cast<volatile int*>(device);
    spin_until_stopped<<<1, 1, 0, stream_.get()>>>(flags, flags + 1,
                                                   cycles_per_us() * 1000 * kLongestSpin_ms);
    check(cudaGetLastError(), "launch of spin_until_stopped");
    while (host_[0] == 0 && !stream_.is_idle()) {
    }
  }
  ~BusyDevice() {
    host_[1] = 1;
    report(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
  }
  BusyDevice(const BusyDevice&) = delete;
  BusyDevice& operator=(const BusyDevice&) = delete;

  bool has_ended() const { return stream_.is_idle(); }

 private:
  Stream stream_;
  HostBuffer flags_;  // [0]: the kernel runs; [1]: it should stop
  volatile int* host_;
};

// ---- The driver's virtual memory calls

// One physical piece of device memory and one range of addresses of its size.
class MappedPiece {
 public:
  MappedPiece(const Driver& driver, CUdevice device, size_t size_bytes)
      : driver_(driver), size_bytes_(size_bytes) {
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties_.location.id = device;
    access_.location = properties_.location;
    access_.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    driver_.check(driver_.cuMemAddressReserve(&address_, size_bytes_, 0, 0, 0), "cuMemAddressReserve");
  }
  ~MappedPiece() {
    if (is_mapped_) driver_.report(driver_.cuMemUnmap(address_, size_bytes_), "cuMemUnmap");
    if (is_created_) driver_.report(driver_.cuMemRelease(handle_), "cuMemRelease");
    driver_.report(driver_.cuMemAddressFree(address_, size_bytes_), "cuMemAddressFree");
  }
  MappedPiece(const MappedPiece&) = delete;
  MappedPiece& operator=(const MappedPiece&) = delete;

  // The smallest size that the device maps; every size is a multiple of it.
  static size_t granularity(const Driver& driver, CUdevice device) {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    size_t size_bytes = 0;
    driver.check(
        driver.cuMemGetAllocationGranularity(&size_bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        "cuMemGetAllocationGranularity");
    return size_bytes;
  }

  void create() {
    driver_.check(driver_.cuMemCreate(&handle_, size_bytes_, &properties_, 0), "cuMemCreate");
    is_created_ = true;
  }
  void map() {
    driver_.check(driver_.cuMemMap(address_, size_bytes_, 0, handle_, 0), "cuMemMap");
    is_mapped_ = true;
  }
  void set_access() {
    driver_.check(driver_.cuMemSetAccess(address_, size_bytes_, &access_, 1), "cuMemSetAccess");
  }
  void unmap() {
    driver_.check(driver_.cuMemUnmap(address_, size_bytes_), "cuMemUnmap");
    is_mapped_ = false;
  }
  void release() {
    driver_.check(driver_.cuMemRelease(handle_), "cuMemRelease");
    is_created_ = false;
  }

 private:
  const Driver& driver_;
  size_t size_bytes_;
  CUmemAllocationProp properties_ = {};
  CUmemAccessDesc access_ = {};
  CUdeviceptr address_ = 0;
  CUmemGenericAllocationHandle handle_ = 0;
  bool is_created_ = false;
  bool is_mapped_ = false;
};

struct CallCost {
  std::string call;
  size_t size_bytes = 0;
  double idle_median_us = 0;
  double idle_max_us = 0;
  double busy_median_us = 0;
  double busy_max_us = 0;
  int waited_count = 0;  // of kBusyRepeats: the kernel had ended when the call returned
};

struct NamedCall {
  const char* name;
  void (MappedPiece::*call)();
};
// In the order in which they follow one another in a piece's life.
constexpr NamedCall kCalls[] = {{"cuMemCreate", &MappedPiece::create},
                                {"cuMemMap", &MappedPiece::map},
                                {"cuMemSetAccess", &MappedPiece::set_access},
                                {"cuMemUnmap", &MappedPiece::unmap},
                                {"cuMemRelease", &MappedPiece::release}};

std::vector<CallCost> measure_calls(const Driver& driver, CUdevice device, size_t size_bytes) {
  MappedPiece piece(driver, device, size_bytes);
  std::vector<std::vector<double>> idle_us(std::size(kCalls)), busy_us(std::size(kCalls));
  std::vector<int> waited_count(std::size(kCalls), 0);
  const auto time_us = [&piece](const NamedCall& call) {
    const double start_us = now_us();
    (piece.*call.call)();
    return now_us() - start_us;
  };
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  for (int repeat = 0; repeat < kIdleRepeats; ++repeat) {
    for (size_t i = 0; i < std::size(kCalls); ++i) idle_us[i].push_back(time_us(kCalls[i]));
  }
  for (int repeat = 0; repeat < kBusyRepeats; ++repeat) {
    for (size_t i = 0; i < std::size(kCalls); ++i) {
      const BusyDevice busy;  // a kernel of its own: one that waits must not make the next one look free
      busy_us[i].push_back(time_us(kCalls[i]));
      if (busy.has_ended()) ++waited_count[i];
    }
  }
  std::vector<CallCost> costs;
  for (size_t i = 0; i < std::size(kCalls); ++i) {
    costs.push_back({kCalls[i].name, size_bytes, median(idle_us[i]),
                     *std::max_element(idle_us[i].begin(), idle_us[i].end()), median(busy_us[i]),
                     *std::max_element(busy_us[i].begin(), busy_us[i].end()), waited_count[i]});
  }
  return costs;
}

struct Stall {
  size_t size_bytes = 0;
  double quiet_ms = 0;
  double disturbed_ms = 0;  // the same kernels while the host maps and unmaps
  int rounds_count = 0;     // of map, set access, unmap
};

// A stream of short kernels, alone and while the host maps and unmaps memory that they do not use.
Stall measure_stall(const Driver& driver, CUdevice device, size_t size_bytes) {
  Stall stall{size_bytes};
  MappedPiece piece(driver, device, size_bytes);
  piece.create();
  const Stream stream;
  Event start, end;
  const long long cycles = cycles_per_us() * kStreamKernel_us;
  const auto run_ms = [&](bool disturb) {
    start.record(stream);
    for (int i = 0; i < kStreamKernelCount; ++i) spin_for<<<1, 1, 0, stream.get()>>>(cycles);
    check(cudaGetLastError(), "launch of spin_for");
    end.record(stream);
    int rounds_count = 0;
    for (; disturb && !stream.is_idle(); ++rounds_count) {
      piece.map();
      piece.set_access();
      piece.unmap();
    }
    stream.wait();
    if (disturb) stall.rounds_count = rounds_count;
    return end.ms_since(start);
  };
  run_ms(false);  // warm-up
  std::vector<double> quiet_ms, disturbed_ms;
  for (int repeat = 0; repeat < 5; ++repeat) {
    quiet_ms.push_back(run_ms(false));
    disturbed_ms.push_back(run_ms(true));
  }
  stall.quiet_ms = median(quiet_ms);
  stall.disturbed_ms = median(disturbed_ms);
  return stall;
}

// ---- Copies

struct CopyRate {
  size_t size_bytes = 0;
  bool page_locked = false;
  double to_device_gb_s = 0;
  double to_host_gb_s = 0;
  double both_gb_s = 0;  // summed, the two directions at once
};

// One direction of the link: its own stream and its own two buffers.
class Link {
 public:
  Link(size_t size_bytes, bool page_locked, cudaMemcpyKind kind)
      : size_bytes_(size_bytes), kind_(kind), host_(size_bytes, page_locked), device_(size_bytes) {
    check(cudaMemset(device_.data(), 1, size_bytes), "cudaMemset");
    copy(2);
  }
  void copy(size_t count) {
    const bool to_device = kind_ == cudaMemcpyHostToDevice;
    void* target = to_device ? device_.data() : host_.data();
    const void* source = to_device ? host_.data() : device_.data();
    for (size_t i = 0; i < count; ++i) {
      check(cudaMemcpyAsync(target, source, size_bytes_, kind_, stream_.get()), "cudaMemcpyAsync");
    }
    stream_.wait();
  }

 private:
  size_t size_bytes_;
  cudaMemcpyKind kind_;
  HostBuffer host_;
  DeviceBuffer device_;
  Stream stream_;
};

// Both links at once, each from a thread of its own: copies of pageable memory occupy the calling thread.
double both_at_once_us(Link& to_device, Link& to_host, size_t count) {
  std::barrier<> start_line(2);
  double start_us[2] = {}, end_us[2] = {};
  std::exception_ptr errors[2];
  const auto run = [&](Link& link, int i) {
    start_line.arrive_and_wait();
    start_us[i] = now_us();
    try {
      link.copy(count);
    } catch (...) {
      errors[i] = std::current_exception();
    }
    end_us[i] = now_us();
  };
  std::thread other([&] { run(to_host, 1); });
  run(to_device, 0);
  other.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return std::max(end_us[0], end_us[1]) - std::min(start_us[0], start_us[1]);
}

CopyRate measure_copies(size_t size_bytes, bool page_locked) {
  Link to_device(size_bytes, page_locked, cudaMemcpyHostToDevice);
  Link to_host(size_bytes, page_locked, cudaMemcpyDeviceToHost);
  const size_t count = std::clamp<size_t>(512 * kMiB / size_bytes, 4, 512);
  const auto alone_us = [count](Link& link) {
    const double start_us = now_us();
    link.copy(count);
    return now_us() - start_us;
  };
  std::vector<double> to_device_us, to_host_us, both_us;
  for (int repeat = 0; repeat < 5; ++repeat) {
    to_device_us.push_back(alone_us(to_device));
    to_host_us.push_back(alone_us(to_host));
    both_us.push_back(both_at_once_us(to_device, to_host, count));
  }
  const double bytes = static_cast<double>(size_bytes) * static_cast<double>(count);
  constexpr double kBytesPerUsToGb = 1e-3;
  return {size_bytes, page_locked, bytes / median(to_device_us) * kBytesPerUsToGb,
          bytes / median(to_host_us) * kBytesPerUsToGb, 2 * bytes / median(both_us) * kBytesPerUsToGb};
}

// ---- Reports

struct Report {
  std::string device_name;
  std::vector<CallCost> calls;
  std::vector<Stall> stalls;
  std::vector<CopyRate> copies;
};

void print_tables(const Report& report) {
  std::printf("%s\n", report.device_name.c_str());
  std::printf(
      "\nvirtual memory calls, microseconds (waited: returned only after a running kernel had ended)\n");
  std::printf("%10s  %-15s %12s %10s %12s %10s  %s\n", "MiB", "call", "idle median", "idle max",
              "busy median", "busy max", "waited");
  for (const CallCost& cost : report.calls) {
    std::printf("%10zu  %-15s %12.1f %10.1f %12.1f %10.1f  %d of %d\n", cost.size_bytes / kMiB,
                cost.call.c_str(), cost.idle_median_us, cost.idle_max_us, cost.busy_median_us,
                cost.busy_max_us, cost.waited_count, kBusyRepeats);
  }
  std::printf("\na stream of %d kernels of about %lld us, milliseconds\n", kStreamKernelCount,
              kStreamKernel_us);
  std::printf("%10s %12s %24s %10s\n", "MiB", "alone", "while mapping", "rounds");
  for (const Stall& stall : report.stalls) {
    std::printf("%10zu %12.2f %14.2f (%+6.1f %%) %10d\n", stall.size_bytes / kMiB, stall.quiet_ms,
                stall.disturbed_ms, (stall.disturbed_ms / stall.quiet_ms - 1) * 100, stall.rounds_count);
  }
  std::printf("\ncopies, GB/s\n%10s  %-12s %10s %10s %15s\n", "KiB", "host memory", "to device", "to host",
              "both at once");
  for (const CopyRate& rate : report.copies) {
    std::printf("%10zu  %-12s %10.2f %10.2f %15.2f\n", rate.size_bytes / 1024,
                rate.page_locked ? "page-locked" : "pageable", rate.to_device_gb_s, rate.to_host_gb_s,
                rate.both_gb_s);
  }
}

void print_json(const Report& report) {
  const char* comma = "";
  std::printf("{\"device\":\"%s\",\"calls\":[", report.device_name.c_str());
  for (const CallCost& cost : report.calls) {
    std::printf(
        "%s{\"call\":\"%s\",\"size_bytes\":%zu,\"idle_median_us\":%.2f,\"idle_max_us\":%.2f,"
        "\"busy_median_us\":%.2f,\"busy_max_us\":%.2f,\"waited_count\":%d,\"busy_count\":%d}",
        comma, cost.call.c_str(), cost.size_bytes, cost.idle_median_us, cost.idle_max_us, cost.busy_median_us,
        cost.busy_max_us, cost.waited_count, kBusyRepeats);
    comma = ",";
  }
  comma = "";
  std::printf("],\"stalls\":[");
  for (const Stall& stall : report.stalls) {
    std::printf("%s{\"size_bytes\":%zu,\"quiet_ms\":%.3f,\"disturbed_ms\":%.3f,\"rounds_count\":%d}", comma,
                stall.size_bytes, stall.quiet_ms, stall.disturbed_ms, stall.rounds_count);
    comma = ",";
  }
  comma = "";
  std::printf("],\"copies\":[");
  for (const CopyRate& rate : report.copies) {
    std::printf(
        "%s{\"size_bytes\":%zu,\"page_locked\":%s,\"to_device_gb_s\":%.3f,\"to_host_gb_s\":%.3f,"
        "\"both_gb_s\":%.3f}",
        comma, rate.size_bytes, rate.page_locked ? "true" : "false", rate.to_device_gb_s, rate.to_host_gb_s,
        rate.both_gb_s);
    comma = ",";
  }
  std::printf("]}\n");
}

// ---- The program

std::string device_name() {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  std::string name = properties.name;
  std::erase_if(name, [](char c) { return c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20; });
  return name;
}

void measure_virtual_memory(const Driver& driver, Report& report) {
  CUdevice device = 0;
  driver.check(driver.cuDeviceGet(&device, 0), "cuDeviceGet");
  int is_supported = 0;
  driver.check(driver.cuDeviceGetAttribute(&is_supported,
                                           CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device),
               "cuDeviceGetAttribute(virtual memory management)");
  if (!is_supported) {
    std::fprintf(stderr, "%s does not support virtual memory management: only copies are measured\n",
                 report.device_name.c_str());
    return;
  }
  const size_t granularity_bytes = MappedPiece::granularity(driver, device);
  for (size_t size_bytes = 2 * kMiB; size_bytes <= 256 * kMiB; size_bytes *= 2) {
    if (size_bytes % granularity_bytes != 0) continue;
    const std::vector<CallCost> costs = measure_calls(driver, device, size_bytes);
    report.calls.insert(report.calls.end(), costs.begin(), costs.end());
    report.stalls.push_back(measure_stall(driver, device, size_bytes));
  }
}

int no_device(const char* reason) {
  std::fprintf(stderr, "cuda_memory_probe: nothing to measure: %s\n", reason);
  return kExitNoDevice;
}

int run(bool json_only) {
  const std::unique_ptr<Driver> driver = Driver::open();
  if (driver == nullptr) return no_device("no NVIDIA driver is installed (libcuda.so.1 is missing)");
  int device_count = 0;
  if (const cudaError_t result = cudaGetDeviceCount(&device_count); result != cudaSuccess) {
    return no_device(cudaGetErrorString(result));
  }
  if (device_count == 0) return no_device("the driver finds no GPU");

  check(cudaSetDevice(0), "cudaSetDevice");
  check(cudaFree(nullptr), "start of the device's context");  // which the driver's calls below need
  Report report;
  report.device_name = device_name();
  measure_virtual_memory(*driver, report);
  for (const bool page_locked : {true, false}) {
    for (const size_t size_bytes : {kMiB / 16, kMiB / 4, kMiB, 4 * kMiB, 16 * kMiB, 64 * kMiB, 256 * kMiB}) {
      report.copies.push_back(measure_copies(size_bytes, page_locked));
    }
  }
  if (!json_only) print_tables(report);
  print_json(report);
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace terrace::bench

int main(int argument_count, char** arguments) {
  const bool json_only = argument_count == 2 && std::strcmp(arguments[1], "--json") == 0;
  if (argument_count > 1 && !json_only) {
    std::fprintf(stderr, "usage: %s [--json]\n", arguments[0]);
    return 2;
  }
  try {
    return terrace::bench::run(json_only);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cuda_memory_probe: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
