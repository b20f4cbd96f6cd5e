// The functions of the CUDA runtime that launchers, queues and their tests call.
#include <cstdint>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/support/cuda_emulator/emulator.h"
#include "tests/support/cuda_emulator/launch.h"
#include "tests/support/cuda_emulator/launch_order.h"
#include "tests/support/cuda_emulator/machine.h"
#include "tests/support/cuda_emulator/memory.h"

// Types that CUDA's headers leave incomplete.
struct CUstream_st {
  bool captures = false;
  std::vector<std::function<void()>> captured;
};
struct CUevent_st {};
struct CUgraph_st {
  std::vector<std::function<void()>> work;
};
struct CUgraphExec_st {
  std::vector<std::function<void()>> work;
};

namespace eplb::cuda_emulator {
namespace {

struct State {
  std::recursive_mutex mutex;
  std::set<cudaStream_t> streams;
  std::string report;
  cudaError_t sticky = cudaSuccess;
  thread_local static cudaError_t last;
};
thread_local cudaError_t State::last = cudaSuccess;

State& All() {
  static auto* const state = new State();
  return *state;
}

// The call's answer; an error is also the thread's last one.
cudaError_t Answer(cudaError_t error) {
  if (error == cudaSuccess) error = All().sticky;
  if (error != cudaSuccess) State::last = error;
  return error;
}

void Report(const std::string& text) {
  std::fprintf(stderr, "CUDA emulator: %s\n", text.c_str());
  All().report = text;
}

// Now, or when the graph runs that the stream captures.
cudaError_t Do(cudaStream_t stream, std::function<void()> work) {
  if (stream != nullptr && !All().streams.contains(stream)) {
    return Answer(cudaErrorInvalidResourceHandle);
  }
  if (stream != nullptr && stream->captures) {
    stream->captured.push_back(std::move(work));
  } else if (All().sticky == cudaSuccess) {
    work();
  }
  return Answer(cudaSuccess);
}

// Work that is no kernel: the stream's next kernel begins when it has ended.
cudaError_t DoOther(cudaStream_t stream, std::function<void()> work) {
  return Do(stream, [stream, work = std::move(work)] {
    EndSequence(stream);
    work();
  });
}

// A wait in a capture is an error.
cudaError_t Wait(cudaStream_t stream) {
  if (stream != nullptr && !All().streams.contains(stream)) {
    return Answer(cudaErrorInvalidResourceHandle);
  }
  return Answer(stream != nullptr && stream->captures ? cudaErrorStreamCaptureUnsupported
                                                      : cudaSuccess);
}

using Lock = std::lock_guard<std::recursive_mutex>;

}  // namespace

void Launch(const std::string& kernel, const LaunchShape& shape, std::function<void()> body) {
  const Lock lock(All().mutex);
  if (const std::string why = WhyNoLaunch(shape); !why.empty()) {
    Report(kernel + ": " + why);
    State::last = cudaErrorInvalidConfiguration;
    return;
  }
  (void)Do(shape.stream, [kernel, shape, body = std::move(body)] {
    const std::string error = RunBlocks(kernel, shape, body);
    if (error.empty()) return;
    Report(error);
    All().sticky = cudaErrorLaunchFailure;
  });
}

cudaError_t LaunchWith(const cudaLaunchConfig_t& config, const char* text, size_t most_shared_bytes,
                       std::function<void()> body) {
  std::string kernel;
  int depth = 0;  // in template arguments
  for (const char* at = text; *at != '\0' && (*at != ',' || depth > 0); ++at) {
    depth += *at == '<' ? 1 : *at == '>' ? -1 : 0;
    kernel += *at;
  }
  LaunchShape shape(config.gridDim, config.blockDim, config.dynamicSmemBytes, config.stream);
  shape.most_shared_bytes = most_shared_bytes;
  for (unsigned int i = 0; i < config.numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config.attrs[i];
    if (attribute.id != cudaLaunchAttributeProgrammaticStreamSerialization) {
      Report(absl::StrCat(kernel, ": the emulator knows no launch attribute ",
                          static_cast<int>(attribute.id)));
      return Answer(cudaErrorNotSupported);
    }
    shape.programmatic = attribute.val.programmaticStreamSerializationAllowed != 0;
  }
  Launch(kernel, shape, std::move(body));
  return std::exchange(State::last, All().sticky);
}

void SetSeed(uint64_t seed) { SetOrder(seed); }

std::string Report() { return All().sticky == cudaSuccess ? "" : All().report; }

void Reset() {
  All().sticky = cudaSuccess;
  State::last = cudaSuccess;
}

}  // namespace eplb::cuda_emulator

namespace emulator = eplb::cuda_emulator;
using emulator::Answer;
using emulator::Lock;

// ---- devices, errors ----

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return Answer(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = emulator::kMultiprocessors;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      return cudaSuccess;
    default:
      return Answer(cudaErrorNotSupported);
  }
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned int,
                                             // NOLINTNEXTLINE(google-runtime-int): CUDA's
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = nullptr;
  *result = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return std::exchange(emulator::State::last, emulator::All().sticky);
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess ? "cudaSuccess" : "an error of the CUDA emulator";
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorLaunchFailure || error == cudaErrorInvalidConfiguration
             ? emulator::All().report.c_str()
             : "see driver_types.h";
}

// ---- streams and events ----

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int) {
  const Lock lock(emulator::All().mutex);
  *stream = new CUstream_st();
  emulator::All().streams.insert(*stream);
  return Answer(cudaSuccess);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(emulator::All().mutex);
  if (emulator::All().streams.erase(stream) == 0) return Answer(cudaErrorInvalidResourceHandle);
  delete stream;
  return Answer(cudaSuccess);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Lock lock(emulator::All().mutex);
  return emulator::Wait(stream);
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const Lock lock(emulator::All().mutex);
  return emulator::Wait(stream);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream != nullptr && stream->captures ? cudaStreamCaptureStatusActive
                                                  : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return Answer(cudaSuccess); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t, unsigned int) {
  const Lock lock(emulator::All().mutex);
  return emulator::DoOther(stream, [] {});
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  *event = new CUevent_st();
  return Answer(cudaSuccess);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return Answer(cudaSuccess);
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t stream) {
  const Lock lock(emulator::All().mutex);
  return emulator::DoOther(stream, [] {});
}
cudaError_t cudaEventQuery(cudaEvent_t) { return Answer(cudaSuccess); }

// ---- graphs ----

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const Lock lock(emulator::All().mutex);
  if (stream == nullptr || stream->captures) return Answer(cudaErrorStreamCaptureUnsupported);
  stream->captures = true;
  return Answer(cudaSuccess);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return Answer(cudaSuccess);
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Lock lock(emulator::All().mutex);
  if (stream == nullptr || !stream->captures) return Answer(cudaErrorIllegalState);
  stream->captures = false;
  *graph = new CUgraph_st{std::exchange(stream->captured, {})};
  return Answer(cudaSuccess);
}
// NOLINTNEXTLINE(google-runtime-int): as above
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{graph->work};
  return Answer(cudaSuccess);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  const Lock lock(emulator::All().mutex);
  for (const std::function<void()>& work : exec->work) {
    if (const cudaError_t error = emulator::Do(stream, work); error != cudaSuccess) return error;
  }
  return Answer(cudaSuccess);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return Answer(cudaSuccess);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return Answer(cudaSuccess);
}

// ---- memory ----

cudaError_t cudaMalloc(void** address, size_t size) {
  const Lock lock(emulator::All().mutex);
  return Answer(emulator::Allocate(size, emulator::Place::kDevice, address));
}
cudaError_t cudaFree(void* address) {
  const Lock lock(emulator::All().mutex);
  return Answer(emulator::Free(address, emulator::Place::kDevice));
}
cudaError_t cudaHostAlloc(void** address, size_t size, unsigned int) {
  const Lock lock(emulator::All().mutex);
  return Answer(emulator::Allocate(size, emulator::Place::kPinned, address));
}
cudaError_t cudaFreeHost(void* address) {
  const Lock lock(emulator::All().mutex);
  return Answer(emulator::Free(address, emulator::Place::kPinned));
}
cudaError_t cudaHostRegister(void* address, size_t size, unsigned int) {
  const Lock lock(emulator::All().mutex);
  return Answer(emulator::Register(address, size));
}
cudaError_t cudaHostUnregister(void* address) {
  const Lock lock(emulator::All().mutex);
  return Answer(emulator::Unregister(address));
}
// True if `size` bytes are all of one allocation, or the host's.
static bool IsCopied(const void* address, size_t size) {
  const emulator::Found found = emulator::Find(address, size);
  return size == 0 || (found.place == emulator::Place::kUnknown ? !emulator::IsBetween(address)
                                                                : found.is_whole);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind,
                            cudaStream_t stream) {
  const Lock lock(emulator::All().mutex);
  if (!IsCopied(to, size) || !IsCopied(from, size)) return Answer(cudaErrorInvalidValue);
  return emulator::DoOther(stream, [=] {
    if (size > 0) std::memmove(to, from, size);
  });
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, size, kind, nullptr);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) {
  const Lock lock(emulator::All().mutex);
  if (emulator::Find(to, 1).place != emulator::Place::kDevice || !IsCopied(to, size)) {
    return Answer(cudaErrorInvalidValue);
  }
  return emulator::DoOther(stream, [=] { std::memset(to, value, size); });
}
