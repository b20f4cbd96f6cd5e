#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/fake_cuda/fake_cuda.h"

namespace eplb::fake_cuda {
namespace {

struct EventState {
  int64_t recorded = 0;  // how often
  int64_t reached = 0;   // the last of these that a stream has come to
};
using SharedEvent = std::shared_ptr<EventState>;

// Work, or a wait for an event.
struct Operation {
  std::function<void()> work;
  SharedEvent awaited;
  int64_t until = 0;
};

struct State {
  std::map<uint64_t, std::deque<Operation>> streams{{0, {}}};  // 0: the default stream
  std::map<uint64_t, SharedEvent> events;
  uint64_t next_name = 1;
  cudaError_t failure = cudaSuccess;
};
State& All() {
  static auto* const state = new State();
  return *state;
}

uint64_t Name(const void* handle) { return reinterpret_cast<uint64_t>(handle); }

// The next operation of a stream. False when there is none or it waits.
bool Step(std::deque<Operation>& stream) {
  if (stream.empty()) return false;
  const Operation& next = stream.front();
  if (next.awaited != nullptr && next.awaited->reached < next.until) return false;
  const Operation operation = std::move(stream.front());
  stream.pop_front();
  if (operation.work && All().failure == cudaSuccess) operation.work();
  return true;
}

// One operation of every stream. False when nothing moved.
bool StepAll() {
  bool moved = false;
  for (auto& [name, stream] : All().streams) moved = Step(stream) || moved;
  return moved;
}

}  // namespace

std::recursive_mutex& Mutex() {
  static auto* const mutex = new std::recursive_mutex();
  return *mutex;
}

void Enqueue(cudaStream_t stream, std::function<void()> work) {
  All().streams.at(Name(stream)).push_back({.work = std::move(work)});
}

void RunUntilIdle(cudaStream_t stream) {
  while (!All().streams.at(Name(stream)).empty() && StepAll()) {
  }
}

void RunAll() {
  while (StepAll()) {
  }
}

void Fail(cudaError_t error) {
  if (All().failure == cudaSuccess) All().failure = error;
}
cudaError_t Failure() { return All().failure; }

}  // namespace eplb::fake_cuda

namespace fake = eplb::fake_cuda;
using Lock = std::lock_guard<std::recursive_mutex>;

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int) {
  const Lock lock(fake::Mutex());
  const uint64_t name = fake::All().next_name++;
  fake::All().streams[name];
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a handle is a number that nobody follows
  *stream = reinterpret_cast<cudaStream_t>(name);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(fake::Mutex());
  fake::RunUntilIdle(stream);
  fake::All().streams.erase(fake::Name(stream));
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Lock lock(fake::Mutex());
  fake::RunUntilIdle(stream);
  return fake::Failure();
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const Lock lock(fake::Mutex());
  const bool idle = fake::All().streams.at(fake::Name(stream)).empty();
  (void)fake::StepAll();
  if (fake::Failure() != cudaSuccess) return fake::Failure();
  return idle ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaDeviceSynchronize() {
  const Lock lock(fake::Mutex());
  fake::RunAll();
  return fake::Failure();
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  const Lock lock(fake::Mutex());
  const fake::SharedEvent& state = fake::All().events.at(fake::Name(event));
  fake::All()
      .streams.at(fake::Name(stream))
      .push_back({.work = {}, .awaited = state, .until = state->recorded});
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  const Lock lock(fake::Mutex());
  const uint64_t name = fake::All().next_name++;
  fake::All().events[name] = std::make_shared<fake::EventState>();
  // NOLINTNEXTLINE(performance-no-int-to-ptr): as above
  *event = reinterpret_cast<cudaEvent_t>(name);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Lock lock(fake::Mutex());
  fake::All().events.erase(fake::Name(event));
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(fake::Mutex());
  const fake::SharedEvent& state = fake::All().events.at(fake::Name(event));
  fake::Enqueue(stream, [state, time = ++state->recorded] { state->reached = time; });
  return cudaSuccess;
}

// The answer is of before the step: what has just ended is seen by the next question.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock(fake::Mutex());
  const fake::SharedEvent& state = fake::All().events.at(fake::Name(event));
  const bool reached = state->reached >= state->recorded;
  (void)fake::StepAll();
  if (fake::Failure() != cudaSuccess) return fake::Failure();
  return reached ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind,
                            cudaStream_t stream) {
  const Lock lock(fake::Mutex());
  const fake::View target = fake::ViewOf(to, size);
  const fake::View source = fake::ViewOf(from, size);
  if (target.bytes == nullptr || source.bytes == nullptr) return cudaErrorInvalidValue;
  if (source.place == fake::Place::kPageable) {  // staged before the call returns, as CUDA does
    fake::Enqueue(stream, [staged = std::vector<std::byte>(source.bytes, source.bytes + size),
                           target] { std::memcpy(target.bytes, staged.data(), staged.size()); });
  } else {
    fake::Enqueue(stream, [=] { std::memmove(target.bytes, source.bytes, size); });
  }
  if (target.place == fake::Place::kPageable) fake::RunUntilIdle(stream);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) {
  const Lock lock(fake::Mutex());
  const fake::View target = fake::ViewOf(to, size);
  if (target.bytes == nullptr || target.place == fake::Place::kPageable) {
    return cudaErrorInvalidValue;
  }
  fake::Enqueue(stream, [=] { std::memset(target.bytes, value, size); });
  return cudaSuccess;
}

cudaError_t cudaMemset(void* to, int value, size_t size) {
  return cudaMemsetAsync(to, value, size, nullptr);
}
