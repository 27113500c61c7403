// The fake driver's streams and events, and what runs on them.
#include <cstring>
#include <utility>
#include <vector>

#include "fake_cuda_state.h"

namespace terrace::testing {
namespace {

FakeStream* stream_of(CUstream stream) {
  return reinterpret_cast<FakeStream*>(stream);
}
FakeEvent* event_of(CUevent event) {
  return reinterpret_cast<FakeEvent*>(event);
}

void run_stream(FakeStream& stream) {
  Lock lock(current->mutex);
  while (true) {
    current->changed.wait(lock, [&] { return !stream.queue.empty() || stream.stop; });
    if (stream.queue.empty()) return;
    const std::function<void()> work = std::move(stream.queue.front());
    stream.queue.pop_front();
    stream.busy = true;
    lock.unlock();
    work();
    lock.lock();
    stream.busy = false;
    current->changed.notify_all();
  }
}

CUresult wait_on_host(Lock& lock, const std::function<bool()>& condition) {
  current->changed.wait(lock, [&] { return condition() || current->lost; });
  return current->health();
}

// A copy or fill of device memory on a stream, checked when it runs, as a GPU does.
void put_access(CUstream stream, std::vector<std::pair<uint64_t, uint64_t>> device_ranges,
                std::function<void()> work) {
  put(stream, [ranges = std::move(device_ranges), work = std::move(work)] {
    wait_on_stream([] { return !current->hold; });
    {
      const Lock lock(current->mutex);
      if (current->health() != CUDA_SUCCESS) return;
      for (const auto& [address, bytes] : ranges) {
        if (!current->is_accessible(address, bytes)) current->sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
      }
      if (current->sticky != CUDA_SUCCESS) return;
    }
    work();
  });
}

// Where that is asked for, until the stream is empty.
CUresult end_fill(CUstream stream, Lock& lock) {
  if (!current->options.waits_for_fills) return CUDA_SUCCESS;
  FakeStream* const waited = stream_of(stream);
  return wait_on_host(lock, [waited] { return waited->queue.empty() && !waited->busy; });
}

}  // namespace

void put(CUstream stream, std::function<void()> work) {
  stream_of(stream)->queue.push_back(std::move(work));
  current->changed.notify_all();
}

CUresult fake_stream_create(CUstream* stream, unsigned) {
  ENTER("cuStreamCreate");
  TERRACE_ASSERT(pushed_contexts > 0, "cuStreamCreate without a context");
  auto* const made = new FakeStream;
  made->thread = std::thread([made] { run_stream(*made); });
  current->streams.insert(made);
  *stream = reinterpret_cast<CUstream>(made);
  return CUDA_SUCCESS;
}
// Like event_destroy it also works on a lost device, so that nothing of this process is left behind.
CUresult fake_stream_destroy(CUstream stream) {
  FakeStream* const going = stream_of(stream);
  {
    const Lock lock(current->mutex);
    current->streams.erase(going);
    going->stop = true;
    current->changed.notify_all();
  }
  going->thread.join();
  delete going;
  return CUDA_SUCCESS;
}
CUresult fake_stream_synchronize(CUstream stream) {
  ENTER("cuStreamSynchronize");
  FakeStream* const waited = stream_of(stream);
  return wait_on_host(lock, [waited] { return waited->queue.empty() && !waited->busy; });
}
CUresult fake_stream_query(CUstream stream) {
  ENTER("cuStreamQuery");
  TERRACE_ASSERT(pushed_contexts > 0, "cuStreamQuery without a context");
  const FakeStream& asked = *stream_of(stream);
  return asked.queue.empty() && !asked.busy ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult fake_stream_wait_event(CUstream stream, CUevent event, unsigned) {
  ENTER("cuStreamWaitEvent");
  const std::shared_ptr<Mark> mark = event_of(event)->last;
  if (mark != nullptr) put(stream, [mark] { wait_on_stream([&] { return mark->reached; }); });
  return CUDA_SUCCESS;
}
CUresult fake_event_create(CUevent* event, unsigned) {
  ENTER("cuEventCreate");
  TERRACE_ASSERT(pushed_contexts > 0, "cuEventCreate without a context");
  auto* const made = new FakeEvent;
  current->events.insert(made);
  *event = reinterpret_cast<CUevent>(made);
  return CUDA_SUCCESS;
}
CUresult fake_event_destroy(CUevent event) {
  const Lock lock(current->mutex);
  current->events.erase(event_of(event));
  delete event_of(event);
  return CUDA_SUCCESS;
}
CUresult fake_event_record(CUevent event, CUstream stream) {
  ENTER("cuEventRecord");
  TERRACE_ASSERT(pushed_contexts > 0, "cuEventRecord without a context");
  const auto mark = std::make_shared<Mark>();
  event_of(event)->last = mark;
  put(stream, [mark] {
    const Lock on_stream(current->mutex);
    mark->reached = true;
    current->changed.notify_all();
  });
  return CUDA_SUCCESS;
}
CUresult fake_event_synchronize(CUevent event) {
  ENTER("cuEventSynchronize");
  const std::shared_ptr<Mark> mark = event_of(event)->last;
  return wait_on_host(lock, [&] { return mark == nullptr || mark->reached; });
}

CUresult fake_copy_to_device(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  ENTER("cuMemcpyHtoDAsync");
  TERRACE_ASSERT(pushed_contexts > 0, "a copy without a context");
  if (current->crosses_registrations(reinterpret_cast<uint64_t>(from), bytes))
    return CUDA_ERROR_INVALID_VALUE;
  put_access(stream, {{to, bytes}}, [=] { std::memcpy(pointer(to), from, bytes); });
  return CUDA_SUCCESS;
}
CUresult fake_copy_to_host(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  ENTER("cuMemcpyDtoHAsync");
  TERRACE_ASSERT(pushed_contexts > 0, "a copy without a context");
  if (current->crosses_registrations(reinterpret_cast<uint64_t>(to), bytes)) return CUDA_ERROR_INVALID_VALUE;
  put_access(stream, {{from, bytes}}, [=] {
    for (uint32_t i = 0; i < current->options.yields_to_host; ++i) std::this_thread::yield();
    std::memcpy(to, pointer(from), bytes);
  });
  return CUDA_SUCCESS;
}
CUresult fake_copy_on_device(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  ENTER("cuMemcpyDtoDAsync");
  put_access(stream, {{to, bytes}, {from, bytes}}, [=] { std::memcpy(pointer(to), pointer(from), bytes); });
  return CUDA_SUCCESS;
}
CUresult fake_fill_bytes(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
  ENTER("cuMemsetD8Async");
  put_access(stream, {{to, bytes}}, [=] { std::memset(pointer(to), value, bytes); });
  return end_fill(stream, lock);
}
CUresult fake_fill_words(CUdeviceptr to, unsigned value, size_t words, CUstream stream) {
  ENTER("cuMemsetD32Async");
  put_access(stream, {{to, 4 * words}},
             [=] { std::fill_n(static_cast<unsigned*>(pointer(to)), words, value); });
  return CUDA_SUCCESS;
}

}  // namespace terrace::testing
