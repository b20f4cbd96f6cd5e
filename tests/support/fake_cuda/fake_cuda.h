// A stand-in for the CUDA runtime, so that what stands on it runs where there is no GPU. A program
// that links it takes these functions in place of cudart's. It is stricter than a GPU, not faster:
//  - device memory cannot be touched by the host: its addresses are mapped without access, and only
//    the stand-in has another view of it. It begins with bytes that nobody wrote.
//  - nothing on a stream runs when it is added, only step by step when somebody asks for an event
//    or waits; so an order that is not asked for does not come about by luck.
//  - a kernel sees device and pinned memory only; anything else is a sticky illegal address.
//  - IPC handles open in other processes, and not in the one that made them.
// There is no virtual memory management; kernels are their host bodies.
#ifndef EPLB_TESTS_SUPPORT_FAKE_CUDA_FAKE_CUDA_H_
#define EPLB_TESTS_SUPPORT_FAKE_CUDA_FAKE_CUDA_H_

#include <cstddef>
#include <functional>
#include <mutex>

#include <cuda_runtime_api.h>

namespace eplb::fake_cuda {

inline constexpr int kDevices = 2;

std::recursive_mutex& Mutex();  // of all that is below, and of all state

// ---- memory.cc ----

enum class Place { kPageable, kPinned, kDevice };
struct View {
  Place place = Place::kPageable;
  std::byte* bytes = nullptr;  // where the stand-in reads and writes; null: outside its allocation
  int device = 0;
};
// Of `size` bytes at an address of the program.
View ViewOf(const void* address, size_t size);

// ---- streams.cc ----

void Enqueue(cudaStream_t stream, std::function<void()> work);
void RunUntilIdle(cudaStream_t stream);
void RunAll();
// From now on every question about streams is answered with this.
void Fail(cudaError_t error);
cudaError_t Failure();

// ---- runtime.cc ----

int CurrentDevice();

}  // namespace eplb::fake_cuda

#endif  // EPLB_TESTS_SUPPORT_FAKE_CUDA_FAKE_CUDA_H_
