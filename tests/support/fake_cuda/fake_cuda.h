// A stand-in for the CUDA runtime, so that what stands on it runs where there is no GPU. A program
// that links it takes these functions in place of cudart's. It is stricter than a GPU, not faster:
//  - device memory cannot be touched by the host: its addresses are mapped without access, and only
//    the stand-in has another view of it. It begins with unwritten bytes.
//  - nothing on a stream runs when it is added, only step by step when a caller asks for an event
//    or waits; so an order that is not asked for does not come about by luck.
//  - a kernel sees device and pinned memory only, of its own device or one that it was given access
//    to; anything else is a sticky illegal address.
//  - a kernel runs in parts, tiles of a copy or of a sum, between which other streams move. With a
//    seed its tiles come in any order.
//  - what a copy from a device into pinned memory will write holds other bytes until it has: no
//    caller finds there what was right before.
//  - IPC handles open in other processes, and not in the one that made them. They are given for
//    whole blocks of 2 MiB, since a smaller allocation would share its block.
//  - a call of the runtime makes a context on the thread's device, as CUDA's does.
//  - virtual memory is a memfd, invisible before cuMemSetAccess. What was not released when
//    the process exits, descriptors included, ends it with kLeakExit.
//  - an error stays a thread's last one until a call reads it, and the next launch finds it.
//    Events, streams and launches of different devices do not mix. A stream under capture runs
//    nothing.
// Kernels are their host bodies.
//
// For processes, by the environment: EPLB_FAKE_CUDA_PEERS=off (no device reaches another's memory),
// EPLB_FAKE_CUDA_LOST_WRITES=1 (what is written into a peer's memory does not arrive).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

namespace eplb::fake_cuda {

inline constexpr int kDevices = 2;
inline constexpr int kLeakExit = 86;

std::recursive_mutex& Mutex();  // guards all that is below, and all state

// ---- calls.cc ----

// Begins an entry point: locks, counts, and meets the faults.
class Call {
 public:
  explicit Call(const char* name);
  // Not cudaSuccess: the call ends with it and does nothing.
  cudaError_t error() const { return error_; }

 private:
  const std::lock_guard<std::recursive_mutex> lock_;
  cudaError_t error_ = cudaSuccess;
};

// Also as the thread's last error.
cudaError_t Keep(cudaError_t error);

struct CallFault {
  std::string call;  // "cudaMemcpyAsync", or "launch" of any kernel
  int32_t calls_before = 0;
  cudaError_t error = cudaErrorInvalidValue;
  bool sticky = false;  // every later call of any thread fails with it as well
};
// One call of this thread fails. Faults that were not met are forgotten with the thread.
void FailOnThisThread(CallFault fault);
size_t NumFaultsOfThisThread();

// Calls of all threads so far, with that name and with any.
int64_t NumCalls(const std::string& name);
int64_t NumCalls();
// Calls so far that take memory, addresses, events or streams, or give them back.
int64_t NumAllocations();

// ---- memory.cc ----

enum class Place { kPageable, kPinned, kDevice };
struct View {
  Place place = Place::kPageable;
  std::byte* bytes = nullptr;  // bytes of the stand-in; null: outside its allocation
  int device = 0;
  bool is_mapped = false;  // virtual memory, which even the copy engine needs access to
  bool loses_writes = false;
};
// View of `size` bytes at an address of the program.
View ViewOf(const void* address, size_t size);

// True if kernels of `device` reach the memory at this address; true if its copy engine does.
bool KernelReaches(int device, const void* address);
bool CopyReaches(int device, const void* address);

// A mapping of virtual memory at `address`, which is reserved. False when the system refuses.
struct Mapping {
  void* address = nullptr;
  size_t size = 0;
  int descriptor = -1;
  int device = 0;
  bool is_imported = false;
};
bool AddMapping(const Mapping& mapping);
void SetAccess(const void* address, int device);
void RemoveMapping(void* address);

// ---- external.cc ----

// Device memory goes: what other libraries have to say to it.
void TellOfFree(const void* address, size_t size);

// ---- streams.cc ----

void Enqueue(cudaStream_t stream, std::function<void()> work);
// 0 .. size-1 in the order in which blocks of a kernel come to them: rising without a seed.
std::vector<int64_t> DrawOrder(int64_t size);

// Use of streams so far: calls that put work on them, and bytes of device memory
// that operations have read and written.
struct Usage {
  int64_t num_enqueued = 0;
  int64_t read_bytes = 0;
  int64_t written_bytes = 0;
};
Usage UsageOf(cudaStream_t stream);
Usage UsageOfAll();  // also of streams that are gone
void CountEnqueued(cudaStream_t stream);
// For the operation that runs now.
void CountRead(const View& view, int64_t num_bytes);
void CountWritten(const View& view, int64_t num_bytes);

// A kernel of another library: asked each time when the stream has come to it, under the lock,
// until it says true. Only cudaStreamSynchronize waits for it; other calls that wait for a stream
// or the device return when nothing else can move.
void EnqueueExternal(cudaStream_t stream, std::function<bool()> has_ended);
// A kernel that runs for so long.
void Occupy(cudaStream_t stream, std::chrono::milliseconds duration);
void RunUntilIdle(cudaStream_t stream);
void RunAll();
// From now on every call returns this, as after a fault on the device.
void Fail(cudaError_t error);
cudaError_t Failure();
// After Fail, for the next test: nothing that was added runs any more, and calls work again.
void Revive();
int DeviceOf(cudaStream_t stream);
// For the operation that runs now.
int RunningDevice();

// Calls so far that CUDA would have refused, and ended the capture for: they came while a thread
// captured in global mode, from one that has not relaxed its own.
int64_t NumProhibitedCalls();

// In which order streams move from now on. 0: one operation of each in turn. Else priorities are
// drawn, the first stream that can move does, and they are drawn anew now and then: at each step,
// seldom or hardly ever, by the seed.
void SetSeed(uint32_t seed);

// ---- launch.cc ----

// Launches so far of kernels that were not loaded onto their device. CUDA loads these at the
// launch, which may then wait for all that the device runs.
int64_t NumUnloadedLaunches();

// ---- driver.cc ----

// Null when the stand-in has none of that name.
void* DriverEntryPoint(const std::string& name);
bool PeersReachEachOther();

// ---- runtime.cc ----

int CurrentDevice();
// True if this process has a context on it: a thread has made it current, or called the runtime
// while it was.
bool HasContext(int device);
// The device whose context is current on this thread; negative: none is.
int CurrentContext();
void SetCurrentContext(int device);
// Makes a context, like any call of the runtime.
void UseContext();
// Resets this thread, as in a process that has used no device yet; for other threads only
// HasContext.
void ForgetContexts();

}  // namespace eplb::fake_cuda
