// A stand-in for the CUDA runtime, so that what stands on it runs where there is no GPU. A program
// that links it takes these functions in place of cudart's. It is stricter than a GPU, not faster:
//  - device memory cannot be touched by the host: its addresses are mapped without access, and only
//    the stand-in has another view of it. It begins with bytes that nobody wrote.
//  - nothing on a stream runs when it is added, only step by step when somebody asks for an event
//    or waits; so an order that is not asked for does not come about by luck.
//  - a kernel sees device and pinned memory only, of its own device or one that it was given access
//    to; anything else is a sticky illegal address.
//  - IPC handles open in other processes, and not in the one that made them.
//  - virtual memory is a memfd, seen by nobody before cuMemSetAccess. What was not released when
//    the process exits, descriptors included, ends it with kLeakExit.
//  - an error stays a thread's last one until somebody asks, and the next launch finds it. Events,
//    streams and launches of different devices do not mix. A stream under capture runs nothing.
// Kernels are their host bodies.
//
// For processes, by the environment: EPLB_FAKE_CUDA_PEERS=off (no device reaches another's memory),
// EPLB_FAKE_CUDA_LOST_WRITES=1 (what is written into a peer's memory does not arrive).
#ifndef EPLB_TESTS_SUPPORT_FAKE_CUDA_FAKE_CUDA_H_
#define EPLB_TESTS_SUPPORT_FAKE_CUDA_FAKE_CUDA_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include <cuda_runtime_api.h>

namespace eplb::fake_cuda {

inline constexpr int kDevices = 2;
inline constexpr int kLeakExit = 86;

std::recursive_mutex& Mutex();  // of all that is below, and of all state

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

// ---- memory.cc ----

enum class Place { kPageable, kPinned, kDevice };
struct View {
  Place place = Place::kPageable;
  std::byte* bytes = nullptr;  // where the stand-in reads and writes; null: outside its allocation
  int device = 0;
  bool is_mapped = false;  // virtual memory, which even the copy engine needs access to
  bool loses_writes = false;
};
// Of `size` bytes at an address of the program.
View ViewOf(const void* address, size_t size);

// Whether kernels of `device` reach the memory at this address, and whether its copy engine does.
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
// Of the operation that runs now.
int RunningDevice();

// In which order streams move from now on. 0: one operation of each in turn. Else priorities are
// drawn, the first stream that can move does, and they are drawn anew now and then: at each step,
// seldom or hardly ever, by the seed.
void SetSeed(uint32_t seed);

// ---- driver.cc ----

// Null when the stand-in has none of that name.
void* DriverEntryPoint(const std::string& name);
bool PeersReachEachOther();

// ---- runtime.cc ----

int CurrentDevice();
// Whether somebody has made it current: from then on it has a context of this process.
bool HasContext(int device);

}  // namespace eplb::fake_cuda

#endif  // EPLB_TESTS_SUPPORT_FAKE_CUDA_FAKE_CUDA_H_
