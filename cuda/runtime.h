// The CUDA runtime for the files of cuda/: errors as statuses, owned handles, figures of a device.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include <cuda_runtime_api.h>

namespace eplb::cuda {

// Converts an error code of the call `what`. cudaSuccess: ok. Out of memory: ResourceExhausted. No
// usable device or driver: FailedPrecondition, the host path serves. No kernel for this device:
// FailedPrecondition, with the architectures of the build and the device. Not ready yet:
// Unavailable. Other errors: Internal. The message has CUDA's name and text of the error:
// "cudaMalloc: cudaErrorMemoryAllocation (2): out of memory". Clears the error as this thread's
// last one, because the next launch must not find it.
absl::Status ToStatus(cudaError_t error, std::string_view what);

// Owners of CUDA's handles and memory: one pointer each, no heap node, move-only. No other code
// allocates, frees or changes the current device. They must be destroyed while their device is
// current, because CUDA would make a context on device 0 for a thread without one.
template <class Handle, auto Destroy>
struct HandleDeleter {
  using pointer = Handle;
  void operator()(Handle handle) const noexcept {
    (void)Destroy(handle);  // a destructor cannot report
  }
};

using Stream = std::unique_ptr<cudaStream_t, HandleDeleter<cudaStream_t, cudaStreamDestroy>>;
using Event = std::unique_ptr<cudaEvent_t, HandleDeleter<cudaEvent_t, cudaEventDestroy>>;
using DeviceMemory = std::unique_ptr<void, HandleDeleter<void*, cudaFree>>;
using PinnedRange = std::unique_ptr<void, HandleDeleter<void*, cudaHostUnregister>>;
using PinnedMemory = std::unique_ptr<void, HandleDeleter<void*, cudaFreeHost>>;

// The next functions use the current device; errors: see ToStatus.
enum class StreamPriority { kDefault, kHighest };
// The stream does not wait for the default stream. kHighest: its blocks precede those of others.
absl::StatusOr<Stream> MakeStream(StreamPriority priority = StreamPriority::kDefault);
absl::StatusOr<Event> MakeEvent();  // without timing, which costs time
absl::StatusOr<DeviceMemory> MakeDeviceMemory(int64_t bytes);
absl::StatusOr<PinnedMemory> MakePinnedMemory(int64_t bytes);
// Pins memory of the caller's, which must outlive the result.
absl::StatusOr<PinnedRange> PinRange(std::span<std::byte> memory);

// Returns the driver's function of that name as CUDA 12 has it; null if there is none. libcuda is
// not linked.
void* FindInDriver(const char* name);

// Makes a device current, and at the end the previous one, unless this process does not use the
// previous one: making it current would create a context on it. The thread's context is restored as
// well, even to none, because another CUDA runtime of the process, such as a framework's, uses the
// device of a context that it finds. One thread.
class DeviceGuard {
 public:
  static absl::StatusOr<DeviceGuard> Make(int32_t device);
  DeviceGuard(DeviceGuard&& other) noexcept;
  DeviceGuard& operator=(DeviceGuard&&) = delete;
  ~DeviceGuard();

 private:
  DeviceGuard(int32_t previous, void* context) : previous_(previous), context_(context) {}

  int32_t previous_;  // kMovedFrom: nothing to restore
  void* context_;     // previous CUcontext of the driver; null: the thread had none
};

// Figures of devices, cached because a launch is shorter than a question to the driver. 0: not
// asked yet. The driver is asked each time for devices beyond these.
using KeptFigures = std::array<std::atomic<int32_t>, 64>;
// Returns the current device's figure, which `ask` writes. errors: those of `call`, see ToStatus.
// threads: safe.
absl::StatusOr<int32_t> FigureOfDevice(
    KeptFigures& kept, std::string_view call,
    absl::FunctionRef<cudaError_t(int32_t* figure, int device)> ask);
// Returns the multiprocessors of the current device. errors, threads: as above.
absl::StatusOr<int32_t> NumMultiprocessors();

}  // namespace eplb::cuda
