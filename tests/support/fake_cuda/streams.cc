#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/fake_cuda/fake_cuda.h"

namespace eplb::fake_cuda {
namespace {

using Clock = std::chrono::steady_clock;

struct EventState {
  int device = 0;
  int64_t recorded = 0;      // how often
  int64_t reached = 0;       // the last of these that a stream has come to
  bool is_captured = false;  // recorded last on a stream under capture
};
using SharedEvent = std::shared_ptr<EventState>;

// Work, a wait for an event, a kernel that has its end at a time, or one of another library.
struct Operation {
  std::function<void()> work;
  SharedEvent awaited = nullptr;
  int64_t until = 0;
  std::chrono::milliseconds duration{0};
  Clock::time_point ends = {};  // once the stream has come to it
  std::function<bool()> external = nullptr;
};

struct StreamState {
  int device = 0;
  std::deque<Operation> operations = {};
  bool is_capturing = false;
  bool is_captured_globally = false;
  uint32_t priority = 0;
  Usage usage = {};
};

// Names below are those of CUDA's special streams.
constexpr uint64_t kFirstDefaultStream = 8;
constexpr uint64_t kFirstName = kFirstDefaultStream + kDevices;

struct State {
  State() {
    for (int device = 0; device < kDevices; ++device) {
      streams[kFirstDefaultStream + static_cast<uint64_t>(device)].device = device;
    }
  }
  std::map<uint64_t, StreamState> streams;
  std::map<uint64_t, SharedEvent> events;
  uint64_t next_name = kFirstName;
  cudaError_t failure = cudaSuccess;
  int running_device = 0;
  StreamState* running = nullptr;  // stream of the running operation
  Usage usage;                     // sum over all streams
  uint32_t seed = 0;
  std::mt19937 random;
  int64_t num_prohibited_calls = 0;
};
State& All() {
  static auto* const state = new State();
  return *state;
}

uint64_t Name(const void* handle) { return reinterpret_cast<uint64_t>(handle); }

StreamState* FindStream(cudaStream_t stream) {
  const uint64_t name = stream == nullptr
                            ? kFirstDefaultStream + static_cast<uint64_t>(CurrentDevice())
                            : Name(stream);
  const auto found = All().streams.find(name);
  return found == All().streams.end() ? nullptr : &found->second;
}

SharedEvent FindEvent(cudaEvent_t event) {
  const auto found = All().events.find(Name(event));
  return found == All().events.end() ? nullptr : found->second;
}

bool CanMove(StreamState& stream) {
  if (stream.operations.empty()) return false;
  Operation& next = stream.operations.front();
  if (next.awaited != nullptr && next.awaited->reached < next.until) return false;
  if (next.external && All().failure == cudaSuccess) return next.external();
  if (next.duration == next.duration.zero() || All().failure != cudaSuccess) return true;
  if (next.ends == Clock::time_point{}) next.ends = Clock::now() + next.duration;
  return Clock::now() >= next.ends;
}

// The next operation of a stream. False when there is none or it waits.
bool Step(StreamState& stream) {
  if (!CanMove(stream)) return false;
  const Operation operation = std::move(stream.operations.front());
  stream.operations.pop_front();
  All().running_device = stream.device;
  All().running = &stream;
  if (operation.work && All().failure == cudaSuccess) operation.work();
  All().running = nullptr;
  return true;
}

void DrawPriorities() {
  for (auto& [name, stream] : All().streams)
    stream.priority = static_cast<uint32_t>(All().random());
}

// By priority, one operation of the first stream that can move.
bool StepOneByPriority() {
  constexpr uint32_t kStepsBetweenDraws[] = {1, 8, 64, 512};
  if (All().random() % kStepsBetweenDraws[All().seed % 4] == 0) DrawPriorities();
  StreamState* next = nullptr;
  for (auto& [name, stream] : All().streams) {
    const bool is_before = next == nullptr || stream.priority > next->priority;
    if (is_before && CanMove(stream)) next = &stream;
  }
  return next != nullptr && Step(*next);
}

// One operation of every stream, or some by their priorities. False when nothing moved.
bool StepAll() {
  if (All().seed != 0) {
    constexpr uint32_t kMost = 64;
    bool moved = StepOneByPriority();
    for (uint32_t left = All().random() % kMost; left > 0 && moved; --left) {
      moved = StepOneByPriority() || moved;
    }
    return moved;
  }
  bool moved = false;
  for (auto& [name, stream] : All().streams) moved = Step(stream) || moved;
  return moved;
}

bool SomethingTakesTime() {
  return std::ranges::any_of(All().streams, [](const auto& entry) {
    const std::deque<Operation>& operations = entry.second.operations;
    return !operations.empty() && operations.front().duration > std::chrono::milliseconds(0);
  });
}

// Until `done`, or nothing can move any more.
template <class Done>
void RunUntil(const Done& done) {
  while (!done()) {
    if (StepAll()) continue;
    if (!SomethingTakesTime()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool AwaitsLibrary(const StreamState& stream) {
  return All().failure == cudaSuccess && !stream.operations.empty() &&
         stream.operations.front().external;
}

cudaError_t Answer(cudaError_t error) { return Keep(Failure() != cudaSuccess ? Failure() : error); }

}  // namespace

std::recursive_mutex& Mutex() {
  static auto* const mutex = new std::recursive_mutex();
  return *mutex;
}

void Enqueue(cudaStream_t stream, std::function<void()> work) {
  StreamState& state = *FindStream(stream);
  if (!state.is_capturing) state.operations.push_back({.work = std::move(work)});
}

std::vector<int64_t> DrawOrder(int64_t size) {
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  if (All().seed != 0) std::shuffle(order.begin(), order.end(), All().random);
  return order;
}

Usage UsageOf(cudaStream_t stream) {
  const std::lock_guard<std::recursive_mutex> lock(Mutex());
  return FindStream(stream)->usage;
}

Usage UsageOfAll() {
  const std::lock_guard<std::recursive_mutex> lock(Mutex());
  return All().usage;
}

void CountEnqueued(cudaStream_t stream) {
  ++FindStream(stream)->usage.num_enqueued;
  ++All().usage.num_enqueued;
}

void CountRead(const View& view, int64_t num_bytes) {
  if (view.place != Place::kDevice) return;
  All().running->usage.read_bytes += num_bytes;
  All().usage.read_bytes += num_bytes;
}

void CountWritten(const View& view, int64_t num_bytes) {
  if (view.place != Place::kDevice) return;
  All().running->usage.written_bytes += num_bytes;
  All().usage.written_bytes += num_bytes;
}

void EnqueueExternal(cudaStream_t stream, std::function<bool()> has_ended) {
  const std::lock_guard<std::recursive_mutex> lock(Mutex());
  StreamState& state = *FindStream(stream);
  if (!state.is_capturing) {
    state.operations.push_back({.work = {}, .external = std::move(has_ended)});
  }
}

void Occupy(cudaStream_t stream, std::chrono::milliseconds duration) {
  const std::lock_guard<std::recursive_mutex> lock(Mutex());
  FindStream(stream)->operations.push_back({.work = {}, .duration = duration});
}

void RunUntilIdle(cudaStream_t stream) {
  StreamState& state = *FindStream(stream);
  RunUntil([&] { return state.operations.empty(); });
}

void RunAll() {
  RunUntil([] { return false; });
}

void Fail(cudaError_t error) {
  if (All().failure == cudaSuccess) All().failure = error;
}
cudaError_t Failure() { return All().failure; }

void Revive() {
  const std::lock_guard<std::recursive_mutex> lock(Mutex());
  for (auto& [name, stream] : All().streams) {
    stream.operations.clear();
    stream.is_capturing = false;
    stream.is_captured_globally = false;
  }
  for (auto& [name, event] : All().events) event->reached = event->recorded;
  All().failure = cudaSuccess;
}

int DeviceOf(cudaStream_t stream) {
  const StreamState* const state = FindStream(stream);
  return state == nullptr ? -1 : state->device;
}

int RunningDevice() { return All().running_device; }

static thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

// Notes a call that may wait for work, which a capture does not have.
static void NoteUnsafeCall() {
  const bool captured = std::ranges::any_of(
      All().streams, [](const auto& entry) { return entry.second.is_captured_globally; });
  if (captured && capture_mode != cudaStreamCaptureModeRelaxed) ++All().num_prohibited_calls;
}

int64_t NumProhibitedCalls() {
  const std::lock_guard<std::recursive_mutex> lock(Mutex());
  return All().num_prohibited_calls;
}

void SetSeed(uint32_t seed) {
  const std::lock_guard<std::recursive_mutex> lock(Mutex());
  All().seed = seed;
  All().random.seed(seed);
  DrawPriorities();
}

}  // namespace eplb::fake_cuda

namespace fake = eplb::fake_cuda;

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int) {
  const fake::Call call("cudaStreamCreateWithPriority");
  if (call.error() != cudaSuccess) return call.error();
  const uint64_t name = fake::All().next_name++;
  fake::All().streams[name] = {.device = fake::CurrentDevice(),
                               .priority = static_cast<uint32_t>(fake::All().random())};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a handle is a number, never dereferenced
  *stream = reinterpret_cast<cudaStream_t>(name);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const fake::Call call("cudaStreamDestroy");
  if (fake::FindStream(stream) == nullptr) return fake::Keep(cudaErrorInvalidResourceHandle);
  fake::RunUntilIdle(stream);
  fake::All().streams.erase(fake::Name(stream));
  return call.error();
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const fake::Call call("cudaStreamSynchronize");
  if (call.error() != cudaSuccess) return call.error();
  if (fake::FindStream(stream)->is_capturing) {
    return fake::Keep(cudaErrorStreamCaptureUnsupported);
  }
  fake::RunUntilIdle(stream);
  // Work of another library ends by other threads, which need the lock.
  while (fake::AwaitsLibrary(*fake::FindStream(stream))) {
    fake::Mutex().unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    fake::Mutex().lock();
    fake::RunUntilIdle(stream);
  }
  return fake::Answer(cudaSuccess);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const fake::Call call("cudaStreamQuery");
  if (call.error() != cudaSuccess) return call.error();
  const fake::StreamState& state = *fake::FindStream(stream);
  if (state.is_capturing) return fake::Keep(cudaErrorStreamCaptureUnsupported);
  const bool idle = state.operations.empty();
  (void)fake::StepAll();
  return fake::Answer(idle ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const fake::Call call("cudaStreamIsCapturing");
  if (call.error() != cudaSuccess) return call.error();
  const fake::StreamState* const state = fake::FindStream(stream);
  if (state == nullptr) return fake::Keep(cudaErrorInvalidResourceHandle);
  *status = state->is_capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const fake::Call call("cudaStreamBeginCapture");
  if (call.error() != cudaSuccess) return call.error();
  if (stream == nullptr) return fake::Keep(cudaErrorStreamCaptureUnsupported);
  fake::FindStream(stream)->is_capturing = true;
  fake::FindStream(stream)->is_captured_globally = mode == cudaStreamCaptureModeGlobal;
  return cudaSuccess;
}

// The graph itself is never made: what was captured is forgotten.
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const fake::Call call("cudaStreamEndCapture");
  if (call.error() != cudaSuccess) return call.error();
  fake::FindStream(stream)->is_capturing = false;
  fake::FindStream(stream)->is_captured_globally = false;
  *graph = nullptr;
  const bool unjoined = std::ranges::any_of(
      fake::All().streams, [](const auto& entry) { return entry.second.is_capturing; });
  return unjoined ? fake::Keep(cudaErrorStreamCaptureUnjoined) : cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  const fake::Call call("cudaDeviceSynchronize");
  if (call.error() != cudaSuccess) return call.error();
  fake::RunAll();
  return fake::Answer(cudaSuccess);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  const fake::Call call("cudaStreamWaitEvent");
  if (call.error() != cudaSuccess) return call.error();
  const fake::SharedEvent state = fake::FindEvent(event);
  fake::StreamState* const waiting = fake::FindStream(stream);
  if (state == nullptr || waiting == nullptr) return fake::Keep(cudaErrorInvalidResourceHandle);
  if (state->is_captured) {  // the stream joins the capture
    waiting->is_capturing = true;
    return cudaSuccess;
  }
  // CUDA would let it pass, and the order that was meant would not come about.
  if (state->recorded == 0) return fake::Keep(cudaErrorInvalidValue);
  if (waiting->is_capturing) return fake::Keep(cudaErrorStreamCaptureIsolation);
  fake::CountEnqueued(stream);
  waiting->operations.push_back({.work = {}, .awaited = state, .until = state->recorded});
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  const fake::Call call("cudaEventCreateWithFlags");
  if (call.error() != cudaSuccess) return call.error();
  const uint64_t name = fake::All().next_name++;
  fake::All().events[name] =
      std::make_shared<fake::EventState>(fake::EventState{.device = fake::CurrentDevice()});
  // NOLINTNEXTLINE(performance-no-int-to-ptr): as above
  *event = reinterpret_cast<cudaEvent_t>(name);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const fake::Call call("cudaEventDestroy");
  fake::All().events.erase(fake::Name(event));
  return call.error();
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const fake::Call call("cudaEventRecord");
  if (call.error() != cudaSuccess) return call.error();
  const fake::SharedEvent state = fake::FindEvent(event);
  const fake::StreamState* const recording = fake::FindStream(stream);
  if (state == nullptr || recording == nullptr || state->device != recording->device) {
    return fake::Keep(cudaErrorInvalidResourceHandle);
  }
  state->is_captured = recording->is_capturing;
  if (state->is_captured) return cudaSuccess;
  fake::CountEnqueued(stream);
  fake::Enqueue(stream, [state, time = ++state->recorded] { state->reached = time; });
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, fake::capture_mode);
  return cudaSuccess;
}

// The answer is of before the step: what has just ended is seen by the next question.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const fake::Call call("cudaEventQuery");
  if (call.error() != cudaSuccess) return call.error();
  fake::NoteUnsafeCall();
  const fake::SharedEvent state = fake::FindEvent(event);
  if (state == nullptr) return fake::Keep(cudaErrorInvalidResourceHandle);
  if (state->is_captured) return fake::Keep(cudaErrorCapturedEvent);
  const bool reached = state->reached >= state->recorded;
  (void)fake::StepAll();
  return fake::Answer(reached ? cudaSuccess : cudaErrorNotReady);
}

// One end of a copy is out of reach of the stream's device: the copy faults when it runs.
static bool IsOutOfReach(cudaStream_t stream, const void* to, const void* from) {
  const int device = fake::DeviceOf(stream);
  return !fake::CopyReaches(device, to) || !fake::CopyReaches(device, from);
}

// Other bytes each time: two results that were both read too early must not be equal.
static void Poison(std::byte* bytes, size_t size) {
  static auto* const random = new std::mt19937();
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((*random)() >> 8);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind,
                            cudaStream_t stream) {
  const fake::Call call("cudaMemcpyAsync");
  if (call.error() != cudaSuccess) return call.error();
  if (fake::FindStream(stream) == nullptr) return fake::Keep(cudaErrorInvalidResourceHandle);
  const fake::View target = fake::ViewOf(to, size);
  const fake::View source = fake::ViewOf(from, size);
  if (target.bytes == nullptr || source.bytes == nullptr) return fake::Keep(cudaErrorInvalidValue);
  fake::CountEnqueued(stream);
  if (source.place == fake::Place::kDevice && target.place == fake::Place::kPinned) {
    Poison(target.bytes, size);
  }
  if (IsOutOfReach(stream, to, from)) {
    fake::Enqueue(stream, [] { fake::Fail(cudaErrorIllegalAddress); });
    return cudaSuccess;
  }
  if (target.loses_writes) {
    fake::Enqueue(stream, [] {});
  } else if (source.place ==
             fake::Place::kPageable) {  // staged before the call returns, as CUDA does
    fake::Enqueue(stream,
                  [staged = std::vector<std::byte>(source.bytes, source.bytes + size), target] {
                    std::ranges::copy(staged, target.bytes);
                    fake::CountWritten(target, std::ssize(staged));
                  });
  } else {
    fake::Enqueue(stream, [=] {
      std::memmove(target.bytes, source.bytes, size);
      fake::CountRead(source, static_cast<int64_t>(size));
      fake::CountWritten(target, static_cast<int64_t>(size));
    });
  }
  if (target.place == fake::Place::kPageable) fake::RunUntilIdle(stream);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  const fake::Call call("cudaMemcpy");
  const cudaError_t added = cudaMemcpyAsync(to, from, size, kind, nullptr);
  if (added == cudaSuccess) fake::RunUntilIdle(nullptr);
  return added;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) {
  const fake::Call call("cudaMemsetAsync");
  if (call.error() != cudaSuccess) return call.error();
  const fake::View target = fake::ViewOf(to, size);
  if (target.bytes == nullptr || target.place == fake::Place::kPageable) {
    return fake::Keep(cudaErrorInvalidValue);
  }
  fake::CountEnqueued(stream);
  if (IsOutOfReach(stream, to, to)) {
    fake::Enqueue(stream, [] { fake::Fail(cudaErrorIllegalAddress); });
    return cudaSuccess;
  }
  fake::Enqueue(stream, [=] {
    std::memset(target.bytes, value, size);
    fake::CountWritten(target, static_cast<int64_t>(size));
  });
  return cudaSuccess;
}

cudaError_t cudaMemset(void* to, int value, size_t size) {
  return cudaMemsetAsync(to, value, size, nullptr);
}
