// What every file of cuda/ needs of the CUDA runtime: errors as statuses, owned handles, figures of
// a device.
#ifndef EPLB_CUDA_RUNTIME_H_
#define EPLB_CUDA_RUNTIME_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include <cuda_runtime_api.h>

namespace eplb::cuda {

// CUDA's error codes as statuses.

// `what` names the call. cudaSuccess: ok. Out of memory: ResourceExhausted. No usable device or
// driver: FailedPrecondition, the host path serves. No kernel for this device: FailedPrecondition,
// with the build's architectures and the device's. Not ready yet: Unavailable. All else: Internal.
// The message has CUDA's name and text of the error: "cudaMalloc: cudaErrorMemoryAllocation (2):
// out of memory". An error is also cleared as CUDA's last one of this thread: it is reported here,
// and the next launch must not find it.
absl::Status ToStatus(cudaError_t error, std::string_view what);

// Owners of CUDA's handles and memory: one pointer each, no heap node, move-only. The only place
// that allocates, frees or changes the current device. They go while their device is current: on a
// thread without a context CUDA would make one on device 0.

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

// All on the current device; errors as ToStatus.
enum class StreamPriority { kDefault, kHighest };
// Does not wait for the default stream. kHighest: its blocks go before those of other streams.
absl::StatusOr<Stream> MakeStream(StreamPriority priority = StreamPriority::kDefault);
absl::StatusOr<Event> MakeEvent();  // without timing, which costs
absl::StatusOr<DeviceMemory> MakeDeviceMemory(int64_t bytes);
absl::StatusOr<PinnedMemory> MakePinnedMemory(int64_t bytes);
// Pins memory of the caller's, which must outlive the result.
absl::StatusOr<PinnedRange> PinRange(std::span<std::byte> memory);

// Makes a device current and, when it goes, the one before current again, unless this process does
// not use that one: to make it current would put a context onto it. The thread's context is then
// what it was, also none: another CUDA runtime of the process, such as a framework's, takes the
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
  void* context_;     // the driver's CUcontext before; null: the thread had none
};

// What launchers ask of the current device, kept after the first question: a launch is short, and
// asking the driver again at each is not.

// Multiprocessors of the current device. errors: as ToStatus. threads: safe.
absl::StatusOr<int32_t> NumMultiprocessors();

}  // namespace eplb::cuda

#endif  // EPLB_CUDA_RUNTIME_H_
