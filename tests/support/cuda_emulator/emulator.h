// CUDA kernels on the CPU: the .cu files of cuda/, translated by translate.py, run here. What a GPU
// may do in any order the emulator does in a bad one, and what is undefined on a GPU is an error:
//  - each thread is a fiber. Threads of up to two blocks take turns at barriers, warp operations
//    and atomics, in an order that follows from the seed.
//  - shared memory is fresh for each block and begins with unwritten bytes.
//  - a barrier that some threads of a block do not reach, a warp operation whose lanes name
//    different masks, and a launch beyond the limits are errors.
//  - so are vectors and atomics that are misaligned or outside an allocation, and a write into the
//    bytes around an allocation. The message names kernel, block and thread.
//  - two accesses to one address, of which one writes, are an error unless CUDA's memory model
//    orders them: by barriers, __syncwarp, fences, acquire and release, or the end of a kernel. A
//    shuffle orders nothing. The message also names the source line and thread of both. race.h has
//    what is not seen. A write of the value that another thread wrote before is no error.
//  - a programmatic dependent launch sees memory of the launch before it after its wait alone;
//    an earlier access is such a race. The launches run one after the other.
// A write is seen at once by all threads, and an update of memory is never cut in two.
// A kernel may wait for a word that the host writes: its loads by PTX, volatile or __atomic_load
// let other threads and the host run.
// Streams do nothing later: a launch has run when it returns, unless the stream captures. So the
// order of streams is not tested here; fake_cuda does that, with kernels that are their host
// bodies. An error of a kernel is sticky, as on a GPU.
#pragma once

#include <cstdint>
#include <string>

namespace eplb::cuda_emulator {

inline constexpr int kNumSeeds = 4;
inline constexpr int32_t kMultiprocessors = 4;

// Sets the seed of all later launches. Warps run in random order, or one starves while another can
// run, or in the order of a fixed priority, each to its next barrier: which of them is seed % 3.
void SetSeed(uint64_t seed);

// The sticky error's message, "" without one.
std::string Report();
// Clears errors, as in a new process. Allocations stay.
void Reset();

}  // namespace eplb::cuda_emulator
